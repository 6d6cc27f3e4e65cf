//! A range that grows at its end and is cut there, in whole units.

use std::num::NonZeroU32;

use crate::common::{Call, GIB, KIB, Pool, Source};
use larder_core::{BestFit, Growth, RegionConfig};

/// Ours, in units of 64 KiB, over memory that continues.
fn ranged(limit: u64) -> Pool {
    let config = RegionConfig {
        growth: Growth::Range {
            unit_bytes: 64 * KIB,
            ahead_divisor: None,
        },
        ..RegionConfig::new(limit)
    };
    Pool::over(config, Source::contiguous(), 256)
}

#[test]
fn ours_trimming_gives_back_whole_units_of_the_free_end() {
    let mut pool = ranged(GIB);
    let a = pool.alloc(100 * KIB);
    let b = pool.alloc(300 * KIB);
    assert_eq!(pool.region_bytes(), [448 * KIB]);
    assert_eq!(pool.trim(), 0, "48 KiB are no unit");
    pool.free(b);
    pool.source().take_log();
    assert_eq!(
        pool.trim(),
        320 * KIB,
        "5 of the 5.4 units behind the first block"
    );
    assert_eq!(pool.source().take_log(), [Call::Release(320 * KIB)]);
    assert_eq!(pool.region_bytes(), [128 * KIB]);
    let b = pool.alloc(300 * KIB);
    assert_eq!(
        pool.region_bytes(),
        [448 * KIB],
        "it grows where it was cut"
    );
    pool.free_all([a, b]);
    assert_eq!(pool.trim(), 448 * KIB);
    assert_eq!((pool.regions().len(), pool.source().out_bytes()), (0, 0));
}

#[test]
fn ours_a_lowered_limit_cuts_no_more_units_than_it_needs() {
    let mut pool = ranged(GIB);
    let _a = pool.alloc(64 * KIB);
    let b = pool.alloc(10 * 64 * KIB);
    pool.free(b);
    pool.source().take_log();
    assert_eq!(pool.adjust(9 * 64 * KIB).excess_bytes, 0);
    assert_eq!(pool.region_bytes(), [9 * 64 * KIB]);
    assert_eq!(pool.adjust(8 * 64 * KIB + 1).excess_bytes, 0);
    assert_eq!(pool.region_bytes(), [8 * 64 * KIB], "a unit is not cut");
    assert_eq!(pool.adjust(0).excess_bytes, 64 * KIB);
}

/// CONFORMANCE 7.10: prefer what meets the goal with the least excess.
#[test]
fn ours_a_wholly_free_range_gives_the_units_asked_for_and_keeps_the_rest() {
    let mut pool = ranged(GIB);
    let block = pool.alloc(10 * 64 * KIB);
    pool.free(block);
    assert_eq!(pool.adjust(9 * 64 * KIB).excess_bytes, 0);
    assert_eq!(pool.region_bytes(), [9 * 64 * KIB]);
}

#[test]
fn ours_a_cut_that_is_refused_rejoins_the_end() {
    let mut pool = ranged(GIB);
    // 11 units; behind the first half of one, ten and a half are free and ten can go.
    let _a = pool.alloc(32 * KIB);
    let b = pool.alloc(640 * KIB);
    pool.free(b);
    let before = pool.picture();
    pool.source().take_log();
    pool.source().refuse_releases.set(1);
    assert_eq!(pool.trim(), 0);
    assert_eq!(pool.source().take_log(), [Call::ReleaseRefused(640 * KIB)]);
    assert_eq!(pool.picture(), before);
    let block = pool.alloc(672 * KIB);
    assert_eq!(pool.reserved_bytes(), 704 * KIB);
    pool.free(block);
}

