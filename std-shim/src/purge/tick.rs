//! A tick returns memory that has been idle since the last tick, and ages the rest. It is made in
//! steps of bounded length, each of which continues where the last step ended.

use core::ptr;

use larder_core::small::SpanSet;
use larder_core::sync::Ordering;

use super::work::PurgeWork;
use crate::arena::{Aging, PAUSE_NS};
use crate::os::Os;
use crate::os::background::sleep_ns;
use crate::process::{Process, ThreadHeap};
use crate::thread::wait::Sleep;

/// Cost of a step, in blocks that it touches, each with one or two cache misses: 100 to 200
/// microseconds. The last part of a step may exceed this: 2048 blocks of lists, one span, or one
/// call for an arena (`Arena::age_some`).
pub(super) const STEP_BLOCKS: usize = 1024;
/// Costs in blocks of visiting a heap, asking which pages of an arena are resident, receiving
/// blocks that others freed, and emptying the bins of long classes.
const HEAP_COST: usize = 32;
const REVIEW_COST: usize = 512;
const RECEIVE_COST: usize = 256;
const LONG_COST: usize = 256;
/// Cost in blocks of scanning 128 chunks of an arena.
pub(crate) const LOOK_COST: usize = 128;

/// Progress of the current tick.
pub(crate) struct Tick {
    part: TickPart,
    /// The next heap of this part, or null at its end.
    heap: *const ThreadHeap,
    /// The next arena, and the progress of its tick.
    arena: usize,
    aging: Aging,
    /// Whether the advice for huge pages was withdrawn for an arena.
    taken_back: bool,
}

/// The parts of a tick, in order. All parts except that of the arenas are done for one heap after
/// another.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TickPart {
    /// No tick is under way.
    Rest,
    /// In the child of a fork, once: excludes memory that is idle now from later ticks.
    Leaving,
    /// Flushes caches of parked heaps. Their blocks are young: they may have been freed just
    /// before.
    Caches,
    /// Receives blocks that other threads freed. They are young, too.
    Remote,
    /// Takes long and large blocks that their thread has not used since the previous tick.
    Long,
    /// Returns old lists and spans.
    Lists,
    /// Receives other heaps' blocks from these lists, and scans spans.
    Spans,
    Arenas,
    /// Marks spans for the next tick to scan again: pages returned under advice for huge pages may
    /// have been filled again.
    Again,
}

// SAFETY: heaps are never freed (HEAP1), and any thread may walk over them.
unsafe impl Send for Tick {}

impl Tick {
    pub(crate) const fn new() -> Self {
        Self {
            part: TickPart::Rest,
            heap: ptr::null(),
            arena: 0,
            aging: Aging::New,
            taken_back: false,
        }
    }
}

impl<O: Os> Process<O> {
    /// Makes a tick, or finishes the current one.
    pub(crate) fn tick(&'static self) {
        loop {
            let sleeps = Sleep::count();
            let step = |work: &mut PurgeWork| {
                let mut left = STEP_BLOCKS;
                self.tick_some(&mut work.tick, &mut left)
            };
            self.wait_for_fork();
            if self.work.with(step) {
                return;
            }
            if Sleep::count() != sleeps {
                // Long enough for waiting threads to take the lock, including those that yield. In
                // most processes that return a lot of memory no thread waits, and on a busy
                // machine each sleep is long.
                sleep_ns(PAUSE_NS);
            }
        }
    }

    /// Makes a step of a tick while `left` is positive. Returns whether the tick has ended.
    pub(super) fn tick_some(&'static self, tick: &mut Tick, left: &mut usize) -> bool {
        self.purger.forget_filter();
        // Relaxed: the heaps' locks order the rest.
        if self.forked.swap(0, Ordering::Relaxed) > 0 {
            // The parent's tick was for the parent.
            *tick = Tick::new();
            self.begin_part(tick, TickPart::Leaving);
        }
        while *left > 0 {
            match tick.part {
                TickPart::Rest => self.begin_part(tick, TickPart::Caches),
                TickPart::Arenas => self.tick_arena(tick, left),
                _ => self.tick_heap(tick, left),
            }
            if tick.part == TickPart::Rest {
                self.purger.ticked();
                return true;
            }
        }
        false
    }

    fn begin_part(&'static self, tick: &mut Tick, part: TickPart) {
        tick.part = part;
        tick.heap = self.pool.all();
    }

