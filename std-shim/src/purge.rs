//! [`Purger`]: memory goes back to the system a while after it became idle, with no further call by
//! the program.
//!
//! A *tick* comes twice in the delay that the program chose. What has been idle since the tick before
//! goes back then, and the rest grows older; so memory goes back between half a delay and a whole one
//! after it was last needed, and what is in constant reuse never does. No time is kept with anything.
//!
//! ```text
//!   a tick:  remote-free queues ─► spans        caches of parked heaps ─► spans
//!            old lists of transfer caches ─► spans ─► arena        empty spans ─► arena
//!            dirty free memory of arenas that is not young ─► the system
//! ```
//! What a tick itself frees on this way has been idle long enough, and goes the whole way at once. The
//! cache of a running thread is its own and stays. Fewer than [`START_BYTES`] may stay too. A span with a
//! used block stays, but not the pages of it in which there is none (holes).
//!
//! Who makes the ticks:
//! ```text
//!   Resting ──START_BYTES freed──► Ticking: a thread of the heap's own, until nothing is idle
//!      │ │                            ▲ │ no thread could be had
//!      │ │           START_BYTES freed│ ▼
//!      │ └────not wanted──────────► Inline: slow paths of the program, by a coarse clock
//!      └──for ever──► Off
//! ```
//! Where a thread is wanted and cannot be had, each START_BYTES freed try again, and tick at once: nobody else
//! would, should the program fall idle.
//!
//! A free costs one relaxed load for this, and an addition more while the purger rests, in slow paths
//! only. A tick is O(heaps x classes + chunks + blocks that go back), in steps of bounded length.
//!
//! # Invariants
//! * P1 each step of a tick is whole under a lock that the fork handlers take: a heap's, or
//!   `discarding` of an arena. No lock is held between two steps.
//! * P2 nothing is forgotten: a free is done under a lock, or left to the next holder and fenced, and the state
//!   read after that; the purger
//!   writes that it rests and then looks, under the same locks, for what came meanwhile. One of both
//!   sees the other.
//! * P3 a thread is started while its starter holds no lock of the heap. The thread allocates nothing
//!   here and has no heap. One is Ticking at a time.
//! * P4 the child of a fork has no such thread. If its parent had one, the child's next slow free
//!   starts one.

mod idle_pages;

use std::ffi::c_void;
use std::ptr;

use larder_core::small::{RemoteQueue, SpanSet};
use larder_core::sync::{AtomicU32, AtomicU64, Ordering, fence};

use crate::arena::PAUSE_NS;
use crate::config::Tuning;
use crate::os::Os;
use crate::os::background::{be_ordinary, coarse_ms, name_thread, sleep_ns, start_thread};
use crate::process::{Heap, PagesOf, Process};
use crate::threads::PROCESS;
use crate::waiting::Sleep;

use idle_pages::IdlePages;

/// So much must be freed past the caches before a thread is worth its start.
pub(crate) const START_BYTES: u64 = 2 << 20;
/// Ticks are not made more often than this, whatever the delay.
const LEAST_TICK_MS: u64 = 25;
/// Lists of a heap that go back in one step, a bin's worth each, or spans that are scanned.
const LISTS: usize = 8;
/// In so many steps at most, as each begins with a walk over the spans.
const STEPS: usize = 64;
/// What a thread that ends is counted with: mostly it leaves less.
const THREAD_BYTES: usize = 64 << 10;

/// States. Those from `TICKING` on ask nothing of who frees.
const RESTING: u32 = 0;
const INLINE: u32 = 1;
const TICKING: u32 = 2;
const OFF: u32 = 3;

/// Who makes the ticks of a process, and what came of them.
pub(crate) struct Purger {
    state: AtomicU32,
    /// Bytes freed while it rests, as far as they passed a bin.
    freed: AtomicU64,
    /// Inline: when the next tick is due, in milliseconds of the coarse clock; 0 at first.
    due: AtomicU64,
    /// Bytes given back.
    purged: AtomicU64,
}

/// What a thread that freed must do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wanted {
    Nothing,
    Thread,
    Tick,
}

impl Purger {
    pub(crate) const fn new() -> Self {
        Self {
            state: AtomicU32::new(RESTING),
            freed: AtomicU64::new(0),
            due: AtomicU64::new(0),
            purged: AtomicU64::new(0),
        }
    }

    /// Bytes given back so far.
    pub(crate) fn purged_bytes(&self) -> u64 {
        self.purged.load(Ordering::Relaxed)
    }

