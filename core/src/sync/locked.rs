//! [`Locked`]: a value behind a lock. Access is through closures, so that no guard can be kept longer than intended.

use super::{RawLock, Spin, Wait};

/// A value behind a lock; `W` is how a thread waits for it.
///
/// The lock is not re-entrant: a call of [`with`](Self::with) on the same value inside the closure never returns. The
/// closures make no system calls and call no sub-allocator.
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

    /// Writes a free lock to `at`, and returns a pointer to its value, which the caller must write.
    ///
    /// # Safety
    /// `at` is aligned and valid for writes.
    #[cfg(not(larder_loom))]
    pub(crate) unsafe fn place(at: *mut Self) -> *mut T {
        // SAFETY: `at` is aligned and valid for writes, so its field is, too.
        unsafe { RawLock::place(&raw mut (*at).0) }
    }

    /// Returns the value without locking, because no other thread can have the lock.
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }

    /// Runs `f` on the value under the lock.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        self.0.with(f)
    }

    /// Runs `f` on the value under the lock, if the lock becomes free within a few microseconds. Never sleeps.
    #[inline]
    pub fn try_with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.0.try_with(f)
    }

    /// Returns the value without locking, because an exclusive reference excludes other threads.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}

/// Functions for a process that forks while other threads run. The child gets the locks in their state at that moment,
/// so the forking thread must hold them.
#[cfg(not(larder_loom))]
impl<T, W: Wait> Locked<T, W> {
    /// Takes the lock and keeps it beyond this call.
    ///
    /// # Safety
    /// The calling thread does not hold the lock, and releases it with
    /// [`unlock_across_fork`](Self::unlock_across_fork).
    pub unsafe fn lock_across_fork(&self) {
        self.0.lock_and_keep();
    }

    /// Releases a lock taken with [`lock_across_fork`](Self::lock_across_fork), in the same thread or in its copy in a
    /// child process. A lock that is not kept, for example because it was created since, does not change.
    ///
    /// # Safety
    /// If the lock is kept across a fork, this thread is the one that keeps it.
    pub unsafe fn unlock_across_fork(&self) {
        self.0.unlock_kept();
    }

    /// Returns the value for a thread that keeps the lock across a fork.
    ///
    /// # Safety
    /// This thread keeps the lock through `lock_across_fork` for as long as the reference lives.
    pub(crate) unsafe fn peek(&self) -> &T {
        // SAFETY: the caller promises that this thread keeps the lock while the reference lives.
        unsafe { self.0.peek() }
    }
}
