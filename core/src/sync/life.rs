//! Locks and atomics in life.

use core::cell::UnsafeCell;
use core::marker::PhantomData;

pub use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use spin::mutex::SpinMutex;
use spin::relax::RelaxStrategy;

use super::Wait;

/// Stores before this call come before those after it, for whoever sees this thread's memory as it
/// was at some moment. Costs no instruction.
#[inline(always)]
pub(crate) fn keep_order() {
    core::sync::atomic::compiler_fence(Ordering::Release);
}

/// Our way of waiting, told to `spin`.
struct Relax<W>(PhantomData<W>);

impl<W: Wait> RelaxStrategy for Relax<W> {
    #[inline]
    fn relax() {
        W::wait();
    }
}

/// A mutual-exclusion lock without poisoning.
pub(crate) struct RawLock<T, W>(SpinMutex<T, Relax<W>>);

impl<T, W: Wait> RawLock<T, W> {
    pub(crate) const fn new(value: T) -> Self {
        Self(SpinMutex::new(value))
    }

    #[inline]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        f(&mut self.0.lock())
    }

    pub(crate) fn into_inner(self) -> T {
        self.0.into_inner()
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }

    /// Locks until [`unlock_kept`](Self::unlock_kept).
    pub(crate) fn lock_and_keep(&self) {
        core::mem::forget(self.0.lock());
    }

    /// # Safety
    /// The lock is held by `lock_and_keep` of this thread.
    pub(crate) unsafe fn unlock_kept(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.0.force_unlock() };
    }

    /// # Safety
    /// The lock is held by `lock_and_keep` of this thread while the reference lives.
    pub(crate) unsafe fn peek(&self) -> &T {
        // SAFETY: the caller's promise: nobody else reaches the value.
        unsafe { &*self.0.as_mut_ptr() }
    }
}

/// One word that a protocol of ours hands from thread to thread; the model checker watches it.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Cell<T>(UnsafeCell<T>);

impl<T: Copy> Cell<T> {
    #[cfg_attr(not(test), allow(dead_code, reason = "slots are never values in life"))]
    pub(crate) const fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    /// Reads the word.
    ///
    /// # Safety
    /// `cell` is valid for reads and nobody writes at the same time.
    #[inline(always)]
    pub(crate) unsafe fn read(cell: *const Self) -> T {
        // SAFETY: the caller's promise; the cell is as its contents.
        unsafe { cell.cast::<T>().read() }
    }

    /// Writes the word, which may have held anything.
    ///
    /// # Safety
    /// `cell` is valid for writes and nobody else reads or writes at the same time.
    #[inline(always)]
    pub(crate) unsafe fn write(cell: *const Self, value: T) {
        // SAFETY: the caller's promise; the cell is as its contents.
        unsafe { cell.cast_mut().cast::<T>().write(value) }
    }
}
