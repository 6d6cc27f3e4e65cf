//! Releasing regions: their records are reused, and a refusal loses nothing.

use crate::common::{self, GIB, KIB, MIB, Pool, Source, ranged};
use larder_core::{
    Addr, BestFit, BlockAllocator, FixedRange, Growth, RegionConfig, RegionPool, Request, Shared,
};

#[test]
fn s7_2_records_of_released_regions_are_used_again_over_10_000_rounds() {
    // The sink and three chunks: two blocks and what they leave.
    let mut pool = Pool::over(ranged(MIB, GIB), Source::new(), 4);
    for round in 0..10_000u64 {
        let a = pool.alloc(256);
        let b = pool.alloc(100 * KIB);
        pool.free_all([a, b]);
        let limit = if round % 2 == 0 { 0 } else { 100 };
        assert_eq!(pool.adjust(limit).limit_bytes, limit);
        assert_eq!(
            (
                pool.reserved_bytes(),
                pool.shared.get_mut().report().vacant_records
            ),
            (0, 3)
        );
        pool.adjust(GIB);
    }
    assert_eq!(pool.source().out_bytes(), 0);
}

#[test]
fn s7_2_records_of_trimmed_ends_are_used_again_over_1000_rounds() {
    let config = RegionConfig {
        growth: Growth::Range {
            unit_bytes: 64 * KIB,
            ahead_divisor: None,
        },
        ..RegionConfig::new(GIB)
    };
    let mut pool = Pool::over(config, Source::contiguous(), 4);
    let _anchor = pool.alloc(256);
    for _ in 0..1000 {
        let block = pool.alloc(MIB);
        pool.free(block);
        assert_eq!(pool.trim(), MIB);
        assert_eq!(pool.region_bytes(), [64 * KIB]);
        assert_eq!(pool.shared.get_mut().report().vacant_records, 1);
    }
}

#[test]
fn s7_2_a_refused_release_leaves_everything_usable() {
    let mut pool = Pool::of_regions(GIB);
    let blocks = [1, 2, 4].map(|mib| pool.alloc(mib * MIB));
    pool.free_all(blocks);
    let before = pool.picture();
    pool.source().refuse_releases.set(u32::MAX);
    let change = pool.adjust(0);
    assert_eq!(change.limit_bytes + change.excess_bytes, 7 * MIB);
    assert_eq!(pool.trim(), 0);
    pool.shared.get_mut().set_limit(GIB);
    pool.check();
    assert_eq!(pool.picture(), before);
    let blocks = [4, 2, 1].map(|mib| pool.alloc(mib * MIB));
    assert_eq!(pool.reserved_bytes(), 7 * MIB, "all of it serves again");
    pool.free_all(blocks);
    pool.source().refuse_releases.set(0);
    assert_eq!(pool.trim(), 7 * MIB);
}

#[test]
fn s7_2_a_release_refused_in_the_middle_keeps_what_went_before_it() {
    let mut pool = Pool::of_regions(GIB);
    let blocks = [1, 2, 4].map(|mib| pool.alloc(mib * MIB));
    pool.free_all(blocks);
    let ticket = pool
        .shared
        .get_mut()
        .take_releasable(u64::MAX)
        .expect("the largest but the newest");
    assert_eq!(ticket.range().bytes(), 2 * MIB);
    pool.check();
    assert!(
        pool.try_alloc(MIB).is_some(),
        "others serve while it is on its way"
    );
    pool.shared.get_mut().released(ticket);
    pool.check();
    let ticket = pool
        .shared
        .get_mut()
        .take_releasable(u64::MAX)
        .expect("the 4 MiB are free");
    assert_eq!(ticket.range().bytes(), 4 * MIB);
    pool.shared.get_mut().release_refused(ticket);
    pool.check();
    assert_eq!(pool.region_mib(), [1, 4]);
    assert!(pool.try_alloc(4 * MIB).is_some());
}

/// `trim`: "gives everything back that is free in whole regions". A `FixedRange` takes only the
/// end of what is out, so the first region is refused until the last has gone.
#[test]
fn a_region_that_cannot_go_back_does_not_keep_the_others() {
    let config = ranged(MIB, GIB);
    let pool = RegionPool::new(config, common::table(16)).expect("good");
    let range = common::range(0x10_0000, 64 * MIB);
    let mut shared = Shared::new(pool, FixedRange::new(range));
    let blocks = [1, 2, 4].map(|mib| {
        let grant = shared.alloc(&Request::new(mib * MIB));
        grant.expect("room").block
    });
    assert_eq!(blocks[0].addr(), Addr::new(0x10_0000));
    for block in blocks {
        shared.free(block).expect("its block");
    }
    while shared.trim() > 0 {
        shared.get_mut().check_invariants().expect("sound");
    }
    assert_eq!(shared.source().used_bytes(), 0);
}
