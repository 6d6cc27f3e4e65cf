//! [`Locked`]: a value behind a lock. Access is through closures, so that no guard can be kept longer than intended.

#[cfg(not(larder_loom))]
use super::LockWord;
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

#[cfg(not(larder_loom))]
impl<T, W: Wait> Locked<T, W> {
    /// Returns the word of the lock, for a process that forks while other threads run: the child gets the lock in its
    /// state at that moment, so the forking thread keeps it ([`LockWord::keep`]).
    ///
    /// # Safety
    /// The caller releases the lock only if it has taken it.
    #[doc(hidden)]
    pub const unsafe fn word(&self) -> &LockWord {
        self.0.word()
    }
}
