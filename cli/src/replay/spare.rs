//! Spare tables of contenders.
//!
//! A contender owns its parts, so its tables must be `'static` and are leaked. They are reused,
//! because a search for the smallest device builds hundreds of contenders.

use std::sync::{Mutex, MutexGuard};

pub(crate) struct Spare<T>(Mutex<Vec<T>>);

impl<T> Spare<T> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    pub(crate) fn take(&self, make: impl FnOnce() -> T) -> T {
        let spare = self.tables().pop();
        spare.unwrap_or_else(make)
    }

    pub(crate) fn give(&self, tables: T) {
        self.tables().push(tables);
    }

    fn tables(&self) -> MutexGuard<'_, Vec<T>> {
        self.0.lock().unwrap_or_else(|lock| lock.into_inner())
    }
}
