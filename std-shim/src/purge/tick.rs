//! What a tick does: what has been idle since the last one goes back, the rest grows older.

use larder_core::small::{RemoteQueue, SpanSet};
use larder_core::sync::Ordering;

use crate::arena::PAUSE_NS;
use crate::os::Os;
use crate::os::background::sleep_ns;
use crate::process::{Process, ThreadHeap};
use crate::thread::wait::Sleep;

/// Lists of a heap that go back in one step, a bin's worth each, or spans that are scanned.
pub(super) const LISTS: usize = 8;
/// In so many steps at most, as each begins with a walk over the spans.
pub(super) const STEPS: usize = 64;

impl<O: Os> Process<O> {
    /// One tick: what has been idle since the last one goes back.
    pub(crate) fn tick(&'static self) {
        self.leave_what_a_fork_left();
        // What comes back so is young: it may have been freed a moment ago.
        self.flush_idle_caches(false);
        self.receive();
        // What comes back so has been idle since the tick before.
        self.take_long(false);
        self.pool.for_each(|heap| {
            let age = |owner, set: &mut SpanSet| {
                // SAFETY: the heap's own remote-free queue and set (HEAP3).
                unsafe { set.age(owner, LISTS, &mut self.idle_pages()) }
            };
            while !self.step(heap, age) {}
        });
        // What lay old in the transfer caches of others is not.
        self.pool.for_each(|heap| {
            let budget = LISTS.max(heap.with(|_, set| set.kept()) / STEPS);
            let settle = |owner, set: &mut SpanSet| {
                // SAFETY: the heap's own remote-free queue and set (HEAP3).
                unsafe { set.settle(owner, budget, &mut self.idle_pages()) }
            };
            while !self.step(heap, settle) {}
        });
        let decommits = self.counts_commits();
        for arena in self.arenas() {
            self.purger.count_purged(arena.age(decommits));
            if arena.review_advice() {
                // What went back while there was the advice may have come again: the next tick looks.
                self.each_heap_looks_again();
            }
        }
    }

    /// In the child of a fork, at its first tick: ticks leave small blocks alone that are idle now.
    fn leave_what_a_fork_left(&'static self) {
        // Relaxed: the heaps' locks order the rest.
        if self.forked.swap(0, Ordering::Relaxed) > 0 {
            self.pool
                .for_each(|heap| heap.with(|_, set| set.leave_idle()));
        }
    }

    /// Has all spans looked at again by the next tick or trim, holes included.
    pub(crate) fn each_heap_looks_again(&'static self) {
        self.pool.for_each(|heap| {
            heap.with(|_, set| set.forget_looks());
        });
    }

    /// A step of a heap's tick; whether it was the last.
    pub(super) fn step(
        &'static self,
        heap: &'static ThreadHeap,
        f: impl FnOnce(*const RemoteQueue, &mut SpanSet) -> bool,
    ) -> bool {
        let waits = Sleep::count();
        let done = heap.with(f);
        if !done && Sleep::count() != waits {
            // Long enough for the owner to come in, who yields while waiting. Nobody waits in most
            // processes with much to give back, and on a busy machine each sleep is a long one.
            sleep_ns(PAUSE_NS);
        }
        done
    }

    /// Whether anything is idle that a tick will give back, or make older. Remote-free queues and arenas come
    /// last: what goes there goes from under a heap's lock.
    pub(crate) fn has_idle(&'static self) -> bool {
        let mut idle = false;
        self.pool.for_each(|heap| {
            idle |= heap.with(|_, set| set.has_idle());
            let cache = heap.with_idle_cache(false, |_, _, cache| !cache.are_empty());
            idle |= cache == Some(true);
        });
        self.pool
            .for_each(|heap| idle |= !heap.remote_queue().is_empty());
        idle || self.arenas().any(|arena| arena.has_idle())
    }

    /// Bytes that are free and dirty in the arenas. O(chunks).
    pub(crate) fn idle_bytes(&'static self) -> u64 {
        self.arenas().map(|arena| arena.idle_bytes()).sum()
    }
}
