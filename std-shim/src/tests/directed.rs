//! [`Directed`]: a world whose threads and blocks a test drives itself.

use std::alloc::Layout;

use larder_core::small::SizeClass;

use super::drive::World;
use super::faulty::{Below, Faulty, Plan};
use super::verbs::{ClaimOutcome, is_filled};
use crate::process::Process;
use crate::stats::Stats;
use crate::thread::local::Local;

/// A world and the parts of its threads.
pub(super) struct Directed {
    pub(super) world: World,
    pub(super) threads: Vec<Box<Local>>,
}

impl Directed {
    pub(super) fn new(world: World, threads: usize) -> Self {
        let threads = (0..threads).map(|_| Box::new(Local::new())).collect();
        Self { world, threads }
    }

    /// Creates a world over a system with this plan, and two threads.
    pub(super) fn under(plan: Plan) -> Self {
        Self::new(World::new(plan, 1, 1), 2)
    }

    pub(super) fn process(&self) -> &'static Process<Below> {
        self.world.verbs().process
    }

    pub(super) fn os(&self) -> &'static Faulty {
        self.world.os
    }

    /// Allocates a block and fills it, if there is memory. Checks that a zeroed one is zero.
    pub(super) fn try_make(
        &mut self,
        thread: usize,
        layout: Layout,
        zeroed: bool,
    ) -> Option<ClaimOutcome> {
        let verbs = self.world.verbs();
        let start = verbs.alloc(&mut self.threads[thread], layout, zeroed);
        if start.is_null() {
            return None;
        }
        if zeroed {
            // SAFETY: given just now, that long.
            let found = unsafe { std::slice::from_raw_parts(start, layout.size()) };
            assert!(is_filled(found, 0), "not zeroed: {layout:?}");
        }
        Some(ClaimOutcome::new(start, layout, layout.size() as u8 | 1))
    }

    pub(super) fn make(&mut self, thread: usize, size: usize) -> ClaimOutcome {
        let layout = Layout::from_size_align(size, 8).unwrap();
        let made = self.try_make(thread, layout, false);
        made.expect("there is memory")
    }

    pub(super) fn make_all(
        &mut self,
        thread: usize,
        size: usize,
        count: usize,
    ) -> Vec<ClaimOutcome> {
        (0..count).map(|_| self.make(thread, size)).collect()
    }

    /// Checks blocks and frees them.
    pub(super) fn free(&mut self, thread: usize, all: impl IntoIterator<Item = ClaimOutcome>) {
        for held in all {
            held.check(held.layout.size());
            let verbs = self.world.verbs();
            verbs.free(&mut self.threads[thread], held.start, held.layout);
        }
    }

    /// Frees all blocks but every `every`-th. Returns those.
    pub(super) fn thin_out(
        &mut self,
        thread: usize,
        all: Vec<ClaimOutcome>,
        every: usize,
    ) -> Vec<ClaimOutcome> {
        let (kept, freed): (Vec<_>, Vec<_>) =
            (all.into_iter().enumerate()).partition(|(number, _)| number % every == 0);
        self.free(thread, freed.into_iter().map(|(_, held)| held));
        kept.into_iter().map(|(_, held)| held).collect()
    }

    /// Ends a thread and starts another one.
    pub(super) fn restart(&mut self, thread: usize) {
        let process = self.process();
        self.threads[thread].end(process);
        *self.threads[thread] = Local::new();
    }

    /// Returns how many blocks of the class of a size a thread has cached.
    pub(super) fn ready(&self, thread: usize, size: usize) -> usize {
        let class = SizeClass::of(size, 8).unwrap();
        self.threads[thread].ready_blocks(class)
    }

    pub(super) fn tick(&self) {
        self.process().tick();
        self.world.assert_sound();
    }

    pub(super) fn stats(&self) -> Stats {
        Stats::count(self.process(), &self.threads[0])
    }

    pub(super) fn purged(&self) -> u64 {
        self.process().purger.purged_bytes()
    }

    pub(super) fn has_idle(&self) -> bool {
        self.process().has_idle()
    }

    /// Asserts that nothing is idle after one more tick at most, which scans again where the advice
    /// for huge pages was withdrawn.
    pub(super) fn falls_idle(&self) {
        if self.has_idle() {
            self.tick();
        }
        assert!(!self.has_idle());
    }

    /// Frees what is left, and ends the threads and the world.
    pub(super) fn end(mut self, left: impl IntoIterator<Item = ClaimOutcome>) {
        self.world.assert_sound();
        self.free(0, left);
        let process = self.process();
        for thread in &mut self.threads {
            thread.end(process);
        }
        self.world.end();
    }
}
