//! Large blocks that threads cache: they come back, no block is in two places, and memory that a
//! thread does not use is taken from it. Random programs that cache large blocks are in `heap`.

use std::alloc::Layout;

use larder_core::small::{LARGE_UNIT, MAX_LARGE_BYTES, ThreadCache};
use larder_core::sync::Ordering;

use super::directed::Directed;
use super::drive::World;
use super::faulty::{Faulty, Plan};
use super::verbs::ClaimOutcome;
use crate::config::Config;
use crate::thread::local::Local;

const MIB: usize = 1 << 20;

fn world(config: &Config) -> Directed {
    let mut world = World::with(Faulty::new(Plan::Willing), 1, 1, 256 * MIB, config);
    world.caches = true;
    Directed::new(world, 3)
}

/// Creates a world whose threads 0 and 1 have a heap.
fn two_threads() -> Directed {
    let mut heap = world(&Config::BALANCED);
    let small = [heap.make(0, 100), heap.make(1, 100)];
    heap.free(0, small);
    heap
}

/// Returns the bytes of large blocks that a thread caches.
fn cached(heap: &Directed, thread: usize) -> usize {
    // SAFETY: the thread's own cache, or one that stays empty.
    unsafe { ThreadCache::large_bytes(heap.threads[thread].cache) }
}

/// Frees blocks, and returns their addresses.
fn free_all(heap: &mut Directed, thread: usize, all: Vec<ClaimOutcome>) -> Vec<usize> {
    let places = all.iter().map(|block| block.start.addr()).collect();
    heap.free(thread, all);
    places
}

#[test]
fn blocks_freed_last_come_back_without_a_change_in_the_arena() {
    let mut heap = two_threads();
    for (bytes, count) in [(200_000, 8), (MIB, 4), (4 * MIB, 1), (MIB + 1, 2)] {
        let blocks = heap.make_all(0, bytes, count);
        let mut before = free_all(&mut heap, 0, blocks);
        let live = heap.process().live_bytes();
        let blocks = heap.make_all(0, bytes, count);
        assert_eq!(heap.process().live_bytes(), live);
        let mut after = free_all(&mut heap, 0, blocks);
        assert_eq!(heap.process().live_bytes(), live);
        before.sort_unstable();
        after.sort_unstable();
        assert_eq!(before, after, "{bytes}");
        let process = heap.process();
        heap.threads[0].flush(process);
        assert_eq!(cached(&heap, 0), 0);
    }
    heap.end([]);
}

#[test]
fn ticks_go_on_while_a_large_block_is_cached() {
    let mut heap = two_threads();
    let block = heap.make(1, MIB);
    heap.tick();
    heap.tick();
    heap.falls_idle();
    heap.free(1, [block]);
    assert!(heap.has_idle());
    heap.tick();
    heap.tick();
    heap.falls_idle();
    heap.end([]);
}

#[test]
fn a_block_serves_requests_that_leave_at_most_an_eighth() {
    let mut heap = two_threads();
    let process = heap.process();
    for (units, fits) in [(64, true), (57, true), (56, false), (65, false)] {
        let block = heap.make(0, 64 * LARGE_UNIT);
        let place = block.start;
        heap.free(0, [block]);
        let block = heap.make(0, units * LARGE_UNIT - 5);
        assert_eq!(cached(&heap, 0), 0, "a miss frees what is cached");
        let held = if fits { 64 } else { units };
        assert_eq!(process.bytes_at(block.start), Some(held * LARGE_UNIT));
        if fits {
            assert_eq!(block.start, place);
            let arena = process.arena_of(place).unwrap();
            let requested = arena.requested_at(place).unwrap() as usize;
            assert_eq!(requested, units * LARGE_UNIT, "a free with another layout");
        }
        heap.free(0, [block]);
        heap.threads[0].flush(process);
    }
    heap.end([]);
}

#[test]
fn a_block_with_slack_grows_into_it_and_its_end_is_dirty_when_it_shrinks() {
    let mut heap = two_threads();
    let (verbs, process) = (heap.world.verbs(), heap.process());
    let whole = heap.make(0, MIB);
    heap.free(0, [whole]);
    let block = heap.make(0, MIB - 100_000);
    let live = process.live_bytes();
    assert!(verbs.resize(block.start, block.layout, MIB - 50_000));
    assert_eq!(process.live_bytes(), live);
    let grown = Layout::from_size_align(MIB - 50_000, 8).unwrap();
    assert!(verbs.resize(block.start, grown, 200_000));
    assert!(process.live_bytes() < live, "a shrink frees the end");
    let block = ClaimOutcome::new(block.start, Layout::from_size_align(200_000, 8).unwrap(), 1);
    // The end was written as a part of the first block.
    let layout = Layout::from_size_align(MIB - 300_000, 8).unwrap();
    let zeroed = heap.try_make(0, layout, true);
    heap.end(zeroed.into_iter().chain([block]));
}