    /// Counts bytes given back.
    pub(crate) fn count_purged(&self, bytes: u64) {
        // Relaxed: only a count.
        self.purged.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts freed bytes while nobody ticks, and says who does next.
    fn count(&self, bytes: usize, tuning: &Tuning) -> Wanted {
        let state = self.state.load(Ordering::Relaxed);
        if state == INLINE && !tuning.background() {
            return self.look_at_clock(tuning);
        }
        if state >= TICKING {
            return Wanted::Nothing;
        }
        // Relaxed: only a count.
        let freed = self.freed.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        if freed < START_BYTES {
            return match state {
                INLINE => self.look_at_clock(tuning),
                _ => Wanted::Nothing,
            };
        }
        let (next, wanted) = match tuning.purge_ms() {
            u64::MAX => (OFF, Wanted::Nothing),
            _ if tuning.background() => (TICKING, Wanted::Thread),
            _ => (INLINE, Wanted::Nothing),
        };
        if self.change(state, next) {
            wanted
        } else {
            Wanted::Nothing
        }
    }

    fn look_at_clock(&self, tuning: &Tuning) -> Wanted {
        let now = coarse_ms();
        let due = self.due.load(Ordering::Relaxed);
        if due != 0 && now < due {
            return Wanted::Nothing;
        }
        let next = now.saturating_add(tick_ms(tuning));
        // Relaxed: whoever changes it ticks; two at once would harm nobody (P1).
        let mine = (self.due)
            .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok();
        if mine && due != 0 {
            Wanted::Tick
        } else {
            Wanted::Nothing
        }
    }

    /// Relaxed: the locks order it against frees (P2).
    fn change(&self, from: u32, to: u32) -> bool {
        self.state
            .compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }

    /// Ends the ticking if nothing is idle; whether it has ended (P2).
    fn rest(&self, has_idle: impl Fn() -> bool) -> bool {
        if has_idle() {
            return false;
        }
        self.freed.store(0, Ordering::Relaxed);
        self.state.store(RESTING, Ordering::Relaxed);
        // A free that could not have the lock is seen below, or sees the state (see `Deferred::push`).
        fence(Ordering::SeqCst);
        // If another thread was started meanwhile, that one goes on.
        !(has_idle() && self.change(RESTING, TICKING))
    }

    /// No thread could be had.
    fn refused(&self) {
        self.freed.store(0, Ordering::Relaxed);
        self.change(TICKING, INLINE);
    }

    /// In the child of a fork (P4).
    pub(crate) fn in_child(&self) {
        if self.change(TICKING, RESTING) {
            self.freed.store(START_BYTES, Ordering::Relaxed);
        }
    }
}

fn tick_ms(tuning: &Tuning) -> u64 {
    (tuning.purge_ms() / 2).max(LEAST_TICK_MS)
}

/// Told after memory was freed past the caches, by a thread that holds no lock and has left its part.
#[inline]
pub(crate) fn freed(bytes: usize) {
    // Relaxed: the free was done under a lock that the purger takes before it looks (P2).
    if PROCESS.purger.state.load(Ordering::Relaxed) < TICKING {
        freed_unseen(bytes);
    }
}

/// Told when a thread ends, by that thread: what it leaves counts as freed.
pub(crate) fn thread_ended() {
    freed(THREAD_BYTES);
}

/// Told on other slow paths, for ticks by the clock.
#[inline]
pub(crate) fn passed() {
    if PROCESS.purger.state.load(Ordering::Relaxed) == INLINE {
        freed_unseen(0);
    }
}

#[cold]
#[inline(never)]
fn freed_unseen(bytes: usize) {
    match PROCESS.purger.count(bytes, &PROCESS.tuning) {
        Wanted::Nothing => {}
        Wanted::Tick => PROCESS.tick(),
        Wanted::Thread => {
            if !start_thread(run) {
                PROCESS.purger.refused();
                // Twice: what is young grows old, and goes.
                PROCESS.tick();
                PROCESS.tick();
            }
        }
    }
}

/// The thread: ticks until nothing is idle.
extern "C" fn run(_: *mut c_void) -> *mut c_void {
    be_ordinary();
    name_thread();
    let mut due = coarse_ms();
    loop {
        let (now, tick) = (coarse_ms(), tick_ms(&PROCESS.tuning));
        // A tick that took long does not put the next one off, but never comes at once.
        due = due.saturating_add(tick).max(now.saturating_add(tick / 4));
        sleep_ns((due - now).saturating_mul(1_000_000));
        PROCESS.tick();
        if PROCESS.purger.rest(|| PROCESS.has_idle()) {
            return ptr::null_mut();
        }
    }
}

impl<O: Os> Process<O> {
    /// One tick: what has been idle since the last one goes back.
    pub(crate) fn tick(&'static self) {
        // What comes back so is young: it may have been freed a moment ago.
        self.flush_idle_caches();
        self.receive();
        self.pool.for_each(|heap| {
            let age = |owner, set: &mut SpanSet| {
                // SAFETY: the heap's own remote-free queue and set (H3).
                unsafe { set.age(owner, LISTS, &mut IdlePages(PagesOf(self))) }
            };
            while !self.step(heap, age) {}
        });
        // What lay old in the transfer caches of others is not.
        self.pool.for_each(|heap| {
            let budget = LISTS.max(heap.with(|_, set| set.kept()) / STEPS);
            let settle = |owner, set: &mut SpanSet| {
                // SAFETY: the heap's own remote-free queue and set (H3).
                unsafe { set.settle(owner, budget, &mut IdlePages(PagesOf(self))) }
            };
            while !self.step(heap, settle) {}
        });
        for arena in self.arenas() {
            self.purger.count_purged(arena.age());
            if arena.review_advice() {
                // What went back while there was the advice may have come again: the next tick looks.
                self.each_heap_looks_again();
            }
        }
    }

