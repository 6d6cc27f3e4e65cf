//! Upstream's rules of CONFORMANCE 7.2 one by one, and stable bytes of upstream's and ours.

use crate::common::{Alike, Call, GIB, KIB, MIB, Random, Upstream, both, both_with_regions};
use larder_core::{Block, PoolStats};

#[test]
fn s7_2_the_limit_may_rise_at_any_time_and_lowering_above_what_is_held_releases_nothing() {
    let mut pool = Upstream::new(2 * MIB);
    let _first = pool.alloc(MIB);
    assert!(pool.try_alloc(2 * MIB).is_none());
    pool.adjust(3 * MIB);
    let block = pool.alloc(2 * MIB);
    pool.free(block);
    pool.source.take_log();
    for limit in [GIB, 4 * MIB, 3 * MIB + 1, 3 * MIB, u64::MAX, 3 * MIB] {
        assert_eq!(pool.adjust(limit).limit_bytes, limit);
        assert_eq!(
            pool.region_mib(),
            [1, 2],
            "free memory stays within {limit}"
        );
    }
    assert_eq!(pool.source.take_log(), []);
}

#[test]
fn s7_2_regions_are_released_in_address_order_until_enough_is_free() {
    let mut pool = Upstream::new(GIB);
    let blocks = [1, 2, 4, 8].map(|mib| pool.alloc(mib * MIB));
    pool.free_all(blocks.into());
    pool.source.take_log();
    assert_eq!(pool.adjust(14 * MIB).limit_bytes, 14 * MIB);
    assert_eq!(
        pool.source.take_log(),
        [Call::Release(MIB)],
        "15 held, 1 too many"
    );
    assert_eq!(pool.adjust(13 * MIB + 1).limit_bytes, 13 * MIB + 1);
    assert_eq!(pool.source.take_log(), [Call::Release(2 * MIB)]);
    assert_eq!(pool.adjust(0).limit_bytes, 0);
    assert_eq!(
        pool.source.take_log(),
        [Call::Release(4 * MIB), Call::Release(8 * MIB)]
    );
    assert!(pool.try_alloc(1).is_none());
}

#[test]
fn s7_2_a_shrink_that_fails_keeps_what_it_freed_and_clamps_the_limit() {
    let mut pool = Upstream::new(GIB);
    let [a, b, c] = [1, 2, 4].map(|mib| pool.alloc(mib * MIB));
    pool.free(a);
    pool.free(c);
    let change = pool.adjust(MIB);
    assert_eq!((change.limit_bytes, change.excess_bytes), (2 * MIB, 0));
    assert_eq!(pool.region_mib(), [2]);
    // Upstream forgets it: what comes back later stays held.
    pool.free(b);
    assert_eq!(pool.region_mib(), [2]);
    assert_eq!(pool.stats().limit_bytes, 2 * MIB);
}

/// Bytes asked for by the next growth after a shrink to `limit` that leaves `held_mib` held.
fn step_after_shrink(limit: u64, held_mib: u64) -> u64 {
    let mut pool = Upstream::new(GIB);
    let free = pool.alloc(MIB);
    let _used = (held_mib > 0).then(|| pool.alloc(held_mib * MIB));
    pool.free(free);
    pool.adjust(limit);
    assert_eq!(pool.reserved_bytes(), held_mib * MIB);
    pool.adjust(GIB);
    pool.source.take_log();
    let _one = pool.alloc(1);
    match pool.source.take_log()[..] {
        [Call::Grow(bytes)] => bytes,
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn s7_2_growth_restarts_after_a_release_from_the_room_left_at_most_1_mib() {
    assert_eq!(step_after_shrink(2 * MIB, 2), 256, "T equals the limit");
    assert_eq!(step_after_shrink(2 * MIB + 1, 2), 256);
    assert_eq!(step_after_shrink(2 * MIB + 257, 2), 512);
    assert_eq!(step_after_shrink(2 * MIB + 700 * KIB, 2), 700 * KIB);
    assert_eq!(step_after_shrink(3 * MIB - 1, 2), MIB);
    assert_eq!(
        step_after_shrink(MIB, 2),
        MIB,
        "the original's subtraction wraps"
    );
    assert_eq!(step_after_shrink(0, 0), 256);
    assert_eq!(step_after_shrink(MIB - 1, 0), MIB);
    assert_eq!(step_after_shrink(5000, 0), 5120);
}

#[test]
fn s7_2_without_a_release_pass_the_step_is_kept() {
    let mut pool = Upstream::new(GIB);
    let _block = pool.alloc(20 * MIB);
    pool.adjust(32 * MIB);
    pool.adjust(GIB);
    pool.source.take_log();
    let _block = pool.alloc(20 * MIB);
    assert_eq!(pool.source.take_log(), [Call::Grow(32 * MIB)]);
}

#[test]
fn s7_2_stable_is_the_sum_of_regions_with_something_in_use() {
    let mut upstream = Upstream::new(GIB);
    assert_eq!(upstream.pool_stats(), PoolStats::default());
    let _blocks = [MIB, 2 * MIB, 256].map(|bytes| upstream.alloc(bytes));
    assert_eq!(upstream.region_mib(), [1, 2, 4]);
    let regions = [1, 2, 4].map(|mib| (mib * GIB, mib * MIB));
    for mut pool in both_with_regions(&regions) {
        let [a, b, c] = [MIB, 2 * MIB, 256].map(|bytes| pool.alloc(bytes));
        let stats = |pool: &mut dyn Alike| {
            let stats = pool.pool_stats();
            (stats.pool_bytes / MIB, stats.stable_bytes / MIB)
        };
        assert_eq!(stats(&mut *pool), (7, 7));
        pool.free(b);
        assert_eq!(stats(&mut *pool), (7, 5));
        pool.free(a);
        assert_eq!(stats(&mut *pool), (7, 4), "256 bytes hold 4 MiB");
        pool.free(c);
        assert_eq!(stats(&mut *pool), (7, 0));
    }
}

/// A heap after some hundred random allocations and frees.
fn random_heap(pool: &mut dyn Alike, seed: u64) -> Vec<Block> {
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let mut live = Vec::new();
    for _ in 0..200 {
        if random.below(3) > 0 {
            let log2 = 8 + random.below(16);
            live.extend(pool.try_alloc(1 + random.below(1 << log2)));
        } else if !live.is_empty() {
            let i = random.index(live.len());
            pool.free(live.swap_remove(i));
        }
    }
    let keep = random.below(1 + live.len() as u64 / 8) as usize;
    pool.free_all(live.split_off(keep));
    live
}

#[test]
fn am_4_stable_is_what_shrinking_to_0_leaves_for_every_random_heap() {
    for seed in 0..40 {
        for mut pool in both(256 * MIB) {
            let live = random_heap(&mut *pool, seed);
            let stable = pool.pool_stats().stable_bytes;
            let change = pool.adjust(0);
            assert_eq!(pool.reserved_bytes(), stable);
            assert_eq!(change.limit_bytes + change.excess_bytes, stable);
            pool.free_all(live);
            pool.adjust(0);
            assert_eq!((pool.reserved_bytes(), pool.source().out_bytes()), (0, 0));
        }
    }
}
