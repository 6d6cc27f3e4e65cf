//! Tests of the system that refuses: calls that break the heap's side of the contract are recorded.

use super::faulty::{Below, Call, Faulty, Plan};
use crate::os::Os;

#[test]
fn calls_that_break_the_contract_are_written_down() {
    for page_bytes in [4 << 10, 64 << 10] {
        let faulty = Faulty::with_pages(Plan::Once(Call::Commit, 2), page_bytes);
        break_the_contract(Box::leak(Box::new(faulty)));
    }
}

fn break_the_contract(faulty: &'static Faulty) {
    let below = Below(faulty);
    let page = below.page_bytes();
    let start = below.reserve(8 * page, page).unwrap().as_ptr();
    // SAFETY: whole pages inside the range.
    assert!(unsafe { below.commit(start, 4 * page) });
    // SAFETY: a page inside the range.
    let committed = unsafe { below.commit(start.wrapping_add(4 * page), page) };
    assert!(!committed, "the plan");
    // SAFETY: a page inside the range.
    assert!(unsafe { below.discard(start, page) });
    // SAFETY: a page inside the range.
    assert!(unsafe { below.decommit(start, page) });
    assert_eq!((faulty.complaints(), faulty.refusals()), (Vec::new(), 1));
    assert_eq!(
        (faulty.committed_bytes(), faulty.reserved_bytes()),
        (3 * page, 8 * page)
    );
    // SAFETY: a call that must not get through.
    unsafe { below.decommit(start, page) };
    // SAFETY: a call that must not get through.
    unsafe { below.commit(start.wrapping_add(3 * page), 2 * page) };
    // SAFETY: a call that must not get through.
    unsafe { below.discard(start.wrapping_add(7 * page), page) };
    // SAFETY: a call that must not get through.
    unsafe { below.commit(start.wrapping_add(7 * page), 2 * page) };
    // SAFETY: a call that must not get through.
    unsafe { below.release(start, page) };
    // SAFETY: a call that must not get through, or whole pages for a system with shorter ones.
    unsafe { below.discard(start.wrapping_add(2 * page), page / 2) };
    assert_eq!(faulty.complaints().len(), 6, "{:?}", faulty.complaints());
    // SAFETY: nothing is used.
    unsafe { faulty.release_all() };
    assert_eq!(faulty.reserved_bytes(), 0);
}
