//! Locks and atomics under the model checker.
//!
//! `spin`'s lock would hang inside a model, because loom cannot see its spinning; loom's mutex
//! has the same contract. loom's atomics have no constant constructor, so nothing here is `const`.

use core::marker::PhantomData;

use loom::cell::UnsafeCell;
use loom::sync::Mutex;
pub use loom::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Means nothing to the model, in which no process forks.
pub(crate) fn keep_order() {}

/// A mutual-exclusion lock; a thread that panics inside ends the model anyway.
pub(crate) struct RawLock<T, W>(Mutex<T>, PhantomData<fn() -> W>);

impl<T, W> RawLock<T, W> {
    pub(crate) fn new(value: T) -> Self {
        Self(Mutex::new(value), PhantomData)
    }

    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        let mut guard = match self.0.lock() {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        };
        f(&mut guard)
    }

    pub(crate) fn into_inner(self) -> T {
        match self.0.into_inner() {
            Ok(value) => value,
            Err(poisoned) => poisoned.into_inner(),
        }
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        match self.0.get_mut() {
            Ok(value) => value,
            Err(poisoned) => poisoned.into_inner(),
        }
    }
}

/// One word that a protocol of ours hands from thread to thread: loom reports whoever reads or
/// writes it without having the right to.
#[derive(Debug)]
pub(crate) struct Cell<T>(UnsafeCell<T>);

impl<T: Copy> Cell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    /// Reads the word.
    ///
    /// # Safety
    /// `cell` points to a cell that lives.
    pub(crate) unsafe fn read(cell: *const Self) -> T {
        // SAFETY: the caller's promise.
        let cell = unsafe { &*cell };
        // SAFETY: loom checks that nobody writes at the same time.
        cell.0.with(|value| unsafe { *value })
    }

    /// Writes the word.
    ///
    /// # Safety
    /// `cell` points to a cell that lives.
    pub(crate) unsafe fn write(cell: *const Self, value: T) {
        // SAFETY: the caller's promise.
        let cell = unsafe { &*cell };
        // SAFETY: loom checks that nobody else is here.
        cell.0.with_mut(|place| unsafe { *place = value });
    }
}
