//! The locks and atomics that real programs use; under the model checker, others take their place.

use core::cell::UnsafeCell;
use core::marker::PhantomData;

use core::sync::atomic::compiler_fence;
pub use core::sync::atomic::{
    AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

use super::Wait;
use super::lock_word::{LockWord, Taken};

/// The first link of a list that one thread changes without a lock. After a fork, the child finds the list as it was
/// between two instructions of that thread.
///
/// So the link is written by one store, after all earlier stores and before all later ones, as a signal handler of the
/// thread would see it. This order costs no instruction.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct ListHead<T>(AtomicPtr<T>);

impl<T> ListHead<T> {
    pub(crate) const fn new(first: *mut T) -> Self {
        Self(AtomicPtr::new(first))
    }

    #[inline(always)]
    pub(crate) fn get(&self) -> *mut T {
        // Relaxed: only the list's owner calls this.
        self.0.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(crate) fn set(&self, first: *mut T) {
        compiler_fence(Ordering::Release);
        self.0.store(first, Ordering::Relaxed);
        compiler_fence(Ordering::Release);
    }
}

/// Executes the cheap side of an asymmetric barrier: orders earlier writes before later accesses once another thread
/// makes this one execute a whole barrier.
#[inline(always)]
pub(crate) fn light_barrier() {
    compiler_fence(Ordering::SeqCst);
}

/// A mutual-exclusion lock without poisoning.
pub(crate) struct RawLock<T, W> {
    word: LockWord,
    wait: PhantomData<fn() -> W>,
    value: UnsafeCell<T>,
}

// SAFETY: one thread at a time accesses the value (LOCK1).
unsafe impl<T: Send, W> Sync for RawLock<T, W> {}

/// Releases the lock when it is dropped, even after a panic.
struct Unlock<'l, W: Wait>(&'l LockWord, PhantomData<W>);

impl<W: Wait> Drop for Unlock<'_, W> {
    #[inline]
    fn drop(&mut self) {
        self.0.unlock::<W>();
    }
}

impl<T, W: Wait> RawLock<T, W> {
    pub(crate) const fn new(value: T) -> Self {
        Self {
            word: LockWord::new(),
            wait: PhantomData,
            value: UnsafeCell::new(value),
        }
    }

    /// Writes a free lock to `at`, and returns the place where the caller writes the value.
    ///
    /// # Safety
    /// `at` is aligned and valid for writes.
    pub(crate) unsafe fn place(at: *mut Self) -> *mut T {
        // SAFETY: the caller promises a valid place.
        let word = unsafe { &raw mut (*at).word };
        // SAFETY: a part of that place.
        unsafe { word.write(LockWord::new()) };
        // SAFETY: the caller promises a valid place.
        UnsafeCell::raw_get(unsafe { &raw const (*at).value })
    }

    #[inline]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: this line takes the lock.
        unsafe { self.run(self.word.lock::<W>(), f) }
    }

    #[inline]
    pub(crate) fn try_with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        let taken = self.word.try_lock::<W>()?;
        // SAFETY: the lock was taken by the line above.
        Some(unsafe { self.run(taken, f) })
    }

    /// Runs `f` and releases the lock.
    ///
    /// # Safety
    /// This thread took the lock through its word, which returned `taken`.
    #[inline]
    unsafe fn run<R>(&self, taken: Taken, f: impl FnOnce(&mut T) -> R) -> R {
        let unlock = match taken {
            Taken::Mine => Some(Unlock::<W>(&self.word, PhantomData)),
            Taken::Kept => None,
        };
        // SAFETY: this thread holds the lock (LOCK1): either until `unlock` is dropped, or because it called
        // `lock_and_keep`.
        let result = f(unsafe { &mut *self.value.get() });
        drop(unlock);
        result
    }

    pub(crate) fn into_inner(self) -> T {
        self.value.into_inner()
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// Takes the lock until [`unlock_kept`](Self::unlock_kept).
    pub(crate) fn lock_and_keep(&self) {
        self.word.lock_and_keep::<W>();
    }

    /// Releases the lock if `lock_and_keep` of this thread holds it.
    pub(crate) fn unlock_kept(&self) {
        self.word.unlock_kept::<W>();
    }

    /// # Safety
    /// This thread keeps the lock through `lock_and_keep` while the reference lives.
    pub(crate) unsafe fn peek(&self) -> &T {
        // SAFETY: this thread holds the lock while the reference lives, so no other thread accesses the value.
        unsafe { &*self.value.get() }
    }
}

/// One word that a protocol of this crate passes from thread to thread; the model checker watches it.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Cell<T>(UnsafeCell<T>);

impl<T: Copy> Cell<T> {
    #[cfg_attr(
        not(test),
        allow(dead_code, reason = "slots are never values natively")
    )]
    pub(crate) const fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    /// Reads the word.
    ///
    /// # Safety
    /// `cell` is valid for reads and no thread writes at the same time.
    #[inline(always)]
    pub(crate) unsafe fn read(cell: *const Self) -> T {
        // SAFETY: a cell is laid out as its contents, valid for reads, and no thread writes at the same time.
        unsafe { cell.cast::<T>().read() }
    }

    /// Writes the word, whatever it held.
    ///
    /// # Safety
    /// `cell` is valid for writes and no other thread reads or writes at the same time.
    #[inline(always)]
    pub(crate) unsafe fn write(cell: *const Self, value: T) {
        // SAFETY: a cell is laid out as its contents, valid for writes, and no other thread accesses it at the same
        // time.
        unsafe { cell.cast_mut().cast::<T>().write(value) }
    }
}
