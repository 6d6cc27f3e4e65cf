//! [`Purger`]: the state that decides which thread makes the ticks of a process, and when.

use larder_core::sync::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

use crate::config::Tuning;
use crate::os::background::sleep_ns;
use crate::os::{Os, WAKES, sleep_while, wake_one};

/// Minimum bytes freed beyond the caches for a tick to be worth its time.
const START_BYTES: u64 = 2 << 20;
/// Minimum bytes that must be allocated from the arenas for a thread to be worth its start, and be
/// in use for it to stay. Spans count as a whole, and the spans of a small program are mostly
/// untouched.
const USE_BYTES: u64 = 8 << 20;
/// Minimum milliseconds between two ticks, whatever the delay.
const LEAST_TICK_MS: u64 = 25;

/// Relative and absolute growth after which the heap purges as much again; at most once in this
/// interval, or in a longer interval proportional to the cost.
const GROWN_PART: u64 = 64;
const GROWN_BYTES: u64 = 1 << 20;
const MAKE_UP_MS: u64 = 10;
/// Blocks (see `tick`) per millisecond of pause after making up: the pause is sixteen times as long
/// as the work.
const MAKE_UP_MS_BLOCKS: u64 = 400;

/// States. From `TICKING` on, frees need not be counted.
const RESTING: u32 = 0;
const WAITING: u32 = 1;
const WANTED: u32 = 2;
const INLINE: u32 = 3;
const TICKING: u32 = 4;
const OFF: u32 = 5;

/// Which thread makes the ticks of a process, and their results.
pub(crate) struct Purger {
    state: AtomicU32,
    /// Bytes freed beyond a bin while there are no ticks.
    freed: AtomicU64,
    /// Bytes allocated from the arenas while the purger rests.
    taken: AtomicU64,
    /// Threads that have a heap.
    threads: AtomicUsize,
    /// In the state Inline: when the next tick is due, in milliseconds of the coarse clock; 0 at
    /// first.
    due: AtomicU64,
    /// Bytes returned.
    purged: AtomicU64,
    /// Whether the system is asked how many of the returned bytes were resident: 1 for no, 2 for
    /// yes, 0 if that is not known.
    asks: AtomicU8,
    /// Committed bytes above which growth counts.
    bound: AtomicU64,
    /// Bytes of growth for which the heap has not made up yet.
    grown: AtomicU64,
    /// Earliest time to make up for growth, in milliseconds of the coarse clock.
    may_make_up: AtomicU64,
    /// Number of ticks that calls of the program owe, made in steps.
    owed: AtomicU32,
    /// Whether the heap is making up for growth, with a step in each call.
    making_up: AtomicU32,
    /// When calls of the program were last given work or did some of it, in milliseconds of the
    /// coarse clock.
    asked: AtomicU64,
}

/// The next action of the purge thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// Ticks: something is idle.
    Tick,
    /// Waits until enough has been freed: nothing is idle, but enough is in use.
    Wait,
    /// Ends: too little is in use, or only threads that have ended used it.
    End,
}

impl Purger {
    pub(crate) const fn new() -> Self {
        Self {
            state: AtomicU32::new(RESTING),
            freed: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            threads: AtomicUsize::new(0),
            due: AtomicU64::new(0),
            purged: AtomicU64::new(0),
            asks: AtomicU8::new(0),
            bound: AtomicU64::new(START_BYTES),
            grown: AtomicU64::new(0),
            may_make_up: AtomicU64::new(0),
            owed: AtomicU32::new(0),
            making_up: AtomicU32::new(0),
            asked: AtomicU64::new(0),
        }
    }

    /// Returns the bytes returned to the system so far.
    pub(crate) fn purged_bytes(&self) -> u64 {
        self.purged.load(Ordering::Relaxed)
    }

