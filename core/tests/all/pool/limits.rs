//! The limits: buffers, bytes, age; clearing and closing.

use std::num::NonZeroU32;

use larder_core::pool::{Pool, PoolAllocator, PoolConfig};
use larder_core::{Addr, AddrRange, BlockAllocator, FixedRange, Request};
use larder_model::Source;

use super::rig::{AnyPool, Rig, counters, fixed, upstream_fixed};

/// 1000 and 1001 bytes are 1024 and 1280 with the default's alignment of 256.
fn by_bytes(limit_bytes: u64) -> Rig {
    Rig::new(PoolConfig::new(100, limit_bytes))
}

#[test]
fn s2_10_the_byte_cap_is_exact() {
    for (limit_bytes, idle) in [(3071, 2), (3072, 3), (3073, 3)] {
        let mut rig = by_bytes(limit_bytes);
        let blocks = rig.burst(3, 1000);
        blocks.into_iter().for_each(|block| rig.free(block));
        let report = rig.pool.report();
        assert_eq!(
            (report.idle_buffers, report.idle_bytes),
            (idle, u64::from(idle) * 1024)
        );
        assert_eq!(rig.pool.counters().evicted, u64::from(3 - idle));
        rig.check();
    }
}

#[test]
fn s2_10_the_byte_cap_evicts_the_oldest_as_many_as_it_takes() {
    let mut rig = by_bytes(4096);
    let small = rig.burst(4, 1000);
    small.into_iter().for_each(|block| rig.free(block));
    rig.pair(2500);
    let report = rig.pool.report();
    assert_eq!((report.idle_buffers, report.idle_bytes), (2, 2560 + 1024));
    assert_eq!(rig.pool.counters().evicted, 3);
    rig.check();
}

#[test]
fn s2_10_a_buffer_above_the_byte_cap_goes_alone() {
    let mut rig = by_bytes(4096);
    rig.pair(1000);
    rig.pair(4096);
    assert_eq!(
        rig.pool.report().idle_bytes,
        4096,
        "as large as the cap: kept"
    );
    rig.pair(1000);
    assert_eq!(rig.pool.report().idle_bytes, 1024);
    rig.pair(4097);
    assert_eq!(
        rig.pool.report().idle_bytes,
        1024,
        "larger: the others stay"
    );
    assert_eq!(rig.pool.counters(), counters(0, 4, 4, 3));
    rig.check();
}

/// More idle buffers would not have helped.
#[test]
fn s2_10_evictions_for_bytes_do_not_grow_the_limit_of_buffers() {
    let mut rig = by_bytes(2048);
    for _ in 0..10 {
        let blocks = rig.burst(4, 1000);
        blocks.into_iter().for_each(|block| rig.free(block));
    }
    assert_eq!(rig.limit(), 100);
}

fn the_oldest_goes(mut pool: impl AnyPool, unit: u64) {
    (1..=4).for_each(|size| pool.pair(size * unit));
    assert_eq!(pool.idle(), 3);
    // The buffer of one unit went; 2, 3, 4 are there.
    let kept: Vec<_> = (2..=4).map(|size| pool.alloc(size * unit)).collect();
    assert_eq!(pool.counters(), counters(3, 4, 4, 1));
    let _one = pool.alloc(unit);
    assert_eq!(pool.counters(), counters(3, 4, 5, 1));
    drop(kept);
}

#[test]
fn s2_4_the_limit_of_buffers_is_exact_and_the_oldest_goes() {
    the_oldest_goes(upstream_fixed(3), 1);
    the_oldest_goes(Rig::new(fixed(3)), 1000);
}

#[test]
fn s2_10_what_is_idle_for_so_many_steps_goes_and_not_a_step_earlier() {
    let config = PoolConfig {
        age_steps: NonZeroU32::new(3),
        ..PoolConfig::new(8, u64::MAX)
    };
    let mut rig = Rig::new(config);
    rig.pair(1000);
    rig.pool.end_step();
    rig.pair(5000);
    for idle in [2, 1, 0] {
        rig.pool.end_step();
        // The younger was freed a step later.
        let expected = if idle == 2 { 2 } else { idle };
        assert_eq!(rig.pool.report().idle_buffers, expected);
        rig.check();
    }
    rig.drain();
    assert_eq!(rig.pool.stats().reserved_bytes, 0);
}

#[test]
fn s2_10_a_buffer_in_use_now_and_then_does_not_age() {
    let mut rig = Rig::new(PoolConfig::default());
    rig.pair(1000);
    for _ in 0..10 {
        (1..PoolConfig::DEFAULT_AGE_STEPS).for_each(|_| rig.pool.end_step());
        rig.pair(1000);
    }
    assert_eq!(rig.calls().grows, 1);
    assert_eq!(rig.pool.report().idle_buffers, 1);
}

#[test]
fn s2_10_a_lowered_limit_holds_at_once_and_is_no_eviction() {
    let mut rig = Rig::new(fixed(8));
    (1..=6).for_each(|size| rig.pair(1000 * size));
    rig.pool.set_limits(4, u64::MAX).unwrap();
    assert_eq!(rig.pool.report().idle_buffers, 4);
    // 3072, 4096, 5120 and 6144 bytes.
    rig.pool.set_limits(4, 6144 + 5119).unwrap();
    assert_eq!(
        (rig.pool.report().idle_buffers, rig.pool.report().idle_bytes),
        (1, 6144)
    );
    assert_eq!(rig.pool.counters().evicted, 0);
    rig.check();
    rig.drain();
    assert_eq!(rig.calls().releases, 5);
}

