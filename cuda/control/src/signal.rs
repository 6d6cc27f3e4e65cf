//! A count of changes that threads can wait for.
//!
//! G1. Whoever reads the count, then looks at what it stands for, then waits with the count it read, misses
//! no change: a change is made first and counted afterwards.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Tells waiting threads that something has changed. Its lock is held for counting only.
#[derive(Debug, Default)]
pub struct Signal {
    changes: Mutex<u64>,
    condition: Condvar,
}

impl Signal {
    /// Nothing has changed yet.
    pub const fn new() -> Self {
        Self {
            changes: Mutex::new(0),
            condition: Condvar::new(),
        }
    }

    /// Changes so far.
    pub fn changes(&self) -> u64 {
        *self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a change, which has been made before, and wakes everybody.
    pub fn raise(&self) {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        *changes = changes.wrapping_add(1);
        self.condition.notify_all();
    }

    /// Waits in real time until the count is not `seen`, at most for `longest` (without: for ever).
    /// True if it is not.
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
