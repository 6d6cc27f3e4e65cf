//! A trim: everything idle goes back at once.

use larder_core::small::SpanSet;

use super::tick::{LISTS, STEPS};
use crate::arena::Arena;
use crate::os::Os;
use crate::process::Process;
use crate::step::StepHeap;

impl<O: Os> Process<O> {
    /// Empties every transfer cache and parked heap, and gives idle memory back to the system. Returns the bytes that
    /// were in memory, with those that a tick gives back meanwhile.
    pub(crate) fn trim(&'static self) -> u64 {
        let before = self.purger.purged_bytes();
        if self.arenas().any(Arena::may_be_filled) {
            self.each_heap_looks_again();
        }
        // The first pass sends blocks back that lie in the caches of others, the second receives them.
        for _ in 0..2 {
            self.flush_idle_caches(true);
            self.take_long(true);
            self.trim_heaps();
        }
        for arena in self.arenas() {
            self.purger.count_purged(arena.trim());
        }
        let given = self.purger.purged_bytes().saturating_sub(before);
        given + self.step_heaps.iter().map(StepHeap::trim).sum::<u64>()
    }

    /// The heap has grown by so many bytes: as many that lie idle go back for it, if there are as many.
    pub(crate) fn make_up(&'static self, bytes: u64) {
        let left = self.discard_idle(bytes);
        if left > 0 {
            self.tick();
            self.tick();
        }
    }

    /// Gives free memory of the arenas back, little more than `bytes`; how much is missing.
    fn discard_idle(&'static self, bytes: u64) -> u64 {
        self.arenas().fold(bytes, |left, arena| {
            let given = arena.discard_dirty(left);
            self.purger.count_purged(given);
            left.saturating_sub(given)
        })
    }

    /// Gives up what the heaps keep at hand, and scans their spans, in steps between which others work.
    fn trim_heaps(&'static self) {
        self.pool.for_each(|heap| {
            // What is put aside meanwhile is younger than this call.
            let kept = heap.with(|_, set| set.kept());
            let budget = LISTS.max(kept / STEPS);
            let trim = |owner, set: &mut SpanSet| {
                // SAFETY: the heap's own remote-free queue and set (HEAP3).
                unsafe { set.trim(owner, budget, &mut self.pages()) }
            };
            for _ in 0..kept / budget + 2 {
                if self.step(heap, trim) {
                    break;
                }
            }
        });
    }
}