#[test]
fn all_of_a_block_with_slack_is_dirty_once_it_is_free() {
    let mut heap = two_threads();
    let whole = heap.make(0, MIB);
    heap.free(0, [whole]);
    let block = heap.make(0, MIB - 100_000);
    assert!(heap.process().free_large(block.start, MIB - 100_000));
    let zeroed = heap.try_make(0, Layout::from_size_align(MIB, 8).unwrap(), true);
    assert_eq!(zeroed.as_ref().unwrap().start, block.start);
    heap.end(zeroed);
}

#[test]
fn a_zeroed_block_from_the_cache_is_zero() {
    let mut heap = two_threads();
    for bytes in [200_000, MIB, 3 * MIB] {
        let block = heap.make(0, bytes);
        heap.free(0, [block]);
        let layout = Layout::from_size_align(bytes - 7, 8).unwrap();
        let block = heap.try_make(0, layout, true);
        heap.free(0, block);
    }
    heap.end([]);
}

#[test]
fn a_tick_takes_what_a_thread_has_not_used_since_the_last_one_and_returns_it() {
    let mut heap = two_threads();
    let blocks = heap.make_all(1, MIB, 3);
    heap.free(1, blocks);
    heap.tick();
    assert_eq!(cached(&heap, 1), 3 * MIB);
    assert!(heap.has_idle());
    // One of the three is used: the same block comes back to the same entry.
    let block = heap.make(1, MIB);
    heap.free(1, [block]);
    let before = heap.purged();
    heap.tick();
    assert_eq!(cached(&heap, 1), MIB);
    assert_eq!(heap.purged() - before, 2 * MIB as u64);
    heap.tick();
    assert_eq!(cached(&heap, 1), 0);
    // The thread continues as if nothing had happened.
    let block = heap.make(1, MIB);
    heap.free(1, [block]);
    assert_eq!(cached(&heap, 1), MIB);
    heap.tick();
    heap.tick();
    heap.falls_idle();
    heap.end([]);
}

#[test]
fn a_block_in_constant_use_is_not_taken() {
    let mut heap = two_threads();
    let block = heap.make(1, MIB);
    let place = block.start;
    heap.free(1, [block]);
    for _ in 0..40 {
        heap.tick();
        let block = heap.make(1, MIB);
        assert_eq!(block.start, place);
        heap.free(1, [block]);
    }
    assert_eq!(heap.purged(), 0);
    heap.end([]);
}

#[test]
fn a_trim_and_the_end_of_a_thread_return_all() {
    let mut heap = two_threads();
    for ends in [false, true] {
        let (live, blocks) = (heap.process().live_bytes(), heap.make_all(1, MIB, 4));
        heap.free(1, blocks);
        assert_eq!(cached(&heap, 1), 4 * MIB);
        match ends {
            true => heap.restart(1),
            false => assert!(heap.process().trim() >= 4 * MIB as u64),
        }
        assert_eq!(cached(&heap, 1), 0);
        assert_eq!(heap.process().live_bytes(), live);
    }
    heap.end([]);
}

#[test]
fn the_child_of_a_fork_finds_what_a_thread_had_cached() {
    let mut heap = two_threads();
    let process = heap.process();
    let blocks = heap.make_all(1, MIB, 2);
    heap.free(1, blocks);
    let live = process.live_bytes();
    let mine = heap.threads[0].heap();
    // SAFETY: thread 1 is never used again.
    unsafe { process.pool.park_orphans(mine) };
    process.forked.store(1, Ordering::Relaxed);
    *heap.threads[1] = Local::new();
    heap.tick();
    assert_eq!(process.live_bytes(), live, "a tick would copy its memory");
    // The next thread adopts the heap.
    let small = heap.make(2, 100);
    assert_eq!(cached(&heap, 2), 2 * MIB);
    let blocks = heap.make_all(2, MIB, 2);
    assert_eq!(process.live_bytes(), live);
    heap.free(2, blocks);
    assert_eq!(cached(&heap, 2), 2 * MIB);
    heap.end([small]);
}

