//! [`World`]: a process heap with the parts of several threads, and a map of every block.

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::ptr;

use larder_core::sync::Ordering;

use super::faulty::{Below, Faulty, Plan};
use super::verbs::{ClaimOutcome, Random, Verbs, is_filled, some_layout};
use crate::config::{Config, HugePages};
use crate::process::Process;
use crate::stats::Stats;
use crate::thread::local::Local;

/// Small, so that a few blocks need several arenas.
pub(super) const ARENA_BYTES: usize = 4 << 20;
/// Maximum number of blocks in a world, and of their bytes.
const MAX_BLOCKS: usize = 160;
const MAX_BYTES: usize = 24 << 20;

/// A process heap and its program's blocks.
pub(super) struct World {
    pub(super) os: &'static Faulty,
    process: *mut Process<Below>,
    os_box: *mut Faulty,
    threads: Vec<Box<Local>>,
    held: Vec<ClaimOutcome>,
    /// Start and end of every block held.
    ranges: BTreeMap<usize, usize>,
    random: Random,
    /// Whether threads cache large blocks; those of a random program do.
    pub(super) caches: bool,
    /// Number of null results.
    pub(super) nulls: usize,
}

impl World {
    /// Creates a world with huge pages from the start, so that advice for them is part of every
    /// program.
    pub(super) fn new(plan: Plan, seed: u64, threads: usize) -> Self {
        Self::over(Faulty::new(plan), seed, threads)
    }

    /// Creates a world over this system.
    pub(super) fn over(os: Faulty, seed: u64, threads: usize) -> Self {
        let config = Config {
            huge_pages: HugePages::Above(0),
            ..Config::BALANCED
        };
        Self::with(os, seed, threads, ARENA_BYTES, &config)
    }

    pub(super) fn with(
        os: Faulty,
        seed: u64,
        threads: usize,
        arena_bytes: usize,
        config: &Config,
    ) -> Self {
        let os_box = Box::into_raw(Box::new(os));
        // SAFETY: freed by `end` only, when it is no longer used.
        let os: &'static Faulty = unsafe { &*os_box };
        let process = Process::new(Below(os), arena_bytes);
        process.tuning.apply(config);
        Self {
            os,
            process: Box::into_raw(Box::new(process)),
            os_box,
            threads: (0..threads).map(|_| Box::new(Local::new())).collect(),
            held: Vec::new(),
            ranges: BTreeMap::new(),
            random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            caches: false,
            nulls: 0,
        }
    }

    pub(super) fn verbs(&self) -> Verbs {
        Verbs {
            // SAFETY: freed by `end` only, when it is no longer used.
            process: unsafe { &*self.process },
            key: true,
            caches: self.caches,
        }
    }

    /// Does some random operations, then walks over everything.
    pub(super) fn run(&mut self, operations: usize) {
        self.caches = true;
        for number in 0..operations {
            self.operate();
            if number % 64 == 0 {
                self.assert_sound();
            }
        }
        self.assert_sound();
    }

    fn operate(&mut self) {
        let thread = self.random.next(self.threads.len());
        match self.random.next(200) {
            0..2 => self.trim(thread),
            2 => self.verbs().process.tick(),
            3..5 => self.end_thread(thread),
            5..8 => self.replace(thread),
            8 => self.fork(thread),
            9..11 => self.free_most(thread),
            11..40 => self.resize(thread),
            40..60 => self.alloc(thread, true),
            60..135 => self.alloc(thread, false),
            135..198 => self.free(thread),
            _ => self.os.pass(100),
        }
    }

    fn trim(&mut self, thread: usize) {
        let process = self.verbs().process;
        self.threads[thread].flush(process);
        process.trim();
    }

    /// Ends a phase of the program: the ends of arenas become free.
    fn free_most(&mut self, thread: usize) {
        for _ in 0..self.held.len() * 7 / 8 {
            self.free(thread);
        }
        self.trim(thread);
    }

    /// Ends the thread; its later calls are those of its last destructors.
    fn end_thread(&mut self, thread: usize) {
        let process = self.verbs().process;
        self.threads[thread].end(process);
    }

    /// Ends the thread and starts another one.
    fn replace(&mut self, thread: usize) {
        self.end_thread(thread);
        *self.threads[thread] = Local::new();
    }

    /// Forks the process and continues as the child, with only one thread.
    fn fork(&mut self, thread: usize) {
        let process = self.verbs().process;
        let mine = self.threads[thread].heap();
        // SAFETY: one thread has all the parts, and the others are never used again.
        unsafe { process.pool.park_orphans(mine) };
        process.forked.store(1, Ordering::Relaxed);
        for (number, other) in self.threads.iter_mut().enumerate() {
            if number != thread {
                **other = Local::new();
            }
        }
    }

    fn alloc(&mut self, thread: usize, zeroed: bool) {
        let layout = some_layout(&mut self.random);
        let bytes: usize = self.held.iter().map(|held| held.layout.size()).sum();
        if self.held.len() >= MAX_BLOCKS || bytes + layout.size() > MAX_BYTES {
            return self.free(thread);
        }
        if let Some(start) = self.try_alloc(thread, layout, zeroed) {
            self.hold(start, layout);
        }
    }

