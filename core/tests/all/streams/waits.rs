//! Which stream gets memory that queued work still uses, and its wait.

use super::{BASE, GRANULE, cause, full, on, take};
use crate::common::{Pool, point};
use larder_core::{Cause, EventNumber, RegionConfig};

#[test]
fn the_same_stream_gets_its_memory_back_at_once_and_without_a_wait() {
    for number in [0, 1, 255] {
        let (mut pool, mut blocks) = full(1);
        pool.free_after(take(&mut blocks[0]), number, 7);
        for request in [on(GRANULE, number), on(GRANULE, number).without_wait()] {
            let grant = pool.grant(&request);
            assert_eq!((grant.block.addr().get(), grant.wait), (BASE, None));
            pool.free_after(grant.block, number, 8);
        }
    }
}

#[test]
fn another_stream_gets_it_with_the_point_as_wait() {
    for (freed_on, wanted_on) in [(0, 1), (1, 0), (3, 255), (255, 3)] {
        let (mut pool, mut blocks) = full(1);
        pool.free_after(take(&mut blocks[0]), freed_on, 7);
        let grant = pool.grant(&on(GRANULE, wanted_on));
        assert_eq!(grant.wait, Some(point(freed_on, 7)));
    }
}

#[test]
fn without_wait_skips_what_another_stream_uses_and_says_that_it_is_pending() {
    let (mut pool, mut blocks) = full(2);
    pool.free_after(take(&mut blocks[0]), 1, 7);
    assert_eq!(
        cause(&mut pool, &on(GRANULE, 2).without_wait()),
        Cause::Pending
    );
    pool.complete(1, 6);
    assert_eq!(
        cause(&mut pool, &on(GRANULE, 2).without_wait()),
        Cause::Pending
    );
    pool.complete(1, 7);
    let grant = pool.grant(&on(GRANULE, 2).without_wait());
    assert_eq!((grant.block.addr().get(), grant.wait), (BASE, None));
}

#[test]
fn among_chunks_of_one_size_those_without_a_wait_go_first() {
    let (mut pool, mut blocks) = full(8);
    pool.free_after(take(&mut blocks[0]), 1, 3);
    pool.free_after(take(&mut blocks[2]), 2, 3);
    pool.free_after(take(&mut blocks[4]), 3, 3);
    let grant = pool.grant(&on(GRANULE, 2));
    assert_eq!(
        (grant.block.addr().get(), grant.wait),
        (BASE + 2 * GRANULE, None)
    );
    pool.free(take(&mut blocks[6]));
    let grant = pool.grant(&on(GRANULE, 2));
    assert_eq!(
        (grant.block.addr().get(), grant.wait),
        (BASE + 6 * GRANULE, None)
    );
    let grant = pool.grant(&on(GRANULE, 2));
    assert_eq!(
        (grant.block.addr().get(), grant.wait),
        (BASE, Some(point(1, 3)))
    );
}

/// Where sizes are not exact a class is searched for its best chunk: no wait, then the smallest,
/// then the lowest.
#[test]
fn a_larger_chunk_without_a_wait_goes_before_a_smaller_one_of_its_class_with_one() {
    for waiting_first in [true, false] {
        let mut pool = Pool::with_regions(RegionConfig::fixed(), &[(BASE, 1000 * GRANULE)]);
        // Sizes from 128 to 131 granules are of one class.
        let [a, _b, c, _d] = [129, 1, 130, 1].map(|n| pool.alloc(n * GRANULE));
        let (waits, serves) = if waiting_first { (a, c) } else { (c, a) };
        let expected = serves.addr();
        pool.free_after(waits, 1, 5);
        pool.free(serves);
        let grant = pool.grant(&on(128 * GRANULE, 2));
        assert_eq!((grant.block.addr(), grant.wait), (expected, None));
    }
}

#[test]
fn a_demanded_event_binds_its_own_stream_and_not_the_others() {
    let (mut pool, mut blocks) = full(4);
    pool.free_after(take(&mut blocks[0]), 1, 5);
    let request = on(GRANULE, 1).freed_by(EventNumber::new(4));
    assert_eq!(cause(&mut pool, &request), Cause::Pending);
    pool.free_after(take(&mut blocks[2]), 2, 5);
    let grant = pool.grant(&request);
    assert_eq!(
        (grant.block.addr().get(), grant.wait),
        (BASE + 2 * GRANULE, Some(point(2, 5)))
    );
    let grant = pool.grant(&on(GRANULE, 1).freed_by(EventNumber::new(5)));
    assert_eq!((grant.block.addr().get(), grant.wait), (BASE, None));
}
