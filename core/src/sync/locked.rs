//! [`Locked`]: one value behind one lock, reached by closures so that a guard cannot outlive the
//! few lines it is meant for.

use super::{RawLock, Spin, Wait};

/// A value behind a lock; `W` says how a thread waits for it.
///
/// The lock is not re-entrant: calling [`with`](Self::with) of the same value inside the closure
/// never returns. Closures passed here make no sub-allocator or system call.
pub struct Locked<T, W: Wait = Spin>(RawLock<T, W>);

impl<T, W: Wait> Locked<T, W> {
    /// Puts `value` behind a lock.
    #[cfg(not(larder_loom))]
    pub const fn new(value: T) -> Self {
        Self(RawLock::new(value))
    }

    /// Puts `value` behind a lock.
    #[cfg(larder_loom)]
    pub fn new(value: T) -> Self {
        Self(RawLock::new(value))
    }

    /// Makes a lock at `at` that nobody has, around a value that the caller writes where the answer says.
    ///
    /// # Safety
    /// `at` is aligned and valid for writes.
    #[cfg(not(larder_loom))]
    pub(crate) unsafe fn place(at: *mut Self) -> *mut T {
        // SAFETY: `at` is aligned and valid for writes, and so is its field.
        unsafe { RawLock::place(&raw mut (*at).0) }
    }

    /// The value, for whoever owns the lock.
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }

    /// Runs `f` with the value, alone.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        self.0.with(f)
    }

    /// Runs `f` with the value, alone, if the lock can be had without sleeping: tries for some microseconds.
    #[inline]
    pub fn try_with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.0.try_with(f)
    }

    /// The value, for whoever holds the lock's owner exclusively: no locking.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

/// What a process needs that forks while other threads run: the child gets the locks as they were
/// at that moment, so they must be the forking thread's.
#[cfg(not(larder_loom))]
impl<T, W: Wait> Locked<T, W> {
    /// Locks and keeps the lock beyond this call.
    ///
    /// # Safety
    /// The caller's thread does not hold the lock, and unlocks with
    /// [`unlock_across_fork`](Self::unlock_across_fork).
    pub unsafe fn lock_across_fork(&self) {
        self.0.lock_and_keep();
    }

    /// Ends what [`lock_across_fork`](Self::lock_across_fork) began, in the same thread or in its
    /// copy in a child process. A lock that is not kept, as one that was made meanwhile, stays as it is.
    ///
    /// # Safety
    /// If the lock is kept across a fork, it is by this thread.
    pub unsafe fn unlock_across_fork(&self) {
        self.0.unlock_kept();
    }

    /// The value, for whoever holds the lock across a fork.
    ///
    /// # Safety
    /// The lock is held by `lock_across_fork` of this thread, for as long as the reference lives.
    pub(crate) unsafe fn peek(&self) -> &T {
        // SAFETY: this thread holds the lock across a fork while the reference lives.
        unsafe { self.0.peek() }
    }
}
