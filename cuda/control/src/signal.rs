//! A count of changes, for which threads can wait.
//!
//! SIGNAL1. A writer first makes a change and then counts it. So a thread misses no change if it reads the
//! count, then the value, and then waits with the count that it read.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Wakes waiting threads when something has changed. Its lock is held only for counting.
#[derive(Debug, Default)]
pub struct Signal {
    changes: Mutex<u64>,
    condition: Condvar,
}

impl Signal {
    /// Makes a signal without changes.
    pub const fn new() -> Self {
        Self {
            changes: Mutex::new(0),
            condition: Condvar::new(),
        }
    }

    /// Returns the number of changes so far.
    pub fn changes(&self) -> u64 {
        *self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a change that the caller has made, and wakes all waiting threads.
    pub fn raise(&self) {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        *changes = changes.wrapping_add(1);
        self.condition.notify_all();
    }

    /// Waits in real time until the count differs from `seen`, for at most `longest`, or forever if that is
    /// `None`. Returns true if the count differs.
    pub(crate) fn wait_really(&self, seen: u64, longest: Option<Duration>) -> bool {
        let changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let changes = match longest {
            None => self
                .condition
                .wait_while(changes, |now| *now == seen)
                .unwrap_or_else(PoisonError::into_inner),
            Some(longest) => {
                self.condition
                    .wait_timeout_while(changes, longest, |now| *now == seen)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0
            }
        };
        *changes != seen
    }
}
