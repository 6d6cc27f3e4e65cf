//! Plans: their owners, a plan during another one that fails, and threads.

use super::bench::{Bench, PAGE, config, pages};
use super::player::Player;
use larder_core::pages::{Backing, PagePool, PageStats};
use larder_core::{BestFit, BlockAllocator, FreeError, Request, Shared, StreamId};
use larder_model::{PageDevice, Random};

#[test]
fn a_plan_of_another_allocator_changes_nothing() {
    let mut ours = Bench::new(config(64, Backing::Billed));
    let mut other = Bench::new(config(64, Backing::Billed));
    let [block] = other.blocks([1]);
    let mut plan = ours.plan(&pages(3));
    let picture = other.picture();
    assert_eq!(other.paged.get_mut().next_call(&mut plan), None);
    other.paged.get_mut().done(&mut plan);
    other.paged.get_mut().refused(&mut plan);
    assert_eq!((other.picture(), other.held()), (picture.clone(), 1));
    // Our allocator is unaffected.
    assert!(ours.finish(plan).is_some());
    assert_eq!(ours.held(), 3);

    let plan = ours.plan(&pages(3));
    assert_eq!(other.paged.get_mut().finish(plan), None);
    other.check();
    ours.check();
    assert_eq!((other.picture(), other.held()), (picture, 1));
    other.free(block, None);
}

#[test]
fn the_next_call_stays_the_same_until_its_outcome_is_reported() {
    let mut bench = Bench::new(config(64, Backing::Billed));
    let mut plan = bench.plan(&pages(2));
    let call = bench.paged.get_mut().next_call(&mut plan);
    assert!(call.is_some());
    assert_eq!(bench.paged.get_mut().next_call(&mut plan), call);
    assert!(bench.finish(plan).is_some());
}

#[test]
fn a_plan_that_fails_leaves_the_others_as_they_are() {
    for refused in 0..12 {
        let mut player = Player::after("moving");
        let bench = &mut player.bench;
        let mut first = bench.plan(&pages(5));
        let second = bench.plan(&pages(3));
        for _ in 0..refused {
            bench.call(&mut first);
        }
        bench.device().refuse_in(Some(0));
        bench.call(&mut first);
        bench.device().refuse_in(None);
        let second = bench.finish(second).unwrap();
        bench.begin(&second, &pages(3));
        let first = bench.finish(first);
        assert_eq!(first.is_some(), refused >= 7, "{refused}");
    }
}

#[test]
fn a_block_of_another_allocator_is_not_pinned() {
    let mut bench = Bench::new(config(64, Backing::Billed));
    let [_a] = bench.blocks([1]);
    let [b] = Bench::new(config(64, Backing::Billed)).blocks([1]);
    assert_eq!(bench.paged.get_mut().pin(&b), Err(FreeError::Unknown));
}

#[test]
fn four_threads_end_with_the_right_totals() {
    for backing in [
        Backing::Billed,
        Backing::Budget(48 * PAGE),
        Backing::InPlace,
    ] {
        let pool = Bench::new(config(512, backing)).paged;
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let pool = &pool;
                scope.spawn(move || work(pool, thread));
            }
        });
        let device = pool.source();
        assert_eq!(device.violation(), None);
        pool.with(|paged| paged.check_invariants()).unwrap();
        let stats = pool.stats();
        assert_eq!((stats.live_bytes, stats.requested_bytes), (0, 0));
        assert_eq!(stats.reserved_bytes, device.held_bytes());
        if let Backing::Budget(bytes) = backing {
            assert!(device.peak_bytes() <= bytes);
        }
        pool.release(u64::MAX);
        assert_eq!((pool.stats().reserved_bytes, device.held_bytes()), (0, 0));
        let mut empty = PageStats::default();
        let stats = pool.page_stats();
        (empty.address_bytes, empty.looks) = (stats.address_bytes, stats.looks);
        assert_eq!(stats, empty);
    }
}

fn work(pool: &Shared<PagePool<'_>, PageDevice>, thread: u8) {
    let device = pool.source();
    let mut random = Random::new(u64::from(thread));
    let mut live = Vec::new();
    for _ in 0..400 {
        // Later calls might never return on a broken list.
        if pool.with(|paged| paged.check_invariants()).is_err() {
            return;
        }
        let bytes = 1 + random.below(6 * PAGE);
        let request = Request::new(bytes).on(StreamId::new(thread)).without_wait();
        if let Ok(grant) = pool.alloc(&request) {
            device.begin_use(grant.block.range(), request.stream);
            live.push(grant.block);
        }
        if live.len() > 4 {
            let block = live.swap_remove(random.below(5) as usize);
            device.end_use(block.range(), None);
            pool.free(block).unwrap();
        }
        if random.below(50) == 0 {
            pool.release(4 * PAGE);
        }
    }
    for block in live {
        device.end_use(block.range(), None);
        pool.free(block).unwrap();
    }
}