    /// Has all spans looked at again by the next tick or trim, holes included.
    pub(crate) fn each_heap_looks_again(&'static self) {
        self.pool.for_each(|heap| {
            heap.with(|_, set| set.forget_looks());
        });
    }

    /// Gives up what the heaps keep at hand, and scans their spans, in steps between which others work.
    pub(crate) fn trim_heaps(&'static self) {
        self.pool.for_each(|heap| {
            // What is put aside meanwhile is younger than this call.
            let kept = heap.with(|_, set| set.kept());
            let budget = LISTS.max(kept / STEPS);
            let trim = |owner, set: &mut SpanSet| {
                // SAFETY: the heap's own remote-free queue and set (H3).
                unsafe { set.trim(owner, budget, &mut PagesOf(self)) }
            };
            for _ in 0..kept / budget + 2 {
                if self.step(heap, trim) {
                    break;
                }
            }
        });
    }

    /// A step of a heap's tick; whether it was the last.
    fn step(
        &'static self,
        heap: &'static Heap,
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
            let cache = heap.with_idle_cache(|_, _, cache| !cache.are_empty());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn tuned(config: Config) -> Tuning {
        let tuning = Tuning::new();
        tuning.apply(&config);
        tuning
    }

    #[test]
    fn a_thread_is_wanted_once_when_enough_was_freed() {
        let (purger, tuning) = (Purger::new(), tuned(Config::BALANCED));
        let max = START_BYTES as usize;
        assert_eq!(purger.count(max - 1, &tuning), Wanted::Nothing);
        assert_eq!(purger.count(1, &tuning), Wanted::Thread);
        assert_eq!(purger.count(max, &tuning), Wanted::Nothing);
        assert!(!purger.rest(|| true), "something is idle");
        assert!(purger.rest(|| false));
        assert_eq!(purger.count(max - 1, &tuning), Wanted::Nothing, "from 0");
        assert_eq!(purger.count(1, &tuning), Wanted::Thread);
    }

    #[test]
    fn what_came_while_it_went_to_rest_is_seen() {
        let (purger, tuning) = (Purger::new(), tuned(Config::BALANCED));
        purger.count(START_BYTES as usize, &tuning);
        let looks = std::cell::Cell::new(0);
        let second = || looks.replace(looks.get() + 1) == 1;
        assert!(!purger.rest(second), "it goes on");
        assert_eq!(purger.state.load(Ordering::Relaxed), TICKING);
    }

    #[test]
    fn the_child_of_a_fork_starts_its_own_at_the_next_free() {
        let (purger, tuning) = (Purger::new(), tuned(Config::BALANCED));
        purger.in_child();
        assert_eq!(purger.count(1, &tuning), Wanted::Nothing, "none had run");
        purger.count(START_BYTES as usize, &tuning);
        purger.in_child();
        assert_eq!(purger.count(1, &tuning), Wanted::Thread);
    }

    #[test]
    fn without_a_thread_the_clock_says_when() {
        let config = Config {
            background: false,
            ..Config::BALANCED
        };
        let (purger, tuning) = (Purger::new(), tuned(config));
        assert_eq!(purger.count(START_BYTES as usize, &tuning), Wanted::Nothing);
        assert_eq!(purger.count(0, &tuning), Wanted::Nothing, "not due yet");
        assert_eq!(purger.count(0, &tuning), Wanted::Nothing);
        // Long ago.
        purger.due.store(1, Ordering::Relaxed);
        assert_eq!(purger.count(0, &tuning), Wanted::Tick);
        assert_eq!(purger.count(0, &tuning), Wanted::Nothing, "once");
    }

    #[test]
    fn a_refused_thread_is_wanted_again_after_as_many_bytes() {
        let (purger, tuning) = (Purger::new(), tuned(Config::BALANCED));
        let max = START_BYTES as usize;
        for _ in 0..3 {
            assert_eq!(purger.count(max, &tuning), Wanted::Thread);
            purger.refused();
            assert_eq!(purger.count(max - 1, &tuning), Wanted::Nothing);
            purger.due.store(1, Ordering::Relaxed);
            assert_eq!(
                purger.count(0, &tuning),
                Wanted::Tick,
                "until then by the clock"
            );
            purger.due.store(u64::MAX, Ordering::Relaxed);
            purger.freed.store(0, Ordering::Relaxed);
        }
    }

    #[test]
    fn for_ever_is_never() {
        let config = Config {
            purge_ms: u64::MAX,
            ..Config::BALANCED
        };
        let (purger, tuning) = (Purger::new(), tuned(config));
        assert_eq!(purger.count(usize::MAX >> 1, &tuning), Wanted::Nothing);
        assert_eq!(purger.state.load(Ordering::Relaxed), OFF);
    }
}
