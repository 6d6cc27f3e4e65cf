//! Locks and atomics as programs have them, without the model checker.

use core::cell::UnsafeCell;
use core::marker::PhantomData;

use core::sync::atomic::compiler_fence;
pub use core::sync::atomic::{
    AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

use super::Wait;
use super::lock_word::{LockWord, Taken};

/// The first link of a list that one thread changes without a lock, and that the child of a fork finds as
/// it was at some moment between two instructions of that thread.
///
/// So the link is written by one store, after what was stored before and before what is stored later,
/// as a signal handler of the thread would see it. That costs no instruction.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Head<T>(AtomicPtr<T>);

impl<T> Head<T> {
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

/// Half of a barrier: what is written before it is written first, if another thread has this one execute a
/// whole barrier.
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

// SAFETY: LOCK1: one thread at a time reaches the value.
unsafe impl<T: Send, W> Sync for RawLock<T, W> {}

/// Unlocks when it is dropped, after a panic too.
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

    /// Makes a lock at `at` that nobody has, around a value that the caller writes where the answer says.
    ///
    /// # Safety
    /// `at` is aligned and valid for writes.
    pub(crate) unsafe fn place(at: *mut Self) -> *mut T {
        // SAFETY: the caller's place.
        let word = unsafe { &raw mut (*at).word };
        // SAFETY: a part of it.
        unsafe { word.write(LockWord::new()) };
        // SAFETY: the caller's place.
        UnsafeCell::raw_get(unsafe { &raw const (*at).value })
    }

    #[inline]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: the lock was taken just now.
        unsafe { self.run(self.word.lock::<W>(), f) }
    }

    #[inline]
    pub(crate) fn try_with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        let taken = self.word.try_lock::<W>()?;
        // SAFETY: the lock was taken just now.
        Some(unsafe { self.run(taken, f) })
    }

    /// Runs `f` and unlocks.
    ///
    /// # Safety
    /// The word answered so.
    #[inline]
    unsafe fn run<R>(&self, taken: Taken, f: impl FnOnce(&mut T) -> R) -> R {
        let unlock = match taken {
            Taken::Mine => Some(Unlock::<W>(&self.word, PhantomData)),
            Taken::Kept => None,
        };
        // SAFETY: LOCK1: the lock is this thread's, until `unlock` is dropped or by `lock_and_keep`.
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

    /// Locks until [`unlock_kept`](Self::unlock_kept).
    pub(crate) fn lock_and_keep(&self) {
        self.word.lock_and_keep::<W>();
    }

    /// Unlocks if `lock_and_keep` of this thread holds the lock.
    pub(crate) fn unlock_kept(&self) {
        self.word.unlock_kept::<W>();
    }

    /// # Safety
    /// The lock is held by `lock_and_keep` of this thread while the reference lives.
    pub(crate) unsafe fn peek(&self) -> &T {
        // SAFETY: this thread holds the lock while the reference lives, so nobody else reaches the value.
        unsafe { &*self.value.get() }
    }
}

/// One word that a protocol of ours hands from thread to thread; the model checker watches it.
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
    /// `cell` is valid for reads and nobody writes at the same time.
    #[inline(always)]
    pub(crate) unsafe fn read(cell: *const Self) -> T {
        // SAFETY: a cell is laid out as its contents, valid for reads, and nobody writes at the same time.
        unsafe { cell.cast::<T>().read() }
    }

    /// Writes the word, which may have held anything.
    ///
    /// # Safety
    /// `cell` is valid for writes and nobody else reads or writes at the same time.
    #[inline(always)]
    pub(crate) unsafe fn write(cell: *const Self, value: T) {
        // SAFETY: a cell is laid out as its contents, valid for writes, and nobody else is at it.
        unsafe { cell.cast_mut().cast::<T>().write(value) }
    }
}
