//! Models `FixedRange` (RANGE1): no byte is granted twice, and only the end can be released.

use larder_core::{Addr, AddrRange, Align, FixedRange, GrowRequest, SubAllocator};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

const RANGE: u64 = 0x1000;

fn ask(bytes: u64) -> GrowRequest {
    GrowRequest {
        bytes,
        align: Align::new(0x100).unwrap(),
        at: None,
    }
}

fn range() -> AddrRange {
    AddrRange::new(Addr::new(0x1000), RANGE).unwrap()
}

#[test]
fn two_threads_never_get_the_same_byte() {
    loom::model(|| {
        let source = Arc::new(FixedRange::new(range()));
        let other = Arc::clone(&source);
        let thread = thread::spawn(move || other.grow(ask(0x600)));
        let mine = source.grow(ask(0x700));
        let theirs = thread.join().unwrap();
        let (mine, theirs) = (mine.unwrap(), theirs.unwrap());
        assert!(!mine.overlaps(theirs));
        assert_eq!(source.used_bytes(), 0xd00);
    });
}

#[test]
fn only_one_of_two_gets_the_last_piece() {
    loom::model(|| {
        let source = Arc::new(FixedRange::new(range()));
        let other = Arc::clone(&source);
        let thread = thread::spawn(move || other.grow(ask(0xa00)));
        let mine = source.grow(ask(0xa00));
        let theirs = thread.join().unwrap();
        assert!(mine.is_ok() != theirs.is_ok());
    });
}

#[test]
fn what_comes_back_is_given_again_and_nothing_else_is() {
    loom::model(|| {
        let source = Arc::new(FixedRange::new(range()));
        let first = source.grow(ask(0x800)).unwrap();
        let other = Arc::clone(&source);
        let thread = thread::spawn(move || other.grow(ask(0x400)).unwrap());
        let returned = source.release(first);
        let theirs = thread.join().unwrap();
        // If the other piece lies behind the first, the first is no longer the end and cannot be released.
        assert_eq!(returned.is_err(), first.end() == theirs.start());
        assert!(returned.is_ok() || !first.overlaps(theirs));
    });
}

/// The broken twin: a load and a store in place of the compare-and-swap.
struct LookThenWrite {
    used: AtomicU64,
}

impl LookThenWrite {
    fn grow(&self, bytes: u64) -> AddrRange {
        let used = self.used.load(Ordering::SeqCst);
        self.used.store(used + bytes, Ordering::SeqCst);
        AddrRange::new(Addr::new(0x1000 + used), bytes).unwrap()
    }
}

#[test]
#[should_panic(expected = "given twice")]
fn broken_twin_a_store_instead_of_the_swap_is_found() {
    loom::model(|| {
        let source = Arc::new(LookThenWrite {
            used: AtomicU64::new(0),
        });
        let other = Arc::clone(&source);
        let thread = thread::spawn(move || other.grow(0x600));
        let mine = source.grow(0x700);
        assert!(!mine.overlaps(thread.join().unwrap()), "given twice");
    });
}