    /// Counts bytes returned to the system.
    pub(crate) fn count_purged(&self, bytes: u64) {
        // Relaxed: only a count.
        self.purged.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Forgets whether the process is filtered, before a step: the program may have installed a
    /// filter.
    pub(crate) fn forget_filter(&self) {
        // Relaxed, as wherever `asks` is used: a filter applies to the thread that installed it.
        self.asks.store(0, Ordering::Relaxed);
    }

    /// Returns whether the system may be asked which returned bytes were resident. It may be asked
    /// unless the process is filtered.
    pub(crate) fn asks(&self, os: &impl Os) -> bool {
        match self.asks.load(Ordering::Relaxed) {
            0 => {
                let asks = !os.is_filtered();
                self.asks.store(1 + u8::from(asks), Ordering::Relaxed);
                asks
            }
            known => known > 1,
        }
    }

    /// Records that the heap has grown to `held` committed bytes.
    pub(crate) fn grew(&self, held: u64, now: u64) {
        self.asked.store(now, Ordering::Relaxed);
        // Relaxed: growth that two threads count twice or miss does not matter.
        let bound = self.bound.load(Ordering::Relaxed);
        if held > bound {
            let step = (held / GROWN_PART).max(GROWN_BYTES);
            self.bound.store(held + step, Ordering::Relaxed);
            (self.grown).fetch_add(held - bound + step, Ordering::Relaxed);
        }
    }

    /// Takes the bytes of growth that are to be made up for now; 0 if there are none.
    pub(crate) fn take_grown(&self, now: u64) -> u64 {
        if now < self.may_make_up.load(Ordering::Relaxed) {
            return 0;
        }
        self.grown.swap(0, Ordering::Relaxed)
    }

    /// Records that the heap is making up for growth.
    pub(super) fn makes_up(&self) {
        // Relaxed, as wherever `making_up` is used: a hint; the lock of the work orders the rest.
        self.making_up.store(1, Ordering::Relaxed);
    }

    /// Records that the heap has made up for growth, at this cost in blocks.
    pub(super) fn made_up(&self, now: u64, cost: u64) {
        let pause = MAKE_UP_MS.max(cost / MAKE_UP_MS_BLOCKS);
        self.may_make_up
            .store(now.saturating_add(pause), Ordering::Relaxed);
        self.making_up.store(0, Ordering::Relaxed);
    }

    /// Makes calls of the program owe `ticks` ticks, which they make in steps.
    pub(crate) fn owe_ticks(&self, ticks: u32, now: u64) {
        // Relaxed: a tick more or less does not matter.
        self.asked.store(now, Ordering::Relaxed);
        self.owed.fetch_max(ticks, Ordering::Relaxed);
    }

    /// Records that a call of the program is about to do a step. Drops the due work if no call came
    /// for the time of a tick, and returns whether it did. If such work were not dropped, memory
    /// that a program frees and immediately allocates again would be returned in between, because
    /// ticks without time between them age everything.
    pub(super) fn lapses(&self, now: u64, tuning: &Tuning) -> bool {
        // The number is not written again and again, because all threads read the line it is in.
        if self.asked.load(Ordering::Relaxed) == now {
            return false;
        }
        let asked = self.asked.swap(now, Ordering::Relaxed);
        let lapses = now.saturating_sub(asked) > tick_ms(tuning);
        if lapses {
            self.grown.store(0, Ordering::Relaxed);
            self.owed.store(0, Ordering::Relaxed);
        }
        lapses
    }

    /// Returns whether calls of the program owe a tick.
    pub(crate) fn owes_ticks(&self) -> bool {
        self.owed.load(Ordering::Relaxed) > 0
    }

    /// Counts a finished tick. Called under the lock of the work.
    pub(super) fn ticked(&self) {
        let owed = self.owed.load(Ordering::Relaxed);
        self.owed.store(owed.saturating_sub(1), Ordering::Relaxed);
    }

    /// Returns whether a call of the program has work to do.
    pub(crate) fn has_work(&self) -> bool {
        self.owes_ticks()
            || self.grown.load(Ordering::Relaxed) > 0
            || self.making_up.load(Ordering::Relaxed) > 0
    }

    /// Returns whether the only work of calls of the program is to make up for growth, and that must wait.
    pub(super) fn is_paused(&self, now: u64) -> bool {
        !self.owes_ticks()
            && self.making_up.load(Ordering::Relaxed) == 0
            && now < self.may_make_up.load(Ordering::Relaxed)
    }

    /// Counts bytes allocated from an arena. Only counts: the caller may hold locks.
    #[inline]
    pub(crate) fn taken(&self, bytes: usize, tuning: &Tuning) {
        // Relaxed: only a count.
        if self.state.load(Ordering::Relaxed) == RESTING {
            self.taken_unseen(bytes, tuning);
        }
    }

    #[cold]
    fn taken_unseen(&self, bytes: usize, tuning: &Tuning) {
        let taken = self.taken.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        if taken >= USE_BYTES && tuning.config().background {
            self.want(RESTING, tuning);
        }
    }

    /// Counts a thread that gets a heap.
    pub(crate) fn thread_began(&self) {
        self.threads.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of threads that have a heap.
    #[inline]
    pub(crate) fn threads(&self) -> usize {
        self.threads.load(Ordering::Relaxed)
    }

    /// Counts a thread that loses its heap.
    pub(crate) fn thread_ended(&self) {
        // Relaxed: `wake_if_alone` follows (PURGE5).
        self.threads.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns whether frees are counted.
    #[inline]
    pub(super) fn counts(&self) -> bool {
        // Relaxed: the free was done under a lock that the purger takes before it scans (PURGE2).
        self.state.load(Ordering::Relaxed) < TICKING
    }

    /// Returns whether allocations tick, by the clock.
    #[inline]
    pub(super) fn is_inline(&self) -> bool {
        self.state.load(Ordering::Relaxed) == INLINE
    }

    /// Returns whether the purge thread should be started.
    #[inline]
    pub(super) fn wants_thread(&self) -> bool {
        self.state.load(Ordering::Relaxed) == WANTED
    }

    /// Claims the start of the purge thread. Returns whether the caller must start it.
    pub(super) fn begin_start(&self) -> bool {
        self.change(WANTED, TICKING)
    }

    /// Wakes the purge thread if it waits and no thread has a heap.
    pub(super) fn wake_if_alone(&self) {
        // Either the purge thread sees that the calling thread is no longer counted, or this thread
        // sees it waiting (PURGE5).
        fence(Ordering::SeqCst);
        if self.threads.load(Ordering::Relaxed) == 0 && self.change(WAITING, TICKING) {
            wake_one(&self.state);
        }
    }

    /// Waits until a thread that frees memory, or ends, requests ticks. Polls every `ms`
    /// milliseconds where the system cannot wake a thread.
    pub(super) fn wait(&self, ms: u64) {
        while self.state.load(Ordering::Relaxed) == WAITING {
            match WAKES {
                true => sleep_while(&self.state, WAITING),
                false => sleep_ns(ms.saturating_mul(1_000_000)),
            }
        }
    }

    /// Counts freed bytes while there are no ticks, and wakes the purge thread if they are enough.
    pub(super) fn freed(&self, bytes: usize, tuning: &Tuning) {
        if self.count(bytes, tuning) {
            wake_one(&self.state);
        }
    }

    /// Counts freed bytes while there are no ticks. Returns whether the purge thread must be woken.
    fn count(&self, bytes: usize, tuning: &Tuning) -> bool {
        let state = self.state.load(Ordering::Relaxed);
        let counts = match state {
            WAITING => true,
            RESTING => !tuning.config().background,
            INLINE => tuning.config().background,
            _ => false,
        };
        if !counts {
            return false;
        }
        // Relaxed: only a count.
        let freed = self.freed.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        if freed < START_BYTES {
            return false;
        }
        match state {
            WAITING => self.change(WAITING, TICKING),
            _ => {
                self.want(state, tuning);
                false
            }
        }
    }

    /// Returns whether a tick of the calling thread is due by the clock.
    pub(super) fn is_due(&self, now: u64, tuning: &Tuning) -> bool {
        let due = self.due.load(Ordering::Relaxed);
        if due != 0 && now < due {
            return false;
        }
        let next = now.saturating_add(tick_ms(tuning));
        // Relaxed: a thread that changes it ticks; two ticking threads would do no harm (PURGE1).
        let mine = (self.due)
            .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok();
        mine && due != 0
    }

    /// Changes the state to the one that follows once a tick is wanted.
    fn want(&self, from: u32, tuning: &Tuning) {
        match tuning.purge_ms() {
            u64::MAX => self.turn_off(from, tuning),
            _ => {
                let background = tuning.config().background;
                self.change(from, if background { WANTED } else { INLINE });
            }
        }
    }

    /// Ends the ticks, because the delay is infinite.
    fn turn_off(&self, from: u32, tuning: &Tuning) {
        self.change(from, OFF);
        // Either this thread sees that the delay has changed, or `delay_changed` sees this state
        // (PURGE6).
        fence(Ordering::SeqCst);
        if tuning.purge_ms() < u64::MAX {
            self.turn_on();
        }
    }

    fn turn_on(&self) {
        if self.change(OFF, RESTING) {
            // The next allocation or free counts as the one for which a tick is wanted.
            self.taken.store(USE_BYTES, Ordering::Relaxed);
            self.freed.store(START_BYTES, Ordering::Relaxed);
        }
    }

    /// Turns the ticks off if the delay is infinite. Returns whether it is. Called by the purge
    /// thread.
    pub(super) fn ends(&self, tuning: &Tuning) -> bool {
        let ends = tuning.purge_ms() == u64::MAX;
        if ends {
            self.turn_off(TICKING, tuning);
        }
        ends
    }

    /// Adapts to a delay that has changed. The purge thread reads the delay at its next tick.
    pub(crate) fn delay_changed(&self, tuning: &Tuning) {
        // The next call that reads the clock counts the new delay from then on.
        self.due.store(0, Ordering::Relaxed);
        if tuning.purge_ms() == u64::MAX {
            self.grown.store(0, Ordering::Relaxed);
            self.owed.store(0, Ordering::Relaxed);
        } else {
            fence(Ordering::SeqCst); // PURGE6
            self.turn_on();
        }
    }

    /// Changes the state. Relaxed: the locks order it against frees (PURGE2).
    fn change(&self, from: u32, to: u32) -> bool {
        self.state
            .compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }

    /// Puts the purge thread into the state that `look` returns, if `look` still returns it once
    /// others see that state (PURGE2).
    pub(super) fn rest(&self, look: impl Fn() -> Next) -> Next {
        let next = look();
        let state = match next {
            Next::Tick => return Next::Tick,
            Next::Wait => WAITING,
            Next::End => RESTING,
        };
        self.freed.store(0, Ordering::Relaxed);
        self.taken.store(0, Ordering::Relaxed);
        self.state.store(state, Ordering::Relaxed);
        // A free that could not take the lock is seen below, or sees the state (see
        // `Deferred::push`); so is or does a thread that ends (PURGE5).
        fence(Ordering::SeqCst);
        // If another purge thread has been started since, it continues instead.
        match look() != next && self.change(state, TICKING) {
            true => Next::Tick,
            false => next,
        }
    }

    /// Returns the next action while nothing is idle and `live` bytes are in use.
    pub(super) fn next(&self, live: u64) -> Next {
        // Relaxed: `rest` has the fence.
        let threads = self.threads.load(Ordering::Relaxed);
        match live >= USE_BYTES && threads > 0 {
            true => Next::Wait,
            false => Next::End,
        }
    }

    /// Records that no thread could be started.
    pub(super) fn refused(&self) {
        self.freed.store(0, Ordering::Relaxed);
        self.change(TICKING, INLINE);
    }

    /// Resets the state in the child of a fork, in which `threads` threads have a heap (PURGE4).
    pub(crate) fn in_child(&self, threads: usize) {
        self.threads.store(threads, Ordering::Relaxed);
        if !self.change(TICKING, WANTED) {
            self.change(WAITING, WANTED);
        }
    }
}

pub(super) fn tick_ms(tuning: &Tuning) -> u64 {
    (tuning.purge_ms() / 2).max(LEAST_TICK_MS)
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

    const ENOUGH: usize = START_BYTES as usize;

    fn state(purger: &Purger) -> u32 {
        purger.state.load(Ordering::Relaxed)
    }

    /// Returns a purger whose thread was started.
    fn ticking(tuning: &Tuning) -> Purger {
        let purger = Purger::new();
        purger.taken(USE_BYTES as usize, tuning);
        assert!(purger.begin_start());
        purger.thread_began();
        purger
    }

    #[test]
    fn a_thread_is_wanted_once_when_enough_was_taken_and_never_by_a_free() {
        let (purger, tuning) = (Purger::new(), tuned(Config::BALANCED));
        assert!(!purger.count(usize::MAX >> 1, &tuning));
        assert_eq!(state(&purger), RESTING);
        purger.taken(USE_BYTES as usize - 1, &tuning);
        assert!(!purger.wants_thread());
        purger.taken(1, &tuning);
        assert!(purger.wants_thread());
        assert!(purger.begin_start());
        assert!(!purger.begin_start(), "once");
        purger.taken(USE_BYTES as usize, &tuning);
        assert!(!purger.count(ENOUGH, &tuning));
        assert_eq!(state(&purger), TICKING);
    }

    #[test]
    fn the_thread_waits_while_much_is_in_use_and_is_woken_when_enough_was_freed() {
        let tuning = tuned(Config::BALANCED);
        let purger = ticking(&tuning);
        assert_eq!(purger.rest(|| Next::Tick), Next::Tick, "something is idle");
        assert_eq!(purger.rest(|| purger.next(USE_BYTES)), Next::Wait);
        assert!(!purger.count(ENOUGH - 1, &tuning));
        assert!(purger.count(1, &tuning), "it is woken");
        assert!(!purger.count(ENOUGH, &tuning), "once");
        assert_eq!(state(&purger), TICKING);
    }

    #[test]
    fn the_thread_ends_where_little_is_in_use_and_a_new_one_is_wanted_later() {
        let tuning = tuned(Config::BALANCED);
        let purger = ticking(&tuning);
        assert_eq!(purger.rest(|| purger.next(USE_BYTES - 1)), Next::End);
        purger.taken(USE_BYTES as usize - 1, &tuning);
        assert!(!purger.wants_thread(), "from 0");
        purger.taken(1, &tuning);
        assert!(purger.wants_thread());
    }

    #[test]
    fn the_thread_ends_when_no_thread_has_a_heap() {
        let tuning = tuned(Config::BALANCED);
        let purger = ticking(&tuning);
        assert_eq!(purger.rest(|| purger.next(u64::MAX)), Next::Wait);
        purger.wake_if_alone();
        assert_eq!(state(&purger), WAITING, "one has");
        purger.thread_ended();
        purger.wake_if_alone();
        assert_eq!(state(&purger), TICKING);
        assert_eq!(purger.rest(|| purger.next(u64::MAX)), Next::End);
    }

    #[test]
    fn what_came_while_it_went_to_rest_is_seen() {
        let tuning = tuned(Config::BALANCED);
        for first in [Next::Wait, Next::End] {
            let purger = ticking(&tuning);
            let looks = core::cell::Cell::new(0);
            let look = || match looks.replace(looks.get() + 1) {
                0 => first,
                _ => Next::Tick,
            };
            assert_eq!(purger.rest(look), Next::Tick, "it goes on");
            assert_eq!(state(&purger), TICKING);
        }
    }

    #[test]
    fn the_child_of_a_fork_starts_its_own_at_the_next_allocation() {
        let tuning = tuned(Config::BALANCED);
        let purger = Purger::new();
        purger.in_child(1);
        assert_eq!(state(&purger), RESTING, "none had run");
        for waits in [false, true] {
            let purger = ticking(&tuning);
            if waits {
                assert_eq!(purger.rest(|| Next::Wait), Next::Wait);
            }
            purger.in_child(1);
            assert!(!purger.count(ENOUGH, &tuning), "there is nobody to wake");
            assert!(purger.wants_thread());
        }
    }

    #[test]
    fn without_a_thread_the_clock_says_when() {
        let config = Config {
            background: false,
            ..Config::BALANCED
        };
        let (purger, tuning) = (Purger::new(), tuned(config));
        purger.taken(usize::MAX >> 1, &tuning);
        assert_eq!(state(&purger), RESTING);
        assert!(!purger.count(ENOUGH - 1, &tuning));
        assert!(!purger.is_inline());
        assert!(!purger.count(1, &tuning));
        assert!(purger.is_inline());
        assert!(!purger.is_due(1000, &tuning), "not due yet");
        let due = 1000 + tick_ms(&tuning);
        assert!(!purger.is_due(due - 1, &tuning));
        assert!(purger.is_due(due, &tuning));
        assert!(!purger.is_due(due, &tuning), "once");
    }

    #[test]
    fn what_calls_were_to_do_lapses_if_none_comes_for_the_time_of_a_tick() {
        let tuning = tuned(Config::BALANCED);
        let tick = tick_ms(&tuning);
        let purger = Purger::new();
        purger.grew(1 << 30, 1000);
        purger.owe_ticks(2, 2000);
        for calls in 1..4 {
            assert!(!purger.lapses(2000 + calls * tick, &tuning));
            assert!(purger.has_work() && purger.owes_ticks());
        }
        assert!(purger.lapses(2001 + 4 * tick, &tuning));
        assert!(!purger.has_work());
    }

    #[test]
    fn a_refused_thread_is_wanted_again_after_as_many_bytes() {
        let tuning = tuned(Config::BALANCED);
        let purger = ticking(&tuning);
        for _ in 0..3 {
            purger.refused();
            assert!(!purger.count(ENOUGH - 1, &tuning));
            assert!(purger.is_inline(), "until then by the clock");
            assert!(!purger.count(1, &tuning));
            assert!(purger.begin_start());
        }
    }

    #[test]
    fn growth_is_made_up_for_once_and_then_rests() {
        let purger = Purger::new();
        purger.grew(START_BYTES, 0);
        assert_eq!(purger.take_grown(1), 0, "as little as any heap has");
        purger.grew(3 * START_BYTES, 0);
        assert_eq!(purger.take_grown(1), 2 * START_BYTES + GROWN_BYTES);
        assert_eq!(purger.take_grown(1), 0, "once");
        purger.made_up(2, 20 * MAKE_UP_MS_BLOCKS);
        purger.grew(3 * START_BYTES + GROWN_BYTES, 0);
        purger.grew(1 << 30, 0);
        assert_eq!(purger.take_grown(1 + 20), 0, "not yet");
        assert!(purger.take_grown(2 + 20) > 1 << 29);
        purger.grew((1 << 30) + (1 << 20), 0);
        assert_eq!(purger.take_grown(u64::MAX), 0, "too little beside 1 GiB");
    }

    #[test]
    fn for_ever_is_never() {
        for background in [false, true] {
            let config = Config {
                purge_ms: u64::MAX,
                background,
                ..Config::BALANCED
            };
            let (purger, tuning) = (Purger::new(), tuned(config));
            purger.taken(usize::MAX >> 1, &tuning);
            assert!(!purger.count(usize::MAX >> 1, &tuning));
            assert_eq!(state(&purger), OFF);
        }
    }

    #[test]
    fn ticks_end_and_begin_again_as_the_delay_changes() {
        for background in [false, true] {
            let tuning = tuned(Config {
                background,
                ..Config::BALANCED
            });
            let purger = Purger::new();
            let set = |purge_ms| {
                tuning.set_purge_ms(purge_ms);
                purger.delay_changed(&tuning);
            };
            set(0);
            purger.taken(1, &tuning);
            assert!(!purger.count(1, &tuning));
            assert_eq!(state(&purger), RESTING, "little is in use");
            purger.owe_ticks(2, 0);
            purger.grew(1 << 30, 0);
            set(u64::MAX);
            assert!(!purger.has_work());
            purger.taken(USE_BYTES as usize, &tuning);
            purger.count(ENOUGH, &tuning);
            assert_eq!(state(&purger), OFF);
            set(0);
            purger.taken(1, &tuning);
            purger.count(1, &tuning);
            if background {
                assert!(purger.begin_start() && !purger.ends(&tuning));
                set(u64::MAX);
                assert!(purger.ends(&tuning));
                assert_eq!(state(&purger), OFF);
                set(5000);
                purger.taken(1, &tuning);
                assert!(purger.wants_thread(), "another one");
            } else {
                assert!(purger.is_inline());
                assert!(!purger.is_due(1000, &tuning));
                set(5000);
                assert!(!purger.is_due(2000, &tuning), "from now on");
                assert!(!purger.is_due(4499, &tuning));
                assert!(purger.is_due(4500, &tuning));
                set(u64::MAX);
                assert!(!purger.is_due(5000, &tuning) && !purger.is_due(1 << 60, &tuning));
            }
        }
    }

    #[test]
    fn a_delay_that_changes_while_ticks_end_is_seen() {
        let tuning = tuned(Config::BALANCED);
        let purger = ticking(&tuning);
        tuning.set_purge_ms(1000);
        purger.turn_off(TICKING, &tuning);
        purger.taken(1, &tuning);
        assert!(purger.wants_thread());
    }
}