#[test]
fn ours_while_a_cut_is_on_its_way_the_limit_counts_it_and_growth_goes_elsewhere() {
    let mut pool = ranged(704 * KIB);
    let _a = pool.alloc(64 * KIB);
    let b = pool.alloc(640 * KIB);
    pool.free(b);
    let ticket = pool
        .shared
        .get_mut()
        .take_releasable(320 * KIB)
        .expect("five units");
    pool.check();
    assert!(
        pool.shared.get_mut().take_releasable(320 * KIB).is_none(),
        "that much is on its way"
    );
    assert_eq!(pool.reserved_bytes(), 704 * KIB);
    assert!(
        pool.try_alloc(384 * KIB).is_none(),
        "320 KiB are left, and the limit is full"
    );
    let block = pool.alloc(320 * KIB);
    assert_eq!(pool.shared.get_mut().report().leaving_bytes, 320 * KIB);
    pool.shared.get_mut().released(ticket);
    pool.check();
    assert_eq!(pool.reserved_bytes(), 384 * KIB);
    pool.free(block);
    assert_eq!(pool.shared.get_mut().report().leaving_bytes, 0);
}

#[test]
fn ours_a_full_table_cannot_cut_but_loses_nothing() {
    let config = RegionConfig {
        growth: Growth::Range {
            unit_bytes: 64 * KIB,
            ahead_divisor: None,
        },
        ..RegionConfig::new(GIB)
    };
    // The sink and two chunks.
    let mut pool = Pool::over(config, Source::contiguous(), 3);
    let a = pool.alloc(256);
    let b = pool.try_alloc(63 * KIB);
    assert!(b.is_none(), "no record for the rest");
    assert_eq!(pool.trim(), 0);
    pool.free(a);
    assert_eq!(
        pool.trim(),
        pool.shared.get_mut().stats().peak_reserved_bytes
    );
}

#[test]
fn ours_growth_ahead_is_cut_at_the_limit_and_a_refused_one_asks_for_the_least_that_helps() {
    const UNIT: u64 = 64 * KIB;
    let config = RegionConfig {
        growth: Growth::Range {
            unit_bytes: UNIT,
            ahead_divisor: NonZeroU32::new(2),
        },
        ..RegionConfig::new(20 * UNIT)
    };
    let mut pool = Pool::over(config, Source::contiguous(), 256);
    let grown = |pool: &mut Pool, units: u64| {
        let _block = pool.alloc(units * UNIT);
        pool.source().take_log()
    };
    assert_eq!(grown(&mut pool, 10), [Call::Grow(10 * UNIT)]);
    assert_eq!(
        grown(&mut pool, 1),
        [Call::Grow(5 * UNIT)],
        "half of what is held, ahead"
    );
    assert_eq!(grown(&mut pool, 4), [], "it was ahead");
    pool.source().refuse_grows.set(1);
    let calls = [Call::GrowRefused(5 * UNIT), Call::Grow(UNIT)];
    assert_eq!(
        grown(&mut pool, 1),
        calls,
        "7.5 units ahead are cut at the limit"
    );
    pool.source().refuse_grows.set(u32::MAX);
    let result = pool.unchanged(|pool| pool.try_alloc(UNIT));
    assert!(result.is_none());
    let calls = [Call::GrowRefused(4 * UNIT), Call::GrowRefused(UNIT)];
    assert_eq!(pool.source().take_log(), calls);
    pool.source().refuse_grows.set(0);
    assert_eq!(grown(&mut pool, 4), [Call::Grow(4 * UNIT)]);
    assert!(pool.try_alloc(1).is_none());
}

#[test]
fn ours_a_source_of_whole_regions_gets_the_newest_one_back_too() {
    let config = RegionConfig {
        growth: Growth::Range {
            unit_bytes: 64 * KIB,
            ahead_divisor: None,
        },
        ..RegionConfig::new(GIB)
    };
    let mut pool = Pool::new(config);
    let kept = pool.alloc(64 * KIB);
    let large = pool.alloc(10 * 64 * KIB);
    pool.free(large);
    assert_eq!(pool.region_bytes(), [64 * KIB, 640 * KIB]);
    // Less than the region is wanted, and all of it goes.
    let _ = pool.shared.get_mut().set_limit(700 * KIB);
    let ticket = pool
        .shared
        .get_mut()
        .take_releasable_region(4 * KIB)
        .unwrap();
    assert_eq!(ticket.range().bytes(), 640 * KIB);
    assert!(
        pool.shared
            .get_mut()
            .take_releasable_region(640 * KIB)
            .is_none(),
        "so much is on its way"
    );
    pool.shared.get_mut().released(ticket);
    assert!(
        pool.shared.get_mut().take_releasable_region(1).is_none(),
        "a block is in the other"
    );
    pool.free(kept);
}
