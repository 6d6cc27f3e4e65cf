//! Threads beyond the heaps with sets of their own: they share those, and hoard little.

use larder_core::small::{RemoteQueue, SizeClass};

use super::directed::Directed;
use super::drive::World;
use super::faulty::{CALLS, Call, Faulty, Plan};
use super::verbs::ClaimOutcome;
use crate::config::Config;
use crate::stats::Stats;
use crate::thread::local::Local;

const SIZE: usize = 64;

fn class() -> SizeClass {
    SizeClass::of(SIZE, 8).unwrap()
}

/// Runs a random program of six threads of which `primaries` have sets of their own. Returns how
/// many calls of each kind it made, and how many null results.
fn program(plan: Plan, seed: u64, primaries: usize, operations: usize) -> ([usize; CALLS], usize) {
    let mut world = World::new(plan, seed, 6);
    world.verbs().process.share_after(primaries);
    world.run(operations);
    let counts = (Call::ALL.map(|call| world.os.calls(call)), world.nulls);
    world.end();
    counts
}

#[test]
fn random_programs_of_many_secondaries_lose_nothing() {
    for seed in 1..=4 {
        for primaries in 1..=3 {
            let (_, nulls) = program(Plan::Willing, seed, primaries, 2500);
            assert_eq!(nulls, 0, "seed {seed}, {primaries} primaries");
        }
    }
}

#[test]
fn secondaries_lose_nothing_over_a_system_that_refuses() {
    let (calls, _) = program(Plan::Willing, 1, 1, 260);
    for call in [Call::Reserve, Call::Commit] {
        let count = calls[call as usize];
        assert!(count > 2, "too few calls to tell: {calls:?}");
        for n in 1..=count {
            program(Plan::Once(call, n), 1, 1, 260);
            program(Plan::From(call, n), 1, 1, 260);
        }
    }
}

/// Creates threads that have each allocated one block.
fn crowd(primaries: usize, threads: usize) -> (Directed, Vec<ClaimOutcome>) {
    let mut crowd = Directed::new(World::new(Plan::Willing, 1, 1), threads);
    crowd.process().share_after(primaries);
    let blocks = (0..threads).map(|thread| crowd.make(thread, SIZE));
    let blocks = blocks.collect();
    (crowd, blocks)
}

/// Returns the set that a thread uses.
fn primary(crowd: &Directed, thread: usize) -> *const RemoteQueue {
    // SAFETY: the thread's heap, which is never freed.
    let heap = unsafe { crowd.threads[thread].heap().as_ref() }.unwrap();
    // SAFETY: the thread owns it, and does nothing else now.
    unsafe {
        crowd
            .process()
            .pool
            .with_set(heap, |remote_queue, _| remote_queue)
    }
}

#[test]
fn threads_beyond_the_primaries_use_their_spans() {
    let (crowd, blocks) = crowd(2, 10);
    let stats = Stats::count(crowd.process(), &Local::new());
    assert_eq!(stats.span_bytes, 2 * (64 << 10));
    assert_eq!(stats.heaps, 10);
    assert_eq!(crowd.process().pool.primaries(), 2);
    crowd.end(blocks);
}

#[test]
fn secondaries_are_spread_over_the_primaries_and_go_where_threads_have_ended() {
    let (mut crowd, mut blocks) = crowd(2, 6);
    let (first, second) = (primary(&crowd, 0), primary(&crowd, 1));
    assert!(first != second);
    let at = |set| {
        (0..6)
            .filter(|thread| primary(&crowd, *thread) == set)
            .count()
    };
    assert_eq!((at(first), at(second)), (3, 3));
    let left: Vec<_> = (2..6)
        .filter(|thread| primary(&crowd, *thread) == first)
        .collect();
    for thread in &left {
        crowd.restart(*thread);
    }
    for thread in &left {
        blocks.push(crowd.make(*thread, SIZE));
        assert_eq!(primary(&crowd, *thread), first);
    }
    crowd.end(blocks);
}

#[test]
fn a_thread_gets_few_blocks_at_first_and_a_secondary_keeps_none_when_its_thread_ends() {
    let (mut crowd, blocks) = crowd(1, 2);
    assert!((0..2).all(|thread| crowd.ready(thread, SIZE) < 16));
    let taken: Vec<_> = (0..2000).map(|_| crowd.make(1, SIZE)).collect();
    let kept = taken.into_iter().map(|block| {
        crowd.free(1, [block]);
        crowd.ready(1, SIZE)
    });
    assert!(kept.max().unwrap() >= 127, "as many as others in the end");
    crowd.restart(1);
    assert!(crowd.process().pool.adopt().is_none());
    let secondary = crowd.process().pool.adopt_secondary().unwrap();
    // SAFETY: adopted just now.
    assert!(unsafe { &*secondary.cache() }.are_empty());
    // SAFETY: adopted just now.
    unsafe { crowd.process().park(secondary) };
    crowd.end(blocks);
}

