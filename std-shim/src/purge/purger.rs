//! [`Purger`]: who makes the ticks of a process, and when.

use core::ffi::c_void;
use core::ptr;

use larder_core::sync::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

use crate::config::Tuning;
use crate::os::background::{be_ordinary, coarse_ms, name_thread, sleep_ns, start_thread};
use crate::process::PROCESS;

/// So much must be freed past the caches before a thread is worth its start.
const START_BYTES: u64 = 2 << 20;
/// Ticks are not made more often than this, whatever the delay.
const LEAST_TICK_MS: u64 = 25;
/// What a thread that ends is counted with: mostly it leaves less.
const THREAD_BYTES: usize = 64 << 10;

/// A heap that has grown by this part of what it holds, and by so many bytes, makes up for it, if nobody has for so
/// long, and for so many times as long as it took.
const GROWN_PART: u64 = 64;
const GROWN_BYTES: u64 = 1 << 20;
const MAKE_UP_MS: u64 = 10;
const MAKE_UP_SHARE: u64 = 16;

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
    /// Whether the system is asked how much of it was in memory: not where the process is filtered.
    asks: AtomicU8,
    /// What the heap may hold until its growth counts.
    bound: AtomicU64,
    /// Bytes that it grew by and that nobody has made up for yet.
    grown: AtomicU64,
    /// When somebody may, in milliseconds of the coarse clock.
    may_make_up: AtomicU64,
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
            asks: AtomicU8::new(0),
            bound: AtomicU64::new(START_BYTES),
            grown: AtomicU64::new(0),
            may_make_up: AtomicU64::new(0),
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

    /// Before memory goes back: whether the system may be asked how much of it is there.
    pub(crate) fn set_asks(&self, asks: bool) {
        // Relaxed, here and below: a filter counts for the thread that made it.
        self.asks.store(u8::from(asks), Ordering::Relaxed);
    }

    /// Whether the system may be asked.
    pub(crate) fn asks(&self) -> bool {
        self.asks.load(Ordering::Relaxed) > 0
    }

    /// Told when the heap has grown: it holds so much now.
    pub(crate) fn grew(&self, held: u64) {
        // Relaxed: what two threads that grow at once count twice or not at all does not matter.
        let bound = self.bound.load(Ordering::Relaxed);
        if held > bound {
            let step = (held / GROWN_PART).max(GROWN_BYTES);
            self.bound.store(held + step, Ordering::Relaxed);
            (self.grown).fetch_add(held - bound + step, Ordering::Relaxed);
        }
    }

    /// Takes what is to be made up for now: bytes, 0 for nothing.
    pub(crate) fn take_grown(&self, now: u64) -> u64 {
        if now < self.may_make_up.load(Ordering::Relaxed) {
            return 0;
        }
        self.grown.swap(0, Ordering::Relaxed)
    }

    /// It was made up for, from one time to another.
    fn made_up(&self, begin: u64, end: u64) {
        let took = end.saturating_sub(begin);
        let pause = MAKE_UP_MS.max(took.saturating_mul(MAKE_UP_SHARE));
        self.may_make_up
            .store(end.saturating_add(pause), Ordering::Relaxed);
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
        // Relaxed: whoever changes it ticks; two at once would harm nobody (PURGE1).
        let mine = (self.due)
            .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok();
        if mine && due != 0 {
            Wanted::Tick
        } else {
            Wanted::Nothing
        }
    }

    /// Relaxed: the locks order it against frees (PURGE2).
    fn change(&self, from: u32, to: u32) -> bool {
        self.state
            .compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    }

    /// Ends the ticking if nothing is idle; whether it has ended (PURGE2).
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

    /// In the child of a fork (PURGE4).
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
    // Relaxed: the free was done under a lock that the purger takes before it looks (PURGE2).
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

/// Told after memory was found, before the program touches it, by a thread that holds no lock and has left its
/// part: makes up for growth, and for what was taken where the process may have so much only.
#[inline]
pub(crate) fn found() {
    // Relaxed: only a count.
    if PROCESS.purger.grown.load(Ordering::Relaxed) > 0 {
        make_up();
    }
    if PROCESS.within.is_due() {
        PROCESS.stay_within();
    }
}

#[cold]
#[inline(never)]
fn make_up() {
    let (purger, begin) = (&PROCESS.purger, coarse_ms());
    let bytes = purger.take_grown(begin);
    if bytes > 0 {
        PROCESS.make_up(bytes);
        purger.made_up(begin, coarse_ms());
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
        let looks = core::cell::Cell::new(0);
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
    fn growth_is_made_up_for_once_and_then_rests() {
        let purger = Purger::new();
        purger.grew(START_BYTES);
        assert_eq!(purger.take_grown(1), 0, "as little as any heap has");
        purger.grew(3 * START_BYTES);
        assert_eq!(purger.take_grown(1), 2 * START_BYTES + GROWN_BYTES);
        assert_eq!(purger.take_grown(1), 0, "once");
        purger.made_up(1, 2);
        purger.grew(3 * START_BYTES + GROWN_BYTES);
        purger.grew(1 << 30);
        assert_eq!(purger.take_grown(1 + MAKE_UP_SHARE), 0, "not yet");
        assert!(purger.take_grown(2 + MAKE_UP_SHARE) > 1 << 29);
        purger.grew((1 << 30) + (1 << 20));
        assert_eq!(purger.take_grown(u64::MAX), 0, "too little beside 1 GiB");
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
