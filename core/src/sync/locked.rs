//! [`Locked`]: one value behind one lock, accessed through closures so that a guard cannot outlive the few lines it is
//! meant for.

use super::{RawLock, Spin, Wait};

/// A value behind a lock; `W` is how a thread waits for it.
///
/// The lock is not re-entrant: calling [`with`](Self::with) on the same value inside the closure never returns.
/// Closures passed here make no sub-allocator or system call.
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

    /// Writes a free lock to `at`, and returns the place where the caller writes the value.
    ///
    /// # Safety
    /// `at` is aligned and valid for writes.
    #[cfg(not(larder_loom))]
    pub(crate) unsafe fn place(at: *mut Self) -> *mut T {
        // SAFETY: `at` is aligned and valid for writes, and so is its field.
        unsafe { RawLock::place(&raw mut (*at).0) }
    }

    /// Returns the value without locking: no other thread has the lock.
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }

    /// Runs `f` on the value under the lock.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        self.0.with(f)
    }

    /// Runs `f` on the value under the lock, if the lock becomes free within a few microseconds, without sleeping.
    #[inline]
    pub fn try_with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.0.try_with(f)
    }

    /// Returns the value without locking: the exclusive reference excludes other threads.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

/// Functions for a process that forks while other threads run: the child gets the locks as they are at that moment, so
/// the forking thread must hold them.
#[cfg(not(larder_loom))]
impl<T, W: Wait> Locked<T, W> {
    /// Takes the lock and keeps it beyond this call.
    ///
    /// # Safety
    /// The caller's thread does not hold the lock, and unlocks with
    /// [`unlock_across_fork`](Self::unlock_across_fork).
    pub unsafe fn lock_across_fork(&self) {
        self.0.lock_and_keep();
    }

    /// Releases a lock of [`lock_across_fork`](Self::lock_across_fork), in the same thread or in its copy in a child
    /// process. A lock that is not kept, such as one created since, stays as it is.
    ///
    /// # Safety
    /// If the lock is kept across a fork, this thread keeps it.
    pub unsafe fn unlock_across_fork(&self) {
        self.0.unlock_kept();
    }

    /// Returns the value for a thread that keeps the lock across a fork.
    ///
    /// # Safety
    /// This thread keeps the lock through `lock_across_fork` for as long as the reference lives.
    pub(crate) unsafe fn peek(&self) -> &T {
        // SAFETY: this thread keeps the lock across a fork while the reference lives.
        unsafe { self.0.peek() }
    }
}
