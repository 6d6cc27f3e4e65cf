//! The locks and atomics of ordinary builds. Builds for the model checker use those of `model.rs` instead.

use core::cell::UnsafeCell;
use core::marker::PhantomData;

#[cfg(target_has_atomic = "64")]
pub use core::sync::atomic::AtomicU64;
use core::sync::atomic::compiler_fence;
pub use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering, fence};
// With a lock for each access, on processors such as Arm's Cortex-M.
#[cfg(not(target_has_atomic = "64"))]
pub use portable_atomic::AtomicU64;

use super::Wait;
use super::lock_word::{LockWord, Taken};

/// The head of a linked list that one thread changes without a lock.
///
/// Another thread may fork the process at any time. The child then has the list as it was between two instructions of
/// the thread that changes it. So the head is written by a single store, and compiler fences keep earlier stores before
/// it and later stores after it. The fences cost no instruction.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct ListHead<T>(AtomicPtr<T>);

impl<T> ListHead<T> {
    pub(crate) const fn new(first: *mut T) -> Self {
        Self(AtomicPtr::new(first))
    }

    #[inline(always)]
    pub(crate) fn get(&self) -> *mut T {
        // Relaxed: only the thread that changes the list reads the head.
        self.0.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(crate) fn set(&self, first: *mut T) {
        compiler_fence(Ordering::Release);
        self.0.store(first, Ordering::Relaxed);
        compiler_fence(Ordering::Release);
    }
}

/// Executes the light side of an asymmetric barrier, which is only a compiler fence.
///
/// On the heavy side, another thread makes every thread execute a full barrier (`membarrier` on Linux). That barrier
/// orders the writes before this call before the accesses after it.
#[inline(always)]
pub(crate) fn light_barrier() {
    compiler_fence(Ordering::SeqCst);
}

/// A mutex without poisoning; `W` is how a thread waits for it.
pub(crate) struct RawLock<T, W> {
    word: LockWord,
    wait: PhantomData<fn() -> W>,
    value: UnsafeCell<T>,
}

// SAFETY: only one thread at a time accesses the value (LOCK1).
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

    /// Writes a free lock to `at`, and returns a pointer to its value, which the caller must write.
    ///
    /// # Safety
    /// `at` is aligned and valid for writes.
    pub(crate) unsafe fn place(at: *mut Self) -> *mut T {
        // SAFETY: the caller promises a valid place.
        let word = unsafe { &raw mut (*at).word };
        // SAFETY: the word is a part of that place, so it is aligned and valid for writes.
        unsafe { word.write(LockWord::new()) };
        // SAFETY: the caller promises a valid place.
        UnsafeCell::raw_get(unsafe { &raw const (*at).value })
    }

    #[inline]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: this line takes the lock, before it calls `run`.
        unsafe { self.run(self.word.lock::<W>(), f) }
    }

    #[inline]
    pub(crate) fn try_with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        let taken = self.word.try_lock::<W>()?;
        // SAFETY: the line above took the lock.
        Some(unsafe { self.run(taken, f) })
    }

    /// Runs `f` on the value. Then releases the lock, unless this thread keeps it across a fork.
    ///
    /// # Safety
    /// This thread has taken the lock through its word, which returned `taken`.
    #[inline]
    unsafe fn run<R>(&self, taken: Taken, f: impl FnOnce(&mut T) -> R) -> R {
        let unlock = match taken {
            Taken::Mine => Some(Unlock::<W>(&self.word, PhantomData)),
            Taken::Kept => None,
        };
        // SAFETY: this thread holds the lock (LOCK1). `Taken::Mine` is released only when `unlock` is dropped. After
        // `Taken::Kept`, this thread still holds the lock that it keeps.
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

    pub(crate) const fn word(&self) -> &LockWord {
        &self.word
    }
}

/// A word that threads read and write at different times, as a protocol of this crate ensures. In builds for the model
/// checker, every access is checked.
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
        // SAFETY: a cell has the layout of its value. The caller promises that the cell is valid for reads, and that no
        // thread writes at the same time.
        unsafe { cell.cast::<T>().read() }
    }

    /// Writes the word. The old contents may be uninitialised.
    ///
    /// # Safety
    /// `cell` is valid for writes and no other thread reads or writes at the same time.
    #[inline(always)]
    pub(crate) unsafe fn write(cell: *const Self, value: T) {
        // SAFETY: a cell has the layout of its value. The caller promises that the cell is valid for writes, and that
        // no other thread accesses it at the same time.
        unsafe { cell.cast_mut().cast::<T>().write(value) }
    }
}
