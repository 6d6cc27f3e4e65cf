//! Releases under way, and sub-allocators that take back only whole ranges or only the end.

use crate::common::{self, BASE, GIB, KIB, MIB, Pool, UNIT, ranged};
use larder_core::{BestFit, BlockAllocator, FixedRange, RegionPool, Request, Shared};

#[test]
fn while_a_cut_is_on_its_way_the_limit_counts_it_and_growth_goes_elsewhere() {
    let mut pool = Pool::over(ranged(UNIT, 11 * UNIT), common::contiguous(), 256);
    let _a = pool.alloc(UNIT);
    let b = pool.alloc(10 * UNIT);
    pool.free(b);
    let cut = pool.shared.get_mut().take_releasable(5 * UNIT);
    let cut = cut.expect("five units");
    pool.check();
    let more = pool.shared.get_mut().take_releasable(5 * UNIT);
    assert!(more.is_none(), "that much is on its way");
    assert_eq!(pool.reserved_bytes(), 11 * UNIT);
    let refused = pool.try_grant(&Request::new(6 * UNIT));
    assert!(refused.is_err(), "5 units are left, and the limit is full");
    let block = pool.alloc(5 * UNIT);
    assert_eq!(pool.shared.get_mut().report().leaving_bytes, 5 * UNIT);
    pool.shared.get_mut().released(cut);
    pool.check();
    assert_eq!(pool.reserved_bytes(), 6 * UNIT);
    pool.free(block);
    assert_eq!(pool.shared.get_mut().report().leaving_bytes, 0);
}

#[test]
fn a_source_of_whole_regions_gets_the_newest_one_back_too() {
    let mut pool = Pool::new(ranged(UNIT, GIB));
    let kept = pool.alloc(UNIT);
    let large = pool.alloc(10 * UNIT);
    pool.free(large);
    // Less than the region is wanted, but all of it is released.
    let ours = pool.shared.get_mut();
    ours.set_limit(700 * KIB);
    let ticket = ours.take_releasable_region(4 * KIB).expect("a region");
    assert_eq!(ticket.range().bytes(), 10 * UNIT);
    let more = ours.take_releasable_region(10 * UNIT);
    assert!(more.is_none(), "so much is on its way");
    ours.released(ticket);
    let more = ours.take_releasable_region(1);
    assert!(more.is_none(), "a block is in the other");
    pool.free(kept);
}

#[test]
fn s7_2_a_release_refused_in_the_middle_keeps_what_went_before_it() {
    let mut pool = Pool::new(ranged(MIB, GIB));
    let blocks = [1, 2, 4].map(|mib| pool.alloc(mib * MIB));
    pool.free_all(blocks);
    let ticket = pool.shared.get_mut().take_releasable(u64::MAX);
    let ticket = ticket.expect("the largest but the newest");
    assert_eq!(ticket.range().bytes(), 2 * MIB);
    // The other regions serve during the release.
    let _block = pool.alloc(MIB);
    pool.shared.get_mut().released(ticket);
    pool.check();
    let ticket = pool.shared.get_mut().take_releasable(u64::MAX);
    let ticket = ticket.expect("the 4 MiB are free");
    assert_eq!(ticket.range().bytes(), 4 * MIB);
    pool.shared.get_mut().release_refused(ticket);
    pool.check();
    assert_eq!(pool.reserved_bytes(), 5 * MIB);
    let _block = pool.alloc(4 * MIB);
}

/// A `FixedRange` takes back only its end, so the first region is refused until the last one has been released.
#[test]
fn a_region_that_cannot_go_back_does_not_keep_the_others() {
    let pool = RegionPool::new(ranged(MIB, GIB), common::table(16)).expect("good");
    let mut shared = Shared::new(pool, FixedRange::new(common::range(BASE, 64 * MIB)));
    let blocks = [1, 2, 4].map(|mib| {
        let grant = shared.alloc(&Request::new(mib * MIB));
        grant.expect("room").block
    });
    assert_eq!(blocks[0].addr().get(), BASE);
    for block in blocks {
        shared.free(block).expect("its block");
    }
    while shared.trim() > 0 {
        shared.get_mut().check_invariants().expect("sound");
    }
    assert_eq!(shared.source().used_bytes(), 0);
}
