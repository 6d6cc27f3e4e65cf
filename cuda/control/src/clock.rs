//! Time that is handed in: real in programs, a number in tests.

use core::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What tells the time and lets it pass.
pub trait Clock: Send + Sync + fmt::Debug {
    /// Time since some fixed moment; never goes back.
    fn now(&self) -> Duration;

    /// Comes back when at least so much time has passed.
    fn sleep(&self, time: Duration);
}

/// The system's monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock(Instant);

impl SystemClock {
    /// Counts from now.
    pub fn new() -> Self {
        Self(Instant::now())
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// A clock that stands still until somebody moves it; a sleep moves it. For tests.
#[derive(Debug, Default)]
pub struct ManualClock {
    state: Mutex<ManualState>,
}

#[derive(Clone, Copy, Debug, Default)]
struct ManualState {
    now: Duration,
    slept: Duration,
}

impl ManualClock {
    /// Stands at 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets time pass.
    pub fn advance(&self, time: Duration) {
        self.with(|state| state.now += time);
    }

    /// All that was slept so far.
    pub fn slept(&self) -> Duration {
        self.with(|state| state.slept)
    }

    fn with<R>(&self, f: impl FnOnce(&mut ManualState) -> R) -> R {
        f(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        self.with(|state| state.now)
    }

    fn sleep(&self, time: Duration) {
        self.with(|state| {
            state.now += time;
            state.slept += time;
        });
    }
}

impl<C: Clock + ?Sized> Clock for std::sync::Arc<C> {
    fn now(&self) -> Duration {
        (**self).now()
    }

    fn sleep(&self, time: Duration) {
        (**self).sleep(time);
    }
}