#[test]
fn all_threads_together_cache_a_bounded_number_of_bytes() {
    let mut heap = world(&Config::BALANCED);
    heap.threads.resize_with(20, || Box::new(Local::new()));
    let first = heap.make_all(0, 4 * MIB, 2);
    heap.free(0, first);
    assert_eq!(cached(&heap, 0), MAX_LARGE_BYTES, "the share of one thread");
    for thread in 1..20 {
        let share = MAX_LARGE_BYTES / (thread + 1);
        let long = heap.make(thread, share + LARGE_UNIT);
        let blocks = heap.make_all(thread, 300_000, 12);
        heap.free(thread, blocks);
        let before = cached(&heap, thread);
        assert!(before > 0 && before <= share, "{thread}");
        heap.free(thread, [long]);
        assert_eq!(cached(&heap, thread), before, "longer than a share");
    }
    for thread in 0..20 {
        let blocks = heap.make_all(thread, 300_000, 2);
        heap.free(thread, blocks);
    }
    let all: usize = (0..20).map(|thread| cached(&heap, thread)).sum();
    assert!(all > 0 && all <= MAX_LARGE_BYTES, "{all}");
    heap.end([]);
}

#[test]
fn a_full_cache_leaves_further_blocks_to_the_arena_until_a_request_does_not_fit() {
    let mut heap = two_threads();
    let process = heap.process();
    let blocks = heap.make_all(0, 200_000, 30);
    let live = process.live_bytes();
    heap.free(0, blocks);
    let granted = 13 * LARGE_UNIT;
    assert_eq!(cached(&heap, 0), 8 * granted);
    assert_eq!(process.live_bytes(), live - 22 * granted as u64);
    let block = heap.make(0, 400_000);
    assert_eq!(cached(&heap, 0), 0);
    heap.free(0, [block]);
    assert!(cached(&heap, 0) > 400_000);
    heap.end([]);
}

#[test]
fn under_pressure_nothing_is_cached() {
    let mut heap = two_threads();
    let process = heap.process();
    let mut blocks = heap.make_all(0, MIB, 15);
    heap.free(0, blocks.pop());
    assert_eq!(cached(&heap, 0), MIB);
    heap.os().limit_memory(16 * MIB);
    heap.os().pass(2000);
    // More bytes than are allocated between two checks.
    for _ in 0..20 {
        let block = process.alloc_large(MIB, 16).unwrap();
        assert!(process.free_large(block.as_ptr(), MIB));
    }
    while process.memory_limit.is_due() || process.purger.has_work() {
        process.work(0, 0);
    }
    assert!(process.memory_limit.under_pressure());
    heap.free(0, blocks.pop());
    assert_eq!(cached(&heap, 0), 0, "nor what was cached before");
    heap.end(blocks);
}

#[test]
fn a_cached_block_is_no_block_to_a_free_or_a_resize() {
    let mut heap = two_threads();
    let process = heap.process();
    let block = heap.make(0, MIB);
    let (start, layout) = (block.start, block.layout);
    heap.free(0, [block]);
    assert_eq!(process.bytes_at(start), None);
    assert!(!process.free_large(start, MIB), "freed twice");
    assert!(!process.resize_large(start, MIB, 2 * MIB));
    assert!(!process.resize_large(start, MIB, MIB / 2));
    for thread in 0..2 {
        let local = &mut heap.threads[thread];
        // SAFETY: no block starts there.
        assert_eq!(unsafe { process.cache(local.cache_of_frees, start) }, 0);
        // SAFETY: no block starts there.
        assert!(!unsafe { local.cache_large(start, process) });
    }
    let block = heap.try_make(0, layout, false).unwrap();
    assert_eq!((block.start, process.bytes_at(start)), (start, Some(MIB)));
    heap.end([block]);
}

#[test]
fn heaps_that_check_blocks_and_systems_without_a_barrier_cache_none() {
    let guarded = Config {
        guard_one_in: 1000,
        ..Config::BALANCED
    };
    for (config, has_barrier) in [
        (Config::HARDENED, true),
        (Config::CHECKING, true),
        (guarded, true),
        (Config::BALANCED, false),
    ] {
        let mut heap = world(&config);
        heap.os().be(|manner| manner.has_barrier = has_barrier);
        let process = heap.process();
        for _ in 0..3 {
            let block = heap.make(0, MIB);
            heap.free(0, [block]);
            let kept: usize = process
                .arenas()
                .map(|arena| arena.numbers().0 as usize)
                .sum();
            assert!(kept < MIB, "{kept}");
        }
        heap.end([]);
    }
}

#[test]
fn cached_blocks_count_as_idle() {
    let mut heap = two_threads();
    let before = heap.stats();
    let blocks = heap.make_all(1, MIB, 3);
    assert_eq!(
        heap.stats().large_bytes,
        before.large_bytes + 3 * MIB as u64
    );
    heap.free(1, blocks);
    let after = heap.stats();
    assert_eq!(
        (after.live_bytes, after.large_bytes),
        (before.live_bytes, before.large_bytes)
    );
    assert_eq!(after.kept_bytes, before.kept_bytes + 3 * MIB as u64);
    heap.end([]);
}