    fn tick_heap(&'static self, tick: &mut Tick, left: &mut usize) {
        // SAFETY: HEAP1: heaps are never freed.
        let Some(heap) = (unsafe { tick.heap.as_ref() }) else {
            return self.end_part(tick);
        };
        let mut cost = HEAP_COST;
        let done = match tick.part {
            TickPart::Leaving => {
                // SAFETY: the set stays where it is.
                unsafe { heap.with(|_, set| set.leave_idle(left)) }
            }
            TickPart::Caches => self.flush_idle_cache(heap, false, left),
            TickPart::Remote => {
                cost += RECEIVE_COST;
                self.receive_some(heap)
            }
            TickPart::Long => {
                cost += LONG_COST;
                self.take_long_of(heap, false);
                true
            }
            TickPart::Lists => {
                let age = |owner, set: &mut SpanSet| {
                    // SAFETY: the heap's own remote-free queue and set (HEAP3).
                    unsafe { set.age(owner, left, &mut self.idle_pages()) }
                };
                // SAFETY: the set stays where it is.
                unsafe { heap.with(age) }
            }
            TickPart::Spans => {
                let settle = |owner, set: &mut SpanSet| {
                    // SAFETY: the heap's own remote-free queue and set (HEAP3).
                    unsafe { set.settle(owner, left, &mut self.idle_pages()) }
                };
                // SAFETY: the closure leaves the set where it is.
                unsafe { heap.with(settle) }
            }
            TickPart::Again => {
                // SAFETY: the closure leaves the set where it is.
                unsafe { heap.with(|_, set| set.forget_looks()) };
                true
            }
            TickPart::Rest | TickPart::Arenas => true,
        };
        *left = left.saturating_sub(cost);
        if done {
            tick.heap = heap.older();
        }
    }

    fn end_part(&'static self, tick: &mut Tick) {
        let next = match tick.part {
            TickPart::Rest | TickPart::Leaving => TickPart::Caches,
            TickPart::Caches => TickPart::Remote,
            // The first barrier takes long, and must not run under a heap's lock.
            TickPart::Remote if self.can_take_long() => TickPart::Long,
            TickPart::Remote | TickPart::Long => TickPart::Lists,
            TickPart::Lists => TickPart::Spans,
            TickPart::Spans => {
                (tick.arena, tick.aging, tick.taken_back) = (0, Aging::New, false);
                TickPart::Arenas
            }
            TickPart::Arenas if tick.taken_back => TickPart::Again,
            TickPart::Arenas | TickPart::Again => TickPart::Rest,
        };
        self.begin_part(tick, next);
    }

    fn tick_arena(&'static self, tick: &mut Tick, left: &mut usize) {
        let Some(arena) = self.arenas().nth(tick.arena) else {
            return self.end_part(tick);
        };
        let (given, done) = arena.age_some(&mut tick.aging, self.counts_commits());
        self.purger.count_purged(given.bytes);
        *left = left.saturating_sub(given.go_cost());
        if done {
            tick.taken_back |= arena.review_advice();
            (tick.arena, tick.aging) = (tick.arena + 1, Aging::New);
            *left = left.saturating_sub(REVIEW_COST);
        }
    }

    /// Returns whether a tick would return or age anything. Remote-free queues and arenas come
    /// last: memory moves there under a heap's lock.
    pub(crate) fn has_idle(&'static self) -> bool {
        let mut idle = false;
        self.pool.for_each(|heap| {
            // SAFETY: the set is only read.
            idle |= unsafe { heap.with(|_, set| set.has_idle()) };
            // SAFETY: the cache is only read.
            let cache = unsafe { heap.with_idle_cache(false, |_, _, cache| !cache.are_empty()) };
            idle |= cache == Some(true);
        });
        // A thread caches large blocks without a lock, so the barrier comes before the look (PURGE2).
        idle |= self.can_take_long() && self.cached_large_bytes() > 0;
        self.pool
            .for_each(|heap| idle |= !heap.remote_queue().is_empty());
        idle || self.arenas().any(|arena| arena.has_idle())
    }

    /// Returns the free dirty bytes of the arenas. O(chunks).
    pub(crate) fn idle_bytes(&'static self) -> u64 {
        self.arenas().map(|arena| arena.idle_bytes()).sum()
    }
}
