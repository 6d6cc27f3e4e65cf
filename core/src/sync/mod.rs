//! The only place that names atomics, locks and the model checker.
//!
//! Natively, a lock is a [`LockWord`] next to its value, and a type parameter says how threads wait. Under
//! `cfg(larder_loom)` the lock is loom's own, and `LockWord` has a model of its own. Only `loom-tests/core` sets this
//! flag, so the package for users does not depend on loom. `cfg` selects a file here and nowhere else.

#[cfg(larder_loom)]
mod model;
#[cfg(not(larder_loom))]
mod native;

mod biased_lock;
mod lock_word;
mod locked;
mod number;
mod open_event;
mod turn;

#[cfg(larder_loom)]
pub(crate) use model::{Cell, ListHead, RawLock, light_barrier};
#[cfg(not(larder_loom))]
pub(crate) use native::{Cell, ListHead, RawLock, light_barrier};

pub(crate) use number::number_given_once;

#[doc(hidden)]
pub use biased_lock::BiasedLock;
#[doc(hidden)]
pub use lock_word::{LockWord, Taken};
pub use locked::Locked;
pub use open_event::OpenEvent;
pub use turn::{BuildTurn, Turn};

// The front ends use the same atomics, so that the model checker replaces them in one place. They are not a public API.
#[cfg(larder_loom)]
#[doc(hidden)]
pub use model::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(not(larder_loom))]
#[doc(hidden)]
pub use native::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// How a thread waits until a lock is free.
///
/// Without an OS, [`wait`](Self::wait) is enough. In a process, the thread that holds the lock may not be running, so a
/// waiting thread should yield the processor or sleep.
pub trait Wait: 'static {
    /// Waits for a moment. This is called repeatedly while the lock is taken. If threads sleep
    /// ([`SLEEPS`](Self::SLEEPS)), they do so after a hundred calls.
    fn wait();

    /// Whether a thread that has waited too long [`sleep`](Self::sleep)s. Unlocking then costs an atomic exchange
    /// instead of a store.
    const SLEEPS: bool = false;

    /// Sleeps while `word` is equal to `seen`, until a [`wake`](Self::wake) of that word. May return at any time.
    fn sleep(_word: &AtomicU32, _seen: u32) {}

    /// Wakes one thread that sleeps on `word`, if there is one.
    fn wake(_word: &AtomicU32) {}

    /// A function that returns whether the calling thread is the one that keeps locks across a fork
    /// ([`LockWord::keep`]), or `None` if locks are never kept. It is called when a lock is found to be kept:
    /// the thread that keeps the lock may use the value, for example because another handler of the same fork
    /// allocates.
    const KEEPS_LOCKS: Option<fn() -> bool> = None;
}

/// Waits by telling the processor that this is a spin loop.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spin;

impl Wait for Spin {
    fn wait() {
        core::hint::spin_loop();
    }
}
