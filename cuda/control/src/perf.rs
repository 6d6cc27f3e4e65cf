//! The duty cycle: the share of the time that a job may keep the device busy, changed while the job runs.
//!
//! PERF1. The setter stores the share before it counts the change; a waiter reads the count before the share
//! (SIGNAL1).
//! PERF2. A cancelled or dropped [`DutyCycle`] reads as [`PerfControl::FULL`] from then on, so that no job
//! stays suspended when its controller is gone.

use core::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use crate::clock::Clock;
use crate::signal::Signal;

/// The percentage of the time for which a job may keep the device busy: 0 suspends the job, 100 does not
/// limit it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PerfControl(u8);

impl PerfControl {
    /// 100 percent, so that no pause is inserted.
    pub const FULL: Self = Self(100);
    /// 0 percent, which suspends the job.
    pub const SUSPENDED: Self = Self(0);

    /// Makes the share of `percent`, which is from 0 to 100 inclusive.
    ///
    /// # Errors
    ///
    /// `percent` is above 100.
    pub const fn new(percent: u64) -> Result<Self, PerfOutOfRange> {
        if percent > 100 {
            return Err(PerfOutOfRange { percent });
        }
        Ok(Self(percent as u8))
    }

    /// Returns the share in percent, from 0 to 100.
    pub const fn percent(self) -> u8 {
        self.0
    }

    /// Returns whether the share is 100 percent, so that no pause is inserted.
    pub const fn is_full(self) -> bool {
        self.0 >= 100
    }

    /// Returns whether the share is 0 percent, so that nothing runs.
    pub const fn is_suspended(self) -> bool {
        self.0 == 0
    }
}

impl Default for PerfControl {
    fn default() -> Self {
        Self::FULL
    }
}

impl fmt::Display for PerfControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", self.0)
    }
}

/// The error for a share above 100 percent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{percent} is not a share of the time: take 0 to 100 percent")]
pub struct PerfOutOfRange {
    /// The requested percentage.
    pub percent: u64,
}

#[derive(Debug)]
struct DutyCycleShared {
    percent: AtomicU8,
    signal: Signal,
}

/// The writing end of a job's share of the time, held by the part of the job that listens to the coordinator.
/// Dropping it cancels the duty cycle.
#[derive(Debug)]
pub struct DutyCycle {
    shared: Arc<DutyCycleShared>,
}

/// The stored value of a cancelled duty cycle, which is not a valid share.
const CANCELLED: u8 = u8::MAX;

impl DutyCycle {
    /// Makes a duty cycle at the full share.
    pub fn new() -> Self {
        Self {
            shared: Arc::new(DutyCycleShared {
                percent: AtomicU8::new(PerfControl::FULL.0),
                signal: Signal::new(),
            }),
        }
    }

    /// Sets the share and wakes the threads that wait for a change. Wakes none if the share is already set or
    /// the duty cycle has been cancelled.
    pub fn set(&self, perf: PerfControl) {
        // Release: a thread that reads the share sees everything before this call. A compare-and-swap, so
        // that a concurrent cancel is not undone (PERF2).
        let stored =
            self.shared
                .percent
                .fetch_update(Ordering::Release, Ordering::Relaxed, |old| {
                    (old != CANCELLED && old != perf.0).then_some(perf.0)
                });
        if stored.is_ok() {
            self.shared.signal.raise();
        }
    }

    /// Ends every suspension and pause, now and later (PERF2).
    pub fn cancel(&self) {
        // Release: a thread that sees the cancel sees everything before this call.
        self.shared.percent.store(CANCELLED, Ordering::Release);
        self.shared.signal.raise();
    }

    /// Returns a reader of this duty cycle.
    pub fn reader(&self) -> DutyCycleReader {
        DutyCycleReader {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl Default for DutyCycle {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for DutyCycle {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// Reads a [`DutyCycle`] and waits for its changes.
#[derive(Clone, Debug)]
pub struct DutyCycleReader {
    shared: Arc<DutyCycleShared>,
}

/// A share that a reader saw, and the count of changes with which it waits for the next change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observed {
    pub(crate) perf: PerfControl,
    changes: u64,
}

impl DutyCycleReader {
    /// Returns the share in force; the full share if the duty cycle was cancelled. Costs one load.
    pub fn perf(&self) -> PerfControl {
        // Acquire: pairs with `set`.
        match self.shared.percent.load(Ordering::Acquire) {
            CANCELLED => PerfControl::FULL,
            percent => PerfControl(percent),
        }
    }

    /// Returns whether the duty cycle was cancelled or dropped.
    pub fn is_cancelled(&self) -> bool {
        // Acquire: pairs with `cancel`.
        self.shared.percent.load(Ordering::Acquire) == CANCELLED
    }

    /// Reads the count of changes, then the share (SIGNAL1), so that [`wait`](Self::wait) misses no change.
    pub(crate) fn read(&self) -> Observed {
        let changes = self.shared.signal.changes();
        Observed {
            perf: self.perf(),
            changes,
        }
    }

    /// Waits on `clock` until the share has changed since `seen`, or until the time is `until`. Returns true
    /// if it has changed.
    pub(crate) fn wait(&self, clock: &dyn Clock, until: Option<Duration>, seen: Observed) -> bool {
        clock.wait(until, &self.shared.signal, seen.changes)
    }
}
