//! Threads beyond the heaps with sets of their own: they share those, and hoard little.

use std::alloc::Layout;

use larder_core::small::{RemoteQueue, SizeClass};

use super::drive::World;
use super::faulty::{CALLS, Call, Faulty, Plan};
use super::verbs::Verbs;
use crate::config::Config;
use crate::stats::Stats;
use crate::thread::local::Local;

const LAYOUT: Layout = Layout::new::<[u8; 64]>();

fn class() -> SizeClass {
    SizeClass::of(LAYOUT.size(), LAYOUT.align()).unwrap()
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

/// Threads in a world of their own.
struct Crowd {
    world: World,
    threads: Vec<Local>,
}

impl Crowd {
    /// Creates threads that have each allocated one block.
    fn new(primaries: usize, threads: usize) -> (Self, Vec<*mut u8>) {
        let world = World::new(Plan::Willing, 1, 1);
        world.verbs().process.share_after(primaries);
        let mut crowd = Self {
            world,
            threads: (0..threads).map(|_| Local::new()).collect(),
        };
        let blocks = (0..threads).map(|thread| crowd.alloc(thread)).collect();
        (crowd, blocks)
    }

    fn verbs(&self) -> Verbs {
        self.world.verbs()
    }

    fn alloc(&mut self, thread: usize) -> *mut u8 {
        let verbs = self.verbs();
        let block = verbs.alloc(&mut self.threads[thread], LAYOUT, false);
        assert!(!block.is_null());
        block
    }

    fn free(&mut self, thread: usize, block: *mut u8) {
        self.verbs().free(&mut self.threads[thread], block, LAYOUT);
    }

    fn stop(&mut self, thread: usize) {
        let process = self.verbs().process;
        self.threads[thread].end(process);
        self.threads[thread] = Local::new();
    }

    /// Returns the set that a thread uses.
    fn primary(&self, thread: usize) -> *const RemoteQueue {
        // SAFETY: the thread's heap, which is never freed.
        let heap = unsafe { self.threads[thread].heap().as_ref() }.unwrap();
        // SAFETY: the thread owns it, and does nothing else now.
        unsafe { heap.with_primary(|remote_queue, _| remote_queue) }
    }

    fn stats(&self) -> Stats {
        Stats::count(self.verbs().process, &Local::new())
    }

    fn end(mut self, blocks: Vec<*mut u8>) {
        self.world.assert_sound();
        for block in blocks {
            self.free(0, block);
        }
        for thread in 0..self.threads.len() {
            self.stop(thread);
        }
        self.world.end();
    }
}

#[test]
fn threads_beyond_the_primaries_use_their_spans() {
    let (crowd, blocks) = Crowd::new(2, 10);
    let stats = crowd.stats();
    assert_eq!(stats.span_bytes, 2 * (64 << 10));
    assert_eq!(stats.heaps, 10);
    assert_eq!(crowd.verbs().process.pool.primaries(), 2);
    crowd.end(blocks);
}

#[test]
fn secondaries_are_spread_over_the_primaries_and_go_where_threads_have_ended() {
    let (mut crowd, mut blocks) = Crowd::new(2, 6);
    let (first, second) = (crowd.primary(0), crowd.primary(1));
    assert!(first != second);
    let at = |crowd: &Crowd, primary| {
        (0..6)
            .filter(|thread| crowd.primary(*thread) == primary)
            .count()
    };
    assert_eq!((at(&crowd, first), at(&crowd, second)), (3, 3));
    let left: Vec<_> = (2..6)
        .filter(|thread| crowd.primary(*thread) == first)
        .collect();
    for thread in &left {
        crowd.stop(*thread);
    }
    for thread in &left {
        blocks.push(crowd.alloc(*thread));
        assert_eq!(crowd.primary(*thread), first);
    }
    crowd.end(blocks);
}

#[test]
fn a_thread_gets_few_blocks_at_first_and_a_secondary_keeps_none_when_its_thread_ends() {
    let (mut crowd, blocks) = Crowd::new(1, 2);
    let ready = |crowd: &Crowd, thread: usize| crowd.threads[thread].ready_blocks(class());
    assert!((0..2).all(|thread| ready(&crowd, thread) < 16));
    let taken: Vec<_> = (0..2000).map(|_| crowd.alloc(1)).collect();
    let kept = taken.into_iter().map(|block| {
        crowd.free(1, block);
        ready(&crowd, 1)
    });
    assert!(kept.max().unwrap() >= 127, "as many as others in the end");
    crowd.stop(1);
    assert!(crowd.verbs().process.pool.adopt().is_none());
    let secondary = crowd.verbs().process.pool.adopt_secondary().unwrap();
    // SAFETY: adopted just now.
    assert!(unsafe { &*secondary.cache() }.are_empty());
    // SAFETY: adopted just now.
    unsafe { crowd.verbs().process.park(secondary) };
    crowd.end(blocks);
}

#[test]
fn a_bin_that_only_fills_grows_until_it_holds_what_the_policy_allows() {
    let (mut crowd, mut blocks) = Crowd::new(1, 2);
    blocks.extend((0..1000).map(|_| crowd.alloc(0)).collect::<Vec<_>>());
    let whole = class().bin_blocks(32 << 10);
    let first = crowd.threads[1].ready_blocks(class());
    for (number, block) in blocks.drain(..).enumerate() {
        crowd.free(1, block);
        let ready = crowd.threads[1].ready_blocks(class());
        let freed = first + number + 1;
        assert!(ready == freed || freed > whole, "{ready} of {freed}");
        assert!(ready <= whole);
    }
    crowd.end(blocks);
}

/// Forks the first of four threads: a secondary heap was parked already, two have cached blocks.
fn forked() -> (Crowd, Vec<*mut u8>) {
    let (mut crowd, blocks) = Crowd::new(1, 4);
    crowd.stop(3);
    assert!(crowd.threads[1].ready_blocks(class()) > 0);
    let pool = &crowd.verbs().process.pool;
    // SAFETY: the other threads' parts are never used again.
    unsafe { pool.park_orphans(crowd.threads[0].heap()) };
    for thread in 1..4 {
        crowd.threads[thread] = Local::new();
    }
    (crowd, blocks)
}

#[test]
fn what_a_fork_left_in_the_bins_of_secondaries_comes_back() {
    let (mut crowd, mut blocks) = forked();
    blocks.push(crowd.alloc(1));
    crowd.end(blocks);
}

#[test]
fn secondaries_that_a_fork_left_behind_are_taken_over_once() {
    let (mut crowd, mut blocks) = forked();
    crowd.threads.push(Local::new());
    let mut heaps: Vec<_> = (1..5)
        .map(|thread| {
            blocks.push(crowd.alloc(thread));
            crowd.threads[thread].heap()
        })
        .collect();
    heaps.sort_unstable();
    heaps.dedup();
    assert_eq!(heaps.len(), 4, "two threads with one heap");
    crowd.end(blocks);
}

#[test]
fn where_memory_comes_first_fewer_heaps_have_sets_of_their_own() {
    for (config, primaries) in [(&Config::MEMORY, 2), (&Config::BALANCED, 4)] {
        let os = Faulty::new(Plan::Willing);
        let world = World::with(os, 1, 1, 64 << 20, config);
        let process = world.verbs().process;
        let heaps: Vec<_> = (0..6).map(|_| process.adopt().unwrap()).collect();
        let own = heaps.iter().filter(|heap| !heap.is_secondary());
        assert_eq!(own.count(), primaries);
        for heap in heaps {
            // SAFETY: adopted above.
            unsafe { process.park(heap) };
        }
        world.end();
    }
}
