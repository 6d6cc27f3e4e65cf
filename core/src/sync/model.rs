//! Locks and atomics under the model checker.
//!
//! `spin`'s lock would hang inside a model, because loom cannot see its spinning; loom's mutex
//! has the same contract. loom's atomics have no constant constructor, so nothing here is `const`.

use core::marker::PhantomData;

use loom::sync::Mutex;
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};

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