#[test]
fn a_bin_that_only_fills_grows_until_it_holds_what_the_policy_allows() {
    let (mut crowd, mut blocks) = crowd(1, 2);
    blocks.extend((0..1000).map(|_| crowd.make(0, SIZE)).collect::<Vec<_>>());
    let whole = class().bin_blocks(32 << 10);
    let first = crowd.ready(1, SIZE);
    for (number, block) in blocks.drain(..).enumerate() {
        crowd.free(1, [block]);
        let ready = crowd.ready(1, SIZE);
        let freed = first + number + 1;
        assert!(ready == freed || freed > whole, "{ready} of {freed}");
        assert!(ready <= whole);
    }
    crowd.end(blocks);
}

/// Forks the first of four threads: a secondary heap was parked already, two have cached blocks.
fn forked() -> (Directed, Vec<ClaimOutcome>) {
    let (mut crowd, blocks) = crowd(1, 4);
    crowd.restart(3);
    assert!(crowd.ready(1, SIZE) > 0);
    let pool = &crowd.process().pool;
    // SAFETY: the other threads' parts are never used again.
    unsafe { pool.park_orphans(crowd.threads[0].heap()) };
    for thread in 1..4 {
        *crowd.threads[thread] = Local::new();
    }
    (crowd, blocks)
}

#[test]
fn what_a_fork_left_in_the_bins_of_secondaries_comes_back() {
    let (mut crowd, mut blocks) = forked();
    blocks.push(crowd.make(1, SIZE));
    crowd.end(blocks);
}

#[test]
fn secondaries_that_a_fork_left_behind_are_taken_over_once() {
    let (mut crowd, mut blocks) = forked();
    crowd.threads.push(Box::new(Local::new()));
    let mut heaps: Vec<_> = (1..5)
        .map(|thread| {
            blocks.push(crowd.make(thread, SIZE));
            crowd.threads[thread].heap()
        })
        .collect();
    heaps.sort_unstable();
    heaps.dedup();
    assert_eq!(heaps.len(), 4, "two threads with one heap");
    crowd.end(blocks);
}

#[test]
fn two_heaps_per_processor_have_sets_of_their_own() {
    let os = Faulty::new(Plan::Willing);
    let world = World::with(os, 1, 1, 64 << 20, &Config::BALANCED);
    let process = world.verbs().process;
    let heaps: Vec<_> = (0..6).map(|_| process.adopt().unwrap()).collect();
    let own = heaps.iter().filter(|heap| !heap.is_secondary());
    assert_eq!(own.count(), 2);
    for heap in heaps {
        // SAFETY: adopted above.
        unsafe { process.park(heap) };
    }
    world.end();
}

/// Returns the bytes that the caches of all threads hold.
fn cached_bytes(crowd: &Directed) -> usize {
    let bytes = |thread: usize| -> usize {
        let of_class =
            |class: SizeClass| crowd.threads[thread].ready_blocks(class) * class.block_bytes();
        SizeClass::all().map(of_class).sum()
    };
    (0..crowd.threads.len()).map(bytes).sum()
}

#[test]
fn the_more_threads_there_are_the_less_each_of_them_caches() {
    // In full bins: what all threads may cache at one processor, and the least that each may.
    let (all, least) = (384 * (32 << 10), 128 << 10);
    for count in [4, 40, 160] {
        let (mut crowd, blocks) = crowd(4, count);
        for thread in 0..count {
            for _ in 0..2 {
                let made = (0..2500).map(|number| crowd.make(thread, 16 + number * 7 % 1000));
                let made: Vec<_> = made.collect();
                crowd.free(thread, made);
            }
        }
        let bound = (all / count).max(least) * count;
        let cached = cached_bytes(&crowd);
        assert!(
            cached <= bound,
            "{count} threads cache {cached} of {bound} bytes"
        );
        assert!(
            count > 4 || cached > 2 << 20,
            "few threads keep what they like: {cached}"
        );
        crowd.end(blocks);
    }
}
