//! The only place that names atomics, locks and the model checker.
//!
//! In life a lock is `spin`'s, generic over how it waits; under `--cfg loom` it is loom's, and
//! the wait is loom's own. `cfg` picks a file here and nowhere else.

#[cfg(not(loom))]
mod life;
#[cfg(loom)]
mod model;

mod locked;
mod number;
mod open_epoch;
mod turn;

#[cfg(not(loom))]
pub(crate) use life::{Cell, RawLock, keep_order};
#[cfg(loom)]
pub(crate) use model::{Cell, RawLock, keep_order};

pub(crate) use number::number_given_once;

pub use locked::Locked;
pub use open_epoch::OpenEpoch;
pub use turn::{Begun, BuildTurn, Turn};

// The doors use the same atomics, so that one place swaps them; no promise to users.
#[cfg(not(loom))]
#[doc(hidden)]
pub use life::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
#[cfg(loom)]
#[doc(hidden)]
pub use model::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// How a thread passes the time until a lock is free.
///
/// Without an OS there is nothing but spinning; in a process a thread that holds the lock may be
/// preempted, so the waiting thread should yield or sleep.
pub trait Wait: 'static {
    /// Called again and again while the lock is taken. Must return.
    fn wait();
}

/// Waits by telling the processor that this is a spin loop.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spin;

impl Wait for Spin {
    fn wait() {
        core::hint::spin_loop();
    }
}
