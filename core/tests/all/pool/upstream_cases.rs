//! Upstream's own test cases (pool_allocator_test.cc), retold with their numbers.

use larder_core::pool::{Pool, PoolConfig};
use larder_core::{Align, AllocError, ConfigError, Request};
use larder_model::tensorflow::pool::{NO_ROUNDING, PoolAllocator, buffer_bytes};

use super::rig::{AnyPool, Counted, Rig, align, counters, fixed, upstream_fixed, upstream_growing};

fn zero_bytes_count_nothing(mut pool: impl AnyPool) {
    assert!(pool.try_alloc(0, 4).is_none());
    assert_eq!(pool.counters(), counters(0, 0, 0, 0));
    pool.check();
}

#[test]
fn s2_9_zero_bytes_are_an_error_that_counts_nothing() {
    zero_bytes_count_nothing(upstream_fixed(2));
    zero_bytes_count_nothing(Rig::new(fixed(2)));
    let refused = Rig::new(fixed(2)).pool.alloc(&Request::new(0)).unwrap_err();
    assert_eq!(refused, AllocError::ZeroSize);
}

fn everything_passes_through(mut pool: impl AnyPool) {
    for round in 1..=3 {
        assert!(pool.try_alloc(0, 4).is_none());
        pool.pair(4);
        pool.pair(12);
        let calls = pool.calls();
        assert_eq!((calls.grows, calls.releases), (2 * round, 2 * round));
    }
    assert_eq!(pool.counters(), counters(0, 0, 0, 0));
    assert_eq!(pool.idle(), 0);
    pool.check();
}

#[test]
fn s2_9_a_limit_of_0_passes_everything_through_and_counts_nothing() {
    everything_passes_through(upstream_fixed(0));
    everything_passes_through(Rig::new(fixed(0)));
}

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
    // The raise comes at the 1002nd free, the second of round 101.
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
fn s2_9_the_counted_sub_allocator_sees_these_calls_and_bytes() {
    let mut pool = upstream_fixed(2);
    let first = pool.alloc(16, Align::ONE).unwrap();
    let place = first.addr;
    assert_eq!(pool.counters(), counters(0, 0, 1, 0));
    assert_eq!((pool.calls().grows, pool.calls().grown_bytes), (1, 32));
    pool.free(first);
    assert_eq!(pool.counters(), counters(0, 1, 1, 0));

    let again = pool.alloc(16, Align::ONE).unwrap();
    assert_eq!(again.addr, place);
    assert_eq!(pool.counters(), counters(1, 1, 1, 0));
    pool.free(again);
    assert_eq!(pool.counters(), counters(1, 2, 1, 0));

    let four = pool.alloc(4, Align::ONE).unwrap();
    assert_ne!(four.addr, place);
    assert_eq!(pool.counters(), counters(1, 2, 2, 0));
    pool.free(four);
    assert_eq!(pool.counters(), counters(1, 3, 2, 0));

    let two = pool.alloc(2, Align::ONE).unwrap();
    assert_eq!(pool.counters(), counters(1, 3, 3, 0));
    let calls = pool.calls();
    assert_eq!((calls.grows, calls.grown_bytes), (3, 16 + 4 + 2 + 48));
    assert_eq!((calls.releases, calls.released_bytes), (0, 0));
    pool.free(two);
    assert_eq!(pool.counters(), counters(1, 4, 3, 1));
    let calls = pool.calls();
    assert_eq!((calls.releases, calls.released_bytes), (1, 32));

    pool.pair(4);
    pool.pair(2);
    assert_eq!(pool.counters(), counters(3, 6, 3, 1));
    pool.clear();
    assert_eq!(pool.counters(), counters(0, 0, 0, 0));
    let calls = pool.calls();
    assert_eq!((calls.releases, calls.released_bytes), (3, 70));
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
    let mut rig = Rig::new(PoolConfig::new(1, u64::MAX));
    assert_eq!(rig.pool.set_limits(0, 5), Err(ConfigError::PoolLimit));
    assert_eq!(rig.pool.config().limit_bytes, u64::MAX);
    // As a number it may fall to 0 where it does not grow.
    let mut rig = Rig::new(fixed(1));
    rig.pair(8);
    rig.pool.set_limits(0, u64::MAX).unwrap();
    rig.drain();
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

/// The block lies strictly above the prefix even where that is aligned already.
#[test]
fn s2_2_an_aligned_block_starts_strictly_above_its_prefix() {
    // The sub-allocator gives odd multiples of 16, so 16 further is a multiple of 32.
    let block = upstream_fixed(1).alloc(100, align(32)).unwrap();
    let start = block.addr.get() - 48;
    assert_eq!(start % 32, 16);
    assert_eq!(block.bytes(), 148 - 48);
}

/// A size is a size: the same buffer serves another alignment of equal total.
#[test]
fn s2_3_the_same_buffer_serves_another_alignment_of_equal_size() {
    let mut pool = upstream_fixed(1);
    let block = pool.alloc(164, Align::ONE).unwrap();
    assert_eq!(pool.calls().grown_bytes, 180);
    pool.free(block);
    let block = pool.alloc(100, align(64)).unwrap();
    assert!(block.addr.is_aligned(align(64)));
    assert_eq!(pool.counters(), counters(1, 1, 1, 0));
}

fn serve_in_this_order<P: AnyPool>(mut pool: P, expected: [usize; 3]) {
    let blocks = pool.burst(3, 100);
    let places: Vec<_> = blocks.iter().map(P::addr).collect();
    blocks.into_iter().for_each(|block| pool.free(block));
    for index in expected {
        assert_eq!(P::addr(&pool.alloc(100)), places[index]);
    }
    pool.check();
}

#[test]
fn s2_3_the_oldest_of_equal_sizes_serves_upstream_and_the_newest_here() {
    serve_in_this_order(upstream_fixed(4), [0, 1, 2]);
    serve_in_this_order(Rig::new(PoolConfig::default()), [2, 1, 0]);
}

fn no_larger_buffer_serves(mut pool: impl AnyPool, sizes: [u64; 3]) {
    sizes.into_iter().for_each(|bytes| pool.pair(bytes));
    assert_eq!(pool.counters(), counters(0, 3, 3, 0));
}

#[test]
fn s2_3_no_larger_buffer_serves() {
    no_larger_buffer_serves(upstream_fixed(4), [101, 100, 99]);
    no_larger_buffer_serves(Rig::new(fixed(4)), [769, 768, 512]);
}

/// Ours: an alignment up to the buffers' own costs nothing, one above it the difference.
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
