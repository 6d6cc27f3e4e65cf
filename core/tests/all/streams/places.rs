//! Blocks at places that a stream's own queued work may still use.

use super::{BASE, GRANULE, full, on, stream};
use crate::common::{point, range};
use larder_core::AllocError;
use larder_core::BestFit;

/// Granules 1 to 5 are free: nobody's, stream 1's, stream 1's, stream 2's, nobody's.
fn pending() -> super::Pool {
    let (mut pool, mut blocks) = full(7);
    let mut take = |index: usize| blocks[index].take().unwrap();
    let free: Vec<_> = (1..6).map(&mut take).collect();
    // Both streams are known.
    for number in [1, 2] {
        let error = pool.shared.get_mut().alloc(&on(GRANULE, number));
        assert!(error.is_err(), "all is in use");
    }
    for (block, with_point) in free.into_iter().zip([
        None,
        Some(point(1, 1)),
        Some(point(1, 3)),
        Some(point(2, 1)),
        None,
    ]) {
        match with_point {
            Some(point) => pool.shared.get_mut().free_after(block, point).unwrap(),
            None => pool.shared.get_mut().free(block).unwrap(),
        }
    }
    pool.shared.get_mut().check_invariants().unwrap();
    pool
}

fn place(first: u64, count: u64) -> larder_core::AddrRange {
    range(BASE + first * GRANULE, count * GRANULE)
}

#[test]
fn a_stream_gets_what_is_its_own_or_nobodys_joined() {
    for (first, count) in [(1, 3), (1, 2), (2, 2), (2, 1), (3, 1), (1, 1), (5, 1)] {
        let mut pool = pending();
        let block = pool
            .shared
            .get_mut()
            .alloc_at(place(first, count), None, Some(stream(1)));
        let block = block.unwrap_or_else(|error| panic!("{first}+{count}: {error}"));
        assert_eq!(block.range(), place(first, count));
        pool.shared.get_mut().check_invariants().unwrap();
        pool.shared
            .get_mut()
            .free_after(block, point(1, 4))
            .unwrap();
        pool.shared.get_mut().check_invariants().unwrap();
    }
}

#[test]
fn what_another_stream_uses_is_taken_and_nothing_changes() {
    for (first, count) in [(1, 4), (3, 2), (4, 1), (4, 2), (0, 2), (5, 2)] {
        let mut pool = pending();
        let refused = pool.unchanged(|pool| {
            pool.shared
                .get_mut()
                .alloc_at(place(first, count), None, Some(stream(1)))
                .map(|block| block.range())
        });
        assert_eq!(refused, Err(AllocError::PlaceTaken), "{first}+{count}");
        // Once that stream is done it serves, unless a block is there.
        pool.shared
            .get_mut()
            .complete(stream(2), larder_core::EventNumber::new(1));
        let served = pool
            .shared
            .get_mut()
            .alloc_at(place(first, count), None, Some(stream(1)));
        assert_eq!(served.is_ok(), first > 0 && first + count < 7);
        pool.shared.get_mut().check_invariants().unwrap();
    }
}

#[test]
fn what_is_cut_off_keeps_the_latest_point() {
    let mut pool = pending();
    let _block = pool
        .shared
        .get_mut()
        .alloc_at(place(2, 1), None, Some(stream(1)))
        .unwrap();
    // Granule 3 is stream 1's until event 3: another stream waits for that.
    let grant = pool
        .shared
        .get_mut()
        .alloc_at(place(3, 1), None, Some(stream(2)));
    assert_eq!(grant, Err(AllocError::PlaceTaken));
    pool.shared
        .get_mut()
        .complete(stream(1), larder_core::EventNumber::new(2));
    let grant = pool
        .shared
        .get_mut()
        .alloc_at(place(3, 1), None, Some(stream(2)));
    assert_eq!(grant, Err(AllocError::PlaceTaken));
    pool.shared
        .get_mut()
        .complete(stream(1), larder_core::EventNumber::new(3));
    assert!(
        pool.shared
            .get_mut()
            .alloc_at(place(3, 1), None, Some(stream(2)))
            .is_ok()
    );
}