    /// Allocates a block, checked but not yet held; null must be due to a refusal.
    fn try_alloc(&mut self, thread: usize, layout: Layout, zeroed: bool) -> Option<*mut u8> {
        let before = self.os.refusals();
        let key = self.random.next(16) > 0;
        let verbs = Verbs {
            key,
            ..self.verbs()
        };
        let start = verbs.alloc(&mut self.threads[thread], layout, zeroed);
        if start.is_null() {
            self.nulls += 1;
            assert!(self.os.refusals() > before, "null without need: {layout:?}");
            return None;
        }
        assert!(start.addr().is_multiple_of(layout.align()), "{layout:?}");
        if zeroed {
            // SAFETY: given just now, that long.
            let bytes = unsafe { std::slice::from_raw_parts(start, layout.size()) };
            assert!(is_filled(bytes, 0), "not zeroed: {layout:?}");
        }
        Some(start)
    }

    fn hold(&mut self, start: *mut u8, layout: Layout) {
        let (from, to) = (start.addr(), start.addr() + layout.size());
        let below = self.ranges.range(..to).next_back();
        assert!(
            below.is_none_or(|(_, end)| *end <= from),
            "{layout:?} overlaps"
        );
        self.ranges.insert(from, to);
        let fill = self.random.next(255) as u8 + 1;
        self.held.push(ClaimOutcome::new(start, layout, fill));
    }

    /// Removes a random block from the map.
    fn let_go(&mut self) -> Option<ClaimOutcome> {
        if self.held.is_empty() {
            return None;
        }
        let held = self.held.swap_remove(self.random.next(self.held.len()));
        held.check(held.layout.size());
        self.ranges.remove(&held.start.addr());
        Some(held)
    }

    fn free(&mut self, thread: usize) {
        if let Some(held) = self.let_go() {
            self.verbs()
                .free(&mut self.threads[thread], held.start, held.layout);
        }
    }

    fn resize(&mut self, thread: usize) {
        let Some(held) = self.let_go() else {
            return;
        };
        let size = match self.random.next(3) {
            0 => some_layout(&mut self.random).size(),
            1 => held.layout.size() / 2 + 1,
            _ => held.layout.size() + self.random.next(held.layout.size() + 1),
        };
        let new = Layout::from_size_align(size, held.layout.align()).unwrap();
        let common = size.min(held.layout.size());
        if self.verbs().resize(held.start, held.layout, size) {
            held.check(common);
            return self.hold(held.start, new);
        }
        let Some(moved) = self.try_alloc(thread, new, false) else {
            held.check(held.layout.size());
            return self.hold(held.start, held.layout);
        };
        // SAFETY: both are ours and that long.
        unsafe { ptr::copy_nonoverlapping(held.start, moved, common) };
        held.check(common);
        self.verbs()
            .free(&mut self.threads[thread], held.start, held.layout);
        self.hold(moved, new);
    }

    /// Walks every heap and arena, and compares their counts with the system's.
    pub(super) fn assert_sound(&self) {
        let process = self.verbs().process;
        process.pool.for_each(|heap| {
            // SAFETY: only looked at.
            let is_sound = unsafe { heap.with(|_, set| set.is_sound()) };
            assert!(is_sound, "a heap's spans");
        });
        let mapped = process.mappings.bytes() as usize;
        let (mut reserved, mut committed) = (mapped, mapped);
        for arena in process.arenas() {
            assert!(arena.is_sound(), "an arena's BFC");
            let table_bytes = self.os.range_bytes(ptr::from_ref(arena).addr());
            reserved += arena.bytes() + table_bytes;
            committed += arena.numbers().1 as usize + arena.table_bytes();
        }
        assert_eq!(self.os.reserved_bytes(), reserved, "reserved and forgotten");
        assert_eq!(
            self.os.committed_bytes(),
            committed,
            "committed and forgotten"
        );
        assert_eq!(self.os.complaints(), Vec::<String>::new());
    }

    /// Makes the system willing again, frees everything, and ends all threads: no memory may be
    /// left in use, and large blocks can be allocated again.
    pub(super) fn end(mut self) {
        self.os.follow(Plan::Willing);
        while !self.held.is_empty() {
            let thread = self.random.next(self.threads.len());
            self.free(thread);
        }
        let process = self.verbs().process;
        for thread in &mut self.threads {
            thread.end(process);
        }
        // A transfer cache may hold blocks of a heap that was trimmed before it: those are returned
        // the second time.
        process.trim();
        process.trim();
        self.assert_sound();
        let stats = Stats::count(process, &Local::new());
        assert_eq!(
            (stats.live_bytes, stats.span_bytes, stats.large_bytes),
            (0, 0, 0)
        );
        let live: u64 = process.arenas().map(|arena| arena.numbers().0).sum();
        assert_eq!(live, process.meta_bytes(), "blocks that nobody has");

        let large = Layout::from_size_align(3 << 20, 64).unwrap();
        let start = self
            .try_alloc(0, large, true)
            .expect("the system is willing");
        self.hold(start, large);
        self.free(0);
        self.assert_sound();
        // SAFETY: nothing of the process is used any more.
        unsafe { self.os.release_all() };
        // SAFETY: made by `new`, and the last use.
        drop(unsafe { Box::from_raw(self.process) });
        // SAFETY: made by `new`, and the last use.
        drop(unsafe { Box::from_raw(self.os_box) });
    }
}
