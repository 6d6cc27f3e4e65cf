//! A trim: everything idle goes back at once.

use larder_core::small::SpanSet;

use super::tick::STEP_BLOCKS;
use crate::arena::{Arena, PAUSE_NS};
use crate::os::Os;
use crate::os::background::sleep_ns;
use crate::process::Process;
use crate::step::StepHeap;
use crate::thread::wait::Sleep;

impl<O: Os> Process<O> {
    /// Empties every transfer cache and parked heap, and gives idle memory back to the system. Returns the bytes that
    /// were in memory, with those that a tick gives back meanwhile.
    pub(crate) fn trim(&'static self) -> u64 {
        self.purger.forget_filter();
        let before = self.purger.purged_bytes();
        if self.arenas().any(Arena::may_be_filled) {
            self.each_heap_looks_again();
        }
        // The first pass sends blocks back that lie in the caches of others, the second receives them.
        for _ in 0..2 {
            self.flush_idle_caches(true);
            self.take_long();
            self.trim_heaps();
        }
        for arena in self.arenas() {
            self.purger.count_purged(arena.trim());
        }
        let given = self.purger.purged_bytes().saturating_sub(before);
        given + self.step_heaps.iter().map(StepHeap::trim).sum::<u64>()
    }

    /// Has all spans looked at again, holes included.
    fn each_heap_looks_again(&'static self) {
        self.pool.for_each(|heap| {
            // SAFETY: the set stays where it is.
            unsafe { heap.with(|_, set| set.forget_looks()) };
        });
    }

    /// Gives up what the heaps keep at hand, and scans their spans, in steps between which others work.
    fn trim_heaps(&'static self) {
        self.pool.for_each(|heap| {
            // What is put aside meanwhile is younger than this call. A step does one list or span at least.
            // SAFETY: only counted.
            for _ in 0..unsafe { heap.with(|_, set| set.kept()) } + 2 {
                let (sleeps, mut left) = (Sleep::count(), STEP_BLOCKS);
                let trim = |owner, set: &mut SpanSet| {
                    // SAFETY: the heap's own remote-free queue and set (HEAP3).
                    unsafe { set.trim(owner, &mut left, &mut self.pages()) }
                };
                // SAFETY: the set stays where it is.
                if unsafe { heap.with(trim) } {
                    break;
                }
                if Sleep::count() != sleeps {
                    // Long enough for who waits to come in.
                    sleep_ns(PAUSE_NS);
                }
            }
        });
    }
}
