//! The only place that names atomics, locks and the model checker.
//!
//! Natively a lock is a [`LockWord`] next to its value, generic over how threads wait; under `cfg(larder_loom)` it is
//! loom's own, and `LockWord` has a model. Only `loom-tests/core` sets that flag: the package for users does not depend
//! on loom. `cfg` picks a file here and nowhere else.

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

// The front ends use the same atomics, so that they are swapped in one place; this is no promise to users.
#[cfg(larder_loom)]
#[doc(hidden)]
pub use model::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(not(larder_loom))]
#[doc(hidden)]
pub use native::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// How a thread waits until a lock is free.
///
/// Without an OS there is only [`wait`](Self::wait). In a process the thread that holds the lock may be off the
/// processor: a waiting thread should yield the processor, or sleep.
pub trait Wait: 'static {
    /// Waits a moment. Called repeatedly while the lock is taken, but only a hundred times if threads sleep afterwards.
    fn wait();

    /// Whether a thread that has waited too long [`sleep`](Self::sleep)s. Unlocking then costs an atomic exchange
    /// instead of a store.
    const SLEEPS: bool = false;

    /// Sleeps while `word` is `seen`, until a [`wake`](Self::wake) of that word. May return at any time.
    fn sleep(_word: &AtomicU32, _seen: u32) {}

    /// Wakes one thread that sleeps for `word`, if any does.
    fn wake(_word: &AtomicU32) {}

    /// Returns whether the calling thread is the one that keeps locks across a fork ([`Locked::lock_across_fork`]);
    /// `None` if no lock is kept. Called when a lock is found kept: that thread may then use the value, as it does when
    /// other handlers of the same fork allocate.
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
