//! A trim, which returns all idle memory immediately.

use larder_core::small::SpanSet;

use super::tick::STEP_BLOCKS;
use crate::arena::{Arena, ArenaWalk, PAUSE_NS};
use crate::os::Os;
use crate::os::background::sleep_ns;
use crate::process::Process;
use crate::thread::wait::Sleep;

impl<O: Os> Process<O> {
    /// Flushes every transfer cache and parked heap, and returns idle memory to the system. Returns
    /// the number of bytes that were resident, including those that a concurrent tick returns.
    pub(crate) fn trim(&'static self) -> u64 {
        self.purger.forget_filter();
        let before = self.purger.purged_bytes();
        if self.arenas().any(Arena::may_be_filled) {
            self.each_heap_looks_again();
        }
        // The first pass sends cached blocks of other heaps back, the second receives them.
        for _ in 0..2 {
            self.flush_idle_caches(true);
            self.take_long();
            self.trim_heaps();
        }
        for arena in self.arenas() {
            self.purger.count_purged(arena.trim());
        }
        self.purger.purged_bytes().saturating_sub(before)
    }

    /// Returns idle memory of arenas to the system until `wanted_bytes` bytes have been returned, or
    /// none is left. Returns how many have been.
    pub(crate) fn discard_idle(&'static self, wanted_bytes: u64) -> u64 {
        let mut returned_bytes = 0;
        for arena in self.arenas() {
            let (mut walk, mut more) = (ArenaWalk::new(), true);
            while more && returned_bytes < wanted_bytes {
                let given;
                (given, more) = arena.discard_some_dirty(&mut walk);
                self.purger.count_purged(given.bytes);
                returned_bytes += given.bytes;
            }
        }
        returned_bytes
    }

    /// Marks all spans for another scan, holes included.
    fn each_heap_looks_again(&'static self) {
        self.pool.for_each(|heap| {
            // SAFETY: the set stays where it is.
            unsafe { heap.with(|_, set| set.forget_looks()) };
        });
    }

    /// Flushes the lists of the heaps, and scans their spans, in steps. Other threads run between
    /// two steps.
    fn trim_heaps(&'static self) {
        self.pool.for_each(|heap| {
            // Lists filled during the call are younger than the call. A step does at least one list
            // or span.
            // SAFETY: the set is only read.
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
                    // Long enough for a waiting thread to take the lock.
                    sleep_ns(PAUSE_NS);
                }
            }
        });
    }
}
