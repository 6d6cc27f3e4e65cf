//! [`LockWord`]: the word of a lock, and how threads wait for it.
//!
//! ```text
//!            take                another thread waits
//!   FREE ──────────► HELD ─────────────────────────► HELD | AWAITED
//!    ▲                │ unlock                          │ unlock, wakes one sleeper
//!    └────────────────┴─────────────────────────────────┘
//! ```
//! A thread that finds the lock held tries again [`TURNS`] times, with [`Wait::wait`] in between. Then it sleeps, if
//! `W` supports this ([`Wait::SLEEPS`]).
//!
//! # Invariants
//! * LOCK1 at most one thread at a time is between a `lock` that returned [`Taken::Mine`] and its `unlock`.
//! * LOCK2 while a thread sleeps and the lock is held, either AWAITED is set, or a woken thread, or one that is about to
//!   be woken, is about to take the lock or to set AWAITED. A thread that has slept takes the lock as AWAITED, because
//!   it cannot know whether others still sleep.
//! * LOCK3 the holder sets KEPT for the duration of a fork, and only together with HELD.
//! * LOCK4 TRIED means that a `try_lock` has failed since the lock was taken. The next `try_lock` fails immediately,
//!   because the holder seems not to be running.

use super::{AtomicU32, Ordering, Wait};

const FREE: u32 = 0;
const HELD: u32 = 1;
const AWAITED: u32 = 2;
const KEPT: u32 = 4;
const TRIED: u32 = 8;

/// Number of times that a thread tries before it sleeps. These tries take about as long as a sleep and a wake.
#[cfg(not(larder_loom))]
const TURNS: u32 = 100;
#[cfg(larder_loom)]
const TURNS: u32 = 1;

/// How a thread came to hold a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// The thread has taken the lock, and must release it.
    Mine,
    /// The thread already keeps the lock across a fork, and must not release it now.
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
        // If locks are never kept, this is a constant, and the caller's check is optimised away.
        W::KEEPS_LOCKS.map_or(Taken::Mine, |_| taken)
    }

    /// Takes the lock, if this is possible without sleeping. Tries as many times as [`lock`](Self::lock) does before it
    /// sleeps.
    #[inline]
    pub fn try_lock<W: Wait>(&self) -> Option<Taken> {
        // A word that many threads try again and again is read first, so that its cache line stays shared.
        if self.0.load(Ordering::Relaxed) == FREE && self.try_take(HELD) {
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
        } else if self.release() {
            W::wake(&self.0);
        }
    }

    /// Releases the lock. Returns whether a thread sleeps for it, which must then be woken.
    #[inline]
    fn release(&self) -> bool {
        // Release: the next holder sees this one's writes.
        self.0.swap(FREE, Ordering::Release) & AWAITED != 0
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
            // Relaxed: this is only a hint, and another change of the word may replace it.
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

    /// Sets AWAITED in the word, if the word is still `seen`. Returns whether AWAITED is now set (LOCK2).
    fn say_awaited(&self, seen: u32) -> bool {
        // Relaxed: no read depends on this write.
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
    /// Takes the lock, or waits for it, and keeps it until [`release_kept`](Self::release_kept).
    pub fn keep<W: Wait>(&self) {
        if self.lock::<W>() == Taken::Mine {
            // Relaxed: only this thread relies on the flag; for other threads it is a hint.
            self.0.fetch_or(KEPT, Ordering::Relaxed);
        }
    }

    /// Releases the lock if it is kept, and does nothing otherwise. Returns whether a thread sleeps for the lock. The
    /// caller must then call [`wake_one`](Self::wake_one); until then other threads can take the lock.
    #[must_use]
    pub fn release_kept(&self) -> bool {
        self.0.load(Ordering::Relaxed) & KEPT != 0 && self.release()
    }

    /// Wakes one thread that sleeps for the lock.
    pub fn wake_one<W: Wait>(&self) {
        W::wake(&self.0);
    }
}

impl Default for LockWord {
    fn default() -> Self {
        Self::new()
    }
}
