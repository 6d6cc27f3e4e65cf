//! Upstream's own test cases (pool_allocator_test.cc), retold with their numbers.

use larder_core::pool::{Layout, Pool, PoolConfig};
use larder_core::{Align, AllocError, ConfigError, Request};

use super::rig::{Rig, counters, fixed, tables};

#[test]
fn s2_9_zero_bytes_are_an_error_that_counts_nothing() {
    let mut rig = Rig::new(fixed(2));
    let refused = rig.pool.alloc(&Request::new(0)).unwrap_err();
    assert_eq!(refused, AllocError::ZeroSize);
    assert_eq!(rig.pool.counters(), counters(0, 0, 0, 0));
    rig.check();
}

#[test]
fn s2_9_a_limit_of_0_passes_everything_through_and_counts_nothing() {
    let mut rig = Rig::new(fixed(0));
    for round in 1..=3 {
        assert!(rig.pool.alloc(&Request::new(0)).is_err());
        rig.pair(4);
        rig.pair(12);
        assert_eq!((rig.grows, rig.releases), (2 * round, 2 * round));
    }
    assert_eq!(rig.pool.counters(), counters(0, 0, 0, 0));
    assert_eq!(rig.pool.report().idle_buffers, 0);
    rig.check();
}

#[test]
fn s2_9_every_alignment_up_to_32_kib_is_kept() {
    let mut rig = Rig::new(fixed(0));
    for log2 in 0..16 {
        let block = rig.alloc_aligned(111, 1 << log2);
        assert!(block.addr().is_aligned(Align::new(1 << log2).unwrap()));
        assert!(block.bytes() >= 111);
        rig.check();
        rig.free(block);
    }
}

#[test]
fn s2_9_the_limit_goes_from_2_to_100_after_1000_evictions() {
    let mut rig = Rig::new(PoolConfig::tensorflow(2));
    let ten_pairs = |rig: &mut Rig| (0..10).for_each(|i| rig.pair(64 << i));
    ten_pairs(&mut rig);
    assert_eq!(rig.pool.counters(), counters(0, 10, 10, 8));
    assert_eq!(rig.limit(), 2);
    // The raise comes at the 1002nd free, the second of round 101.
    for _ in 1..100 {
        ten_pairs(&mut rig);
    }
    assert_eq!(rig.pool.counters(), counters(0, 1000, 1000, 998));
    rig.pair(64);
    assert_eq!(rig.pool.counters(), counters(0, 1001, 1001, 999));
    rig.pair(128);
    assert_eq!(rig.pool.counters(), counters(0, 0, 0, 0));
    assert_eq!(rig.limit(), 100);
    (2..10).for_each(|i| rig.pair(64 << i));
    for _ in 101..121 {
        ten_pairs(&mut rig);
    }
    assert_eq!(rig.pool.counters(), counters(200, 208, 8, 0));
    assert_eq!(rig.limit(), 100);
    rig.check();
}

#[test]
fn s2_9_the_counted_sub_allocator_sees_these_calls_and_bytes() {
    let mut rig = Rig::new(fixed(2));
    let first = rig.alloc(16);
    let place = first.addr();
    assert_eq!(rig.pool.counters(), counters(0, 0, 1, 0));
    assert_eq!((rig.grows, rig.grown_bytes), (1, 32));
    rig.free(first);
    assert_eq!(rig.pool.counters(), counters(0, 1, 1, 0));

    let again = rig.alloc(16);
    assert_eq!(again.addr(), place);
    assert_eq!(rig.pool.counters(), counters(1, 1, 1, 0));
    rig.free(again);
    assert_eq!(rig.pool.counters(), counters(1, 2, 1, 0));

    let four = rig.alloc(4);
    assert_ne!(four.addr(), place);
    assert_eq!(rig.pool.counters(), counters(1, 2, 2, 0));
    rig.free(four);
    assert_eq!(rig.pool.counters(), counters(1, 3, 2, 0));

    let two = rig.alloc(2);
    assert_eq!(rig.pool.counters(), counters(1, 3, 3, 0));
    assert_eq!((rig.grows, rig.grown_bytes), (3, 16 + 4 + 2 + 48));
    assert_eq!((rig.releases, rig.released_bytes), (0, 0));
    rig.free(two);
    assert_eq!(rig.pool.counters(), counters(1, 4, 3, 1));
    assert_eq!((rig.releases, rig.released_bytes), (1, 32));

    rig.pair(4);
    rig.pair(2);
    assert_eq!(rig.pool.counters(), counters(3, 6, 3, 1));
    rig.pool.clear();
    rig.drain();
    assert_eq!(rig.pool.counters(), counters(0, 0, 0, 0));
    assert_eq!((rig.releases, rig.released_bytes), (3, 70));
    rig.check();
}