fn shared(config: PoolConfig) -> PoolAllocator<Source> {
    PoolAllocator::new(Rig::new(config).pool, Source::new(0x1_0000, 1 << 20))
}

fn clearing(mut pool: impl AnyPool, released_bytes: u64) {
    let out = pool.alloc(100);
    pool.pair(200);
    pool.pair(300);
    pool.clear();
    assert_eq!(pool.counters(), counters(0, 0, 0, 0));
    let calls = pool.calls();
    assert_eq!((calls.releases, calls.released_bytes), (2, released_bytes));
    pool.free(out);
    assert_eq!((pool.counters(), pool.idle()), (counters(0, 1, 0, 0), 1));
}

#[test]
fn s2_6_clearing_gives_back_what_is_idle_and_only_that() {
    clearing(upstream_fixed(8), 216 + 316);
    clearing(Rig::new(fixed(8)), 256 + 512);
    let pool = shared(fixed(8));
    let block = pool.alloc(&Request::new(200)).unwrap().block;
    pool.free(block).unwrap();
    assert_eq!((pool.clear(), pool.source().releases()), (256, 1));
}

#[test]
fn s2_6_closing_gives_back_what_is_idle_and_says_what_is_out() {
    let pool = shared(PoolConfig::default());
    let blocks = [100, 300, 500].map(|bytes| pool.alloc(&Request::new(bytes)).unwrap().block);
    let [first, second, third] = blocks;
    pool.free(first).unwrap();
    pool.source().refuse_release(1);
    let (report, source) = pool.close();
    assert_eq!((report.out_buffers, report.stuck_buffers), (2, 1));
    assert_eq!(source.releases(), 0);
    drop((second, third));
}

#[test]
fn s2_6_a_pool_taken_apart_can_go_on() {
    let pool = shared(PoolConfig::default());
    let block = pool.alloc(&Request::new(100)).unwrap().block;
    let (pool, source) = pool.into_parts();
    assert_eq!(pool.report().out_buffers, 1);
    let pool = PoolAllocator::<_>::new(pool, source);
    pool.free(block).unwrap();
    assert_eq!(pool.report().idle_buffers, 1);
}

#[test]
fn s3_1_clearing_the_counters_keeps_what_is_live_and_held() {
    let mut rig = Rig::new(PoolConfig::default());
    let (small, large) = (rig.alloc(1000), rig.alloc(5000));
    rig.free(large);
    let pool = Pool::new(PoolConfig::default(), 4).unwrap();
    let shared = PoolAllocator::new(pool, Source::new(0x1_0000, 1 << 20));
    let kept = shared.alloc(&Request::new(5000)).unwrap().block;
    shared.free(kept).unwrap();
    let kept = shared.alloc(&Request::new(1000)).unwrap().block;
    rig.pool.clear_stats();
    shared.clear_stats();
    for stats in [rig.pool.stats(), shared.stats()] {
        assert_eq!((stats.allocations, stats.largest_bytes), (0, 0));
        assert_eq!((stats.live_bytes, stats.peak_live_bytes), (1024, 1024));
        assert_eq!(stats.requested_bytes, 1000);
        assert_eq!(stats.reserved_bytes, stats.peak_reserved_bytes);
        assert_eq!(stats.limit_bytes, u64::MAX);
    }
    assert_eq!(rig.pool.report().idle_buffers, 1, "no buffer goes");
    assert_eq!(
        rig.pool.counters(),
        counters(0, 1, 2, 0),
        "TensorFlow's go on"
    );
    rig.check();
    let next = shared.alloc(&Request::new(1)).unwrap().block;
    assert_eq!(shared.allocation_id(&next), Some(3), "numbers go on");
    shared.free(next).unwrap();
    shared.free(kept).unwrap();
    rig.free(small);
}

#[test]
fn counters_of_all_allocators_begin_anew_and_upstreams_go_on() {
    let pool = Pool::new(fixed(2), 8).unwrap();
    let range = AddrRange::new(Addr::new(1 << 20), 1 << 20).unwrap();
    let pool = PoolAllocator::new(pool, FixedRange::new(range));
    let [one, two] = [100, 300].map(|bytes| pool.alloc(&Request::new(bytes)).unwrap().block);
    pool.free(two).unwrap();
    let (before, upstreams) = (pool.stats(), pool.counters());
    assert_eq!((before.allocations, upstreams.allocated), (2, 2));
    pool.clear_stats();
    let after = pool.stats();
    assert_eq!((after.allocations, after.largest_bytes), (0, 0));
    assert_eq!(after.peak_live_bytes, before.live_bytes);
    assert_eq!(
        (after.live_bytes, after.requested_bytes),
        (before.live_bytes, 100)
    );
    assert_eq!(pool.counters(), upstreams);
    assert_eq!(pool.allocation_id(&one), Some(1));
    let three = pool.alloc(&Request::new(50)).unwrap().block;
    assert_eq!(pool.allocation_id(&three), Some(3), "numbers go on");
    pool.free(one).unwrap();
    pool.free(three).unwrap();
}
