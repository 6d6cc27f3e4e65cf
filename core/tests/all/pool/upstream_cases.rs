//! Upstream's own test cases (pool_allocator_test.cc), retold with their numbers.

use larder_core::ConfigError;
use larder_core::pool::{Pool, PoolConfig};
use larder_model::tensorflow::pool::{NO_ROUNDING, PoolAllocator, buffer_bytes};

use super::rig::{AnyPool, Counted, Rig, align, counters, fixed, upstream_fixed, upstream_growing};

fn alignments_are_kept<P: AnyPool>(mut pool: P) {
    for log2 in 0..16 {
        let block = pool.try_alloc(111, 1 << log2).unwrap();
        assert!(P::addr(&block).is_aligned(align(1 << log2)));
        assert!(P::bytes(&block) >= 111);
        pool.check();
        pool.free(block);
    }
}

#[test]
fn s2_9_every_alignment_up_to_32_kib_is_kept() {
    alignments_are_kept(upstream_fixed(0));
    alignments_are_kept(Rig::new(fixed(0)));
}

#[test]
fn s2_9_the_limit_goes_from_2_to_100_after_1000_evictions() {
    let mut pool = upstream_growing(2);
    let ten_pairs = |pool: &mut dyn FnMut(u64)| (0..10).for_each(|i| pool(64 << i));
    ten_pairs(&mut |bytes| pool.pair(bytes));
    assert_eq!(pool.counters(), counters(0, 10, 10, 8));
    assert_eq!(pool.limit(), 2);
    // The limit rises at the 1002nd free, the second of round 101.
    for _ in 1..100 {
        ten_pairs(&mut |bytes| pool.pair(bytes));
    }
    assert_eq!(pool.counters(), counters(0, 1000, 1000, 998));
    pool.pair(64);
    assert_eq!(pool.counters(), counters(0, 1001, 1001, 999));
    pool.pair(128);
    assert_eq!(pool.counters(), counters(0, 0, 0, 0));
    assert_eq!(pool.limit(), 100);
    (2..10).for_each(|i| pool.pair(64 << i));
    for _ in 101..121 {
        ten_pairs(&mut |bytes| pool.pair(bytes));
    }
    assert_eq!(pool.counters(), counters(200, 208, 8, 0));
    assert_eq!(pool.limit(), 100);
}

#[test]
fn s2_9_the_name_is_given_back() {
    let upstream = PoolAllocator::new("pinned", 2, false, NO_ROUNDING, Counted::default());
    assert_eq!(upstream.unwrap().name(), "pinned");
    let config = PoolConfig {
        name: "pinned",
        ..fixed(2)
    };
    assert_eq!(Rig::new(config).pool.name(), "pinned");
}

#[test]
fn s2_1_a_growing_limit_of_0_is_an_error() {
    let upstream = PoolAllocator::new("pool", 0, true, NO_ROUNDING, Counted::default());
    assert!(upstream.is_none());
    let made = Pool::new(PoolConfig::new(0, u64::MAX), 4);
    assert_eq!(made.map(|_| ()), Err(ConfigError::PoolLimit));
    let rig = Rig::new(PoolConfig::new(1, u64::MAX));
    assert_eq!(rig.pool.set_limits(0, 5), Err(ConfigError::PoolLimit));
    assert_eq!(rig.pool.with(|pool| pool.config().limit_bytes), u64::MAX);
    // A limit that does not grow may be set to 0.
    let mut rig = Rig::new(fixed(1));
    rig.pair(8);
    rig.pool.set_limits(0, u64::MAX).unwrap();
    assert_eq!((rig.calls().releases, rig.limit()), (1, 0));
    rig.check();
}

#[test]
fn s2_2_sizes_have_a_prefix_of_16_and_the_alignment_if_that_is_more() {
    let bytes = |bytes, to| buffer_bytes(bytes, align(to), NO_ROUNDING);
    assert_eq!(bytes(100, 64), Some(180));
    assert_eq!(bytes(100, 16), Some(116));
    assert_eq!(bytes(100, 1), Some(116));
    assert_eq!(bytes(100, 32), Some(148));
    assert_eq!(bytes(u64::MAX - 16, 1), Some(u64::MAX));
    assert_eq!(bytes(u64::MAX - 15, 1), None);
    assert_eq!(bytes(1, 1 << 63), Some((1 << 63) + 17));
    assert_eq!(bytes(1 << 63, 1 << 63), None);
}

/// In our pool, an alignment up to that of the buffers costs nothing, and a larger one the difference.
#[test]
fn s2_10_without_a_prefix_an_alignment_costs_the_difference() {
    let config = PoolConfig::default();
    let bytes = |bytes, to| config.buffer_bytes(bytes, align(to));
    assert_eq!(bytes(1024, 256), Some(1024));
    assert_eq!(bytes(1024, 1), Some(1024));
    assert_eq!(bytes(1024, 512), Some(1280));
    let mut rig = Rig::new(config);
    for log2 in 0..16 {
        let block = rig.try_alloc(1, 1 << log2).unwrap();
        assert!(block.addr().is_aligned(align(1 << log2)));
        rig.check();
    }
}
