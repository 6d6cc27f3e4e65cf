//! [`LockWord`]: the one word of a lock, and the way threads wait for it.
//!
//! ```text
//!            take                another thread waits
//!   FREE ──────────► HELD ─────────────────────────► HELD | AWAITED
//!    ▲                │ unlock                          │ unlock, wakes one sleeper
//!    └────────────────┴─────────────────────────────────┘
//! ```
//! A thread that finds the lock held tries again [`TURNS`] times, with [`Wait::wait`] in between. Then it sleeps, if
//! `W` can ([`Wait::SLEEPS`]).
//!
//! # Invariants
//! * LOCK1 at most one thread at a time is between a `lock` that returned [`Taken::Mine`] and its `unlock`.
//! * LOCK2 while a thread sleeps and the lock is held, AWAITED is set, or a woken thread is on its way. A thread that
//!   has slept takes the lock as AWAITED, since it cannot know whether others still sleep.
//! * LOCK3 KEPT is set by the holder, for the time of a fork, and only with HELD.
//! * LOCK4 TRIED means that a `try_lock` failed since the lock was taken: the next one fails immediately, as the holder
//!   seems to be off the processor.

use super::{AtomicU32, Ordering, Wait};

const FREE: u32 = 0;
const HELD: u32 = 1;
const AWAITED: u32 = 2;
const KEPT: u32 = 4;
const TRIED: u32 = 8;

/// Number of times that a thread tries before it sleeps. The tries take about as long as a sleep and a wake.
#[cfg(not(larder_loom))]
const TURNS: u32 = 100;
#[cfg(larder_loom)]
const TURNS: u32 = 1;

/// How a thread came to hold a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// The lock is the thread's until it unlocks.
    Mine,
    /// The thread already keeps the lock across a fork: it must not unlock it now.
    Kept,
}

/// The word of a lock.
#[derive(Debug)]
pub struct LockWord(AtomicU32);

impl LockWord {
    /// Creates a free lock.
    #[cfg(not(larder_loom))]
    pub const fn new() -> Self {
        Self(AtomicU32::new(FREE))
    }

    /// Creates a free lock.
    #[cfg(larder_loom)]
    pub fn new() -> Self {
        Self(AtomicU32::new(FREE))
    }

    /// Takes the lock, or waits for it through `W`. One compare-and-swap if it is free.
    #[inline]
    pub fn lock<W: Wait>(&self) -> Taken {
        if self.try_take(HELD) {
            return Taken::Mine;
        }
        let taken = self.lock_slow::<W>();
        // If no locks are kept, the caller of `unlock` need not check.
        W::KEEPS_LOCKS.map_or(Taken::Mine, |_| taken)
    }

    /// Takes the lock if that is possible without sleeping. Tries as often as [`lock`](Self::lock) does before it
    /// sleeps.
    #[inline]
    pub fn try_lock<W: Wait>(&self) -> Option<Taken> {
        if self.try_take(HELD) {
            return Some(Taken::Mine);
        }
        self.try_lock_slow::<W>()
    }

    /// Releases the lock, after a `lock` that returned [`Taken::Mine`].
    #[inline]
    pub fn unlock<W: Wait>(&self) {
        // Release: the next holder sees this one's writes.
        if !W::SLEEPS {
            self.0.store(FREE, Ordering::Release);
        } else if self.0.swap(FREE, Ordering::Release) & AWAITED != 0 {
            W::wake(&self.0);
        }
    }

    /// Takes the lock if it is free. Returns whether it did.
    #[inline]
    fn try_take(&self, to: u32) -> bool {
        // Acquire: sees the last holder's writes.
        self.0
            .compare_exchange(FREE, to, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    #[cold]
    #[inline(never)]
    fn try_lock_slow<W: Wait>(&self) -> Option<Taken> {
        let mut seen = self.0.load(Ordering::Relaxed);
        for _ in 0..TURNS {
            if seen == FREE && self.try_take(HELD) {
                return Some(Taken::Mine);
            }
            if seen & KEPT != 0 && Self::is_keeper::<W>() {
                return Some(Taken::Kept);
            }
            if seen & TRIED != 0 {
                return None;
            }
            W::wait();
            seen = self.0.load(Ordering::Relaxed);
        }
        if seen != FREE {
            // Relaxed: a hint, which another change of the word may replace.
            let _ =
                self.0
                    .compare_exchange(seen, seen | TRIED, Ordering::Relaxed, Ordering::Relaxed);
        }
        None
    }

    #[cold]
    #[inline(never)]
    fn lock_slow<W: Wait>(&self) -> Taken {
        let mut turns = TURNS;
        let mut take_as = HELD;
        loop {
            let seen = self.0.load(Ordering::Relaxed);
            if seen == FREE {
                if self.try_take(take_as) {
                    return Taken::Mine;
                }
            } else if seen & KEPT != 0 && Self::is_keeper::<W>() {
                return Taken::Kept;
            } else if turns > 0 || !W::SLEEPS {
                turns = turns.saturating_sub(1);
                W::wait();
            } else if self.say_awaited(seen) {
                W::sleep(&self.0, seen | AWAITED);
                take_as = HELD | AWAITED;
            }
        }
    }

    /// Returns whether the calling thread is the one that keeps locks.
    fn is_keeper<W: Wait>() -> bool {
        W::KEEPS_LOCKS.is_some_and(|keeps| keeps())
    }

    /// Sets AWAITED in the word, if that is still `seen`. Returns whether it is set now (LOCK2).
    fn say_awaited(&self, seen: u32) -> bool {
        // Relaxed: no read depends on it.
        seen & AWAITED != 0
            || self
                .0
                .compare_exchange(seen, seen | AWAITED, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }
}

/// Locks that are kept across a fork.
#[cfg(not(larder_loom))]
impl LockWord {
    /// Takes the lock and keeps it until [`unlock_kept`](Self::unlock_kept).
    pub(crate) fn lock_and_keep<W: Wait>(&self) {
        if self.lock::<W>() == Taken::Mine {
            // Relaxed: read by this thread, or by others as a hint.
            self.0.fetch_or(KEPT, Ordering::Relaxed);
        }
    }

    /// Releases a lock that is kept; any other stays as it is.
    pub(crate) fn unlock_kept<W: Wait>(&self) {
        if self.0.load(Ordering::Relaxed) & KEPT != 0 {
            self.unlock::<W>();
        }
    }
}

impl Default for LockWord {
    fn default() -> Self {
        Self::new()
    }
}
