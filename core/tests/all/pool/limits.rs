//! Ageing, clearing and closing. The scripts test most limits.

use larder_core::pool::{Pool, PoolAllocator, PoolConfig};
use larder_core::{BlockAllocator, Request};
use larder_model::Source;

use super::rig::{AnyPool, Rig, counters, fixed};

#[test]
fn s2_10_a_buffer_in_use_now_and_then_does_not_age() {
    let mut rig = Rig::new(PoolConfig::default());
    rig.pair(1000);
    for _ in 0..10 {
        rig.end_steps(u64::from(PoolConfig::DEFAULT_AGE_STEPS) - 1);
        rig.pair(1000);
    }
    assert_eq!(rig.calls().grows, 1);
    assert_eq!(rig.pool.report().idle_buffers, 1);
}

fn shared(config: PoolConfig) -> PoolAllocator<Source> {
    let pool = Pool::new(config, 8).unwrap();
    PoolAllocator::new(pool, Source::new(0x1_0000, 1 << 20))
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
    let pool = shared(PoolConfig::default());
    let large = pool.alloc(&Request::new(5000)).unwrap().block;
    pool.free(large).unwrap();
    let small = pool.alloc(&Request::new(1000)).unwrap().block;
    assert_eq!(pool.stats().allocations, 2);
    pool.clear_stats();
    let stats = pool.stats();
    assert_eq!((stats.allocations, stats.largest_bytes), (0, 0));
    assert_eq!((stats.live_bytes, stats.peak_live_bytes), (1024, 1024));
    assert_eq!(stats.requested_bytes, 1000);
    assert_eq!(stats.reserved_bytes, stats.peak_reserved_bytes);
    assert_eq!(stats.limit_bytes, u64::MAX);
    assert_eq!(pool.report().idle_buffers, 1, "no buffer goes");
    let counters = counters(0, 1, 2, 0);
    assert_eq!(pool.counters(), counters, "TensorFlow's go on");
    let next = pool.alloc(&Request::new(1)).unwrap().block;
    let numbers = [&small, &next].map(|block| pool.allocation_id(block));
    assert_eq!(numbers, [Some(2), Some(3)], "numbers go on");
    pool.free(next).unwrap();
    pool.free(small).unwrap();
}

#[test]
fn clearing_gives_the_bytes_back_to_the_sub_allocator() {
    let pool = shared(fixed(8));
    let block = pool.alloc(&Request::new(200)).unwrap().block;
    pool.free(block).unwrap();
    assert_eq!((pool.clear(), pool.source().releases()), (256, 1));
}
