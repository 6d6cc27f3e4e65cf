//! Spare tables of contenders.
//!
//! Tables are leaked, because a contender owns its parts, so its tables must live as long as the
//! program. They are reused, because a search for the smallest device builds hundreds of
//! contenders.

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