#[test]
fn s2_9_the_name_is_given_back() {
    let config = PoolConfig {
        name: "pinned",
        ..fixed(2)
    };
    assert_eq!(Rig::new(config).pool.name(), "pinned");
}

#[test]
fn s2_1_a_growing_limit_of_0_is_an_error() {
    let (buffers, slots) = tables(4);
    let made = Pool::new(PoolConfig::tensorflow(0), buffers, slots);
    assert_eq!(made.map(|_| ()), Err(ConfigError::PoolLimit));
    let mut rig = Rig::new(PoolConfig::tensorflow(1));
    assert_eq!(rig.pool.set_limits(0, 5), Err(ConfigError::PoolLimit));
    assert_eq!(rig.pool.config().limit_bytes, u64::MAX);
    // As a number it may fall to 0 where it does not grow.
    let mut rig = Rig::new(fixed(1));
    rig.pair(8);
    rig.pool.set_limits(0, u64::MAX).unwrap();
    rig.drain();
    assert_eq!((rig.releases, rig.limit()), (1, 0));
    rig.check();
}

#[test]
fn s2_2_sizes_have_a_prefix_of_16_and_the_alignment_if_that_is_more() {
    let config = fixed(1);
    let bytes = |bytes, align| config.buffer_bytes(bytes, Align::new(align).unwrap());
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
    let mut rig = Rig::new(fixed(1));
    // The rig gives odd multiples of 16, so 16 further is a multiple of 32.
    let block = rig.alloc_aligned(100, 32);
    let start = block.addr().get() - 48;
    assert_eq!(start % 32, 16);
    assert_eq!(block.bytes(), 148 - 48);
    rig.check();
}

/// A size is a size: the same buffer serves another alignment of equal total.
#[test]
fn s2_3_the_same_buffer_serves_another_alignment_of_equal_size() {
    let mut rig = Rig::new(fixed(1));
    let block = rig.alloc_aligned(164, 1);
    assert_eq!(rig.grown_bytes, 180);
    rig.free(block);
    let block = rig.alloc_aligned(100, 64);
    assert!(block.addr().is_aligned(Align::new(64).unwrap()));
    assert_eq!(rig.pool.counters(), counters(1, 1, 1, 0));
    rig.check();
}

#[test]
fn s2_3_the_oldest_of_equal_sizes_serves_upstream_and_the_newest_here() {
    for (config, expected) in [(fixed(4), [0, 1, 2]), (PoolConfig::default(), [2, 1, 0])] {
        let mut rig = Rig::new(config);
        let blocks = rig.burst(3, 100);
        let places: Vec<_> = blocks.iter().map(|block| block.addr()).collect();
        blocks.into_iter().for_each(|block| rig.free(block));
        for index in expected {
            assert_eq!(rig.alloc(100).addr(), places[index]);
        }
        rig.check();
    }
}

#[test]
fn s2_3_no_larger_buffer_serves() {
    let mut rig = Rig::new(fixed(4));
    rig.pair(101);
    rig.pair(100);
    rig.pair(99);
    assert_eq!(rig.pool.counters(), counters(0, 3, 3, 0));
}

/// Ours: an alignment up to the buffers' own costs nothing, one above it the difference.
#[test]
fn s2_10_without_a_prefix_an_alignment_costs_the_difference() {
    let config = PoolConfig::default();
    assert_eq!(config.layout, Layout::Plain);
    let bytes = |bytes, align| config.buffer_bytes(bytes, Align::new(align).unwrap());
    assert_eq!(bytes(1024, 256), Some(1024));
    assert_eq!(bytes(1024, 1), Some(1024));
    assert_eq!(bytes(1024, 512), Some(1280));
    let mut rig = Rig::new(config);
    for log2 in 0..16 {
        let block = rig.alloc_aligned(1, 1 << log2);
        assert!(block.addr().is_aligned(Align::new(1 << log2).unwrap()));
        rig.check();
    }
}
