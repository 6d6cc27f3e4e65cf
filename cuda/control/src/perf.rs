//! How much of the device a job may use, and the duty cycle that says so while it runs.
//!
//! Y1. The share is stored before the change is counted; who waits reads the count first (G1).
//! Y2. Once the duty cycle was cancelled or dropped, it reads [`PerfControl::FULL`] for ever: nobody stays
//! suspended by somebody who has gone.

use core::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use crate::clock::Clock;
use crate::signal::Signal;

/// Percent of the time that a job may keep the device busy: 0 suspends it, 100 leaves it alone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PerfControl(u8);

impl PerfControl {
    /// Not held back.
    pub const FULL: Self = Self(100);
    /// Suspended.
    pub const SUSPENDED: Self = Self(0);

    /// `percent` from 0 to 100, both included.
    ///
    /// # Errors
    ///
    /// Anything else.
    pub const fn new(percent: u64) -> Result<Self, PerfOutOfRange> {
        if percent > 100 {
            return Err(PerfOutOfRange { percent });
        }
        Ok(Self(percent as u8))
    }

    /// From 0 to 100.
    pub const fn percent(self) -> u8 {
        self.0
    }

    /// 100: nothing is inserted.
    pub const fn is_full(self) -> bool {
        self.0 >= 100
    }

    /// 0: nothing runs.
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

/// A share that is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PerfOutOfRange {
    /// What was asked.
    pub percent: u64,
}

impl fmt::Display for PerfOutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} is no share of the time: take 0 to 100 percent",
            self.percent
        )
    }
}

impl core::error::Error for PerfOutOfRange {}

#[derive(Debug)]
struct DutyCycleShared {
    percent: AtomicU8,
    signal: Signal,
}

/// Where a job's share is set: held by who listens to the coordinator. Dropped, it cancels.
#[derive(Debug)]
pub struct DutyCycle {
    shared: Arc<DutyCycleShared>,
}

/// What a cancelled duty cycle has stored: no share.
const CANCELLED: u8 = u8::MAX;

impl DutyCycle {
    /// At the full share.
    pub fn new() -> Self {
        Self {
            shared: Arc::new(DutyCycleShared {
                percent: AtomicU8::new(PerfControl::FULL.0),
                signal: Signal::new(),
            }),
        }
    }

    /// Sets the share and wakes whoever waits for a change. A share that is set already, or a duty cycle that was
    /// cancelled, wakes nobody.
    pub fn set(&self, perf: PerfControl) {
        // Release: who reads the share sees what was done before it was set. A compare-and-swap, so that a
        // cancel at the same time is not undone (Y2).
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

    /// Ends every suspension and pause, now and later (Y2).
    pub fn cancel(&self) {
        // Release: as in `set`.
        self.shared.percent.store(CANCELLED, Ordering::Release);
        self.shared.signal.raise();
    }

    /// Somebody who obeys the duty cycle.
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

/// What a reader saw: the share, and the count of changes with which to wait for the next one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observed {
    pub(crate) perf: PerfControl,
    changes: u64,
}

impl DutyCycleReader {
    /// The share in force. One load.
    pub fn perf(&self) -> PerfControl {
        // Acquire: pairs with `set`.
        match self.shared.percent.load(Ordering::Acquire) {
            CANCELLED => PerfControl::FULL,
            percent => PerfControl(percent),
        }
    }

    /// The duty cycle was cancelled, or is gone.
    pub fn is_cancelled(&self) -> bool {
        // Acquire: pairs with `cancel`.
        self.shared.percent.load(Ordering::Acquire) == CANCELLED
    }

    /// The share, and from where to wait for the next change (G1: the count is read first).
    pub(crate) fn look(&self) -> Observed {
        let changes = self.shared.signal.changes();
        Observed {
            perf: self.perf(),
            changes,
        }
    }

    /// Waits on `clock` until the duty cycle was turned since `seen`, or it is `until`. True if it was turned.
    pub(crate) fn wait(&self, clock: &dyn Clock, until: Option<Duration>, seen: Observed) -> bool {
        clock.wait(until, &self.shared.signal, seen.changes)
    }
}
