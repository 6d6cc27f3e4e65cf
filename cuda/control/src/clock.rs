//! Clocks: the system's clock for programs, and a settable clock for tests.

use core::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::signal::Signal;

/// Time between two polls of a clock that cannot wait for a signal.
const LOOK: Duration = Duration::from_millis(1);

/// A source of time that can also wait.
pub trait Clock: Send + Sync + fmt::Debug {
    /// Returns the time since some fixed moment. The time never goes back.
    fn now(&self) -> Duration;

    /// Sleeps for at least `time`.
    fn sleep(&self, time: Duration);

    /// Waits until the time is `until` (forever if that is `None`) or until `signal` has counted more
    /// changes than `seen`. Returns true if `signal` has counted more changes. The default implementation
    /// polls once per millisecond.
    fn wait(&self, until: Option<Duration>, signal: &Signal, seen: u64) -> bool {
        loop {
            if signal.changes() != seen {
                return true;
            }
            let left = until.map_or(LOOK, |until| until.saturating_sub(self.now()));
            if left.is_zero() {
                return false;
            }
            self.sleep(left.min(LOOK));
        }
    }
}

/// The system's monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock(Instant);

impl SystemClock {
    /// Makes a clock that counts from now.
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

    fn wait(&self, until: Option<Duration>, signal: &Signal, seen: u64) -> bool {
        let longest = until.map(|until| until.saturating_sub(self.now()));
        signal.wait_really(seen, longest)
    }
}

/// A clock for tests. It moves only with [`advance`](Self::advance), a sleep or a wait.
///
/// [`at`](Self::at) schedules an event, so that a single-threaded test can end a wait. A wait without an end
/// really blocks once no event is left, so another thread must raise the signal.
#[derive(Default)]
pub struct ManualClock {
    state: Mutex<ManualState>,
}

#[derive(Default)]
struct ManualState {
    now: Duration,
    slept: Duration,
    /// The events to run and their times, unsorted.
    events: Vec<(Duration, Event)>,
}

type Event = Box<dyn FnOnce() + Send>;

impl ManualClock {
    /// Makes a clock at 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves the clock by `time` and runs the events that are due in that time.
    pub fn advance(&self, time: Duration) {
        let to = self.now().saturating_add(time);
        while self.next_event(to) {}
        self.with(|state| state.now = state.now.max(to));
    }

    /// Returns the total time of all sleeps and waits so far.
    pub fn slept(&self) -> Duration {
        self.with(|state| state.slept)
    }

    /// Runs `event` when the clock reaches `time`, on the thread that moves it, with no lock held.
    pub fn at(&self, time: Duration, event: impl FnOnce() + Send + 'static) {
        self.with(|state| state.events.push((time, Box::new(event))));
    }

    fn with<R>(&self, f: impl FnOnce(&mut ManualState) -> R) -> R {
        f(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Moves the clock to the first event that is due by `to`, and runs it. Returns false if there is no
    /// such event.
    fn next_event(&self, to: Duration) -> bool {
        let event = self.with(|state| {
            let events = state.events.iter().enumerate();
            let (index, _) = events.min_by_key(|(_, (time, _))| *time)?;
            if state.events[index].0 > to {
                return None;
            }
            let (time, event) = state.events.remove(index);
            state.now = state.now.max(time);
            Some(event)
        });
        event.map(|event| event()).is_some()
    }

    /// Adds the time since `start` to the time slept.
    fn add_slept(&self, start: Duration) {
        self.with(|state| state.slept += state.now.saturating_sub(start));
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.with(|state| {
            f.debug_struct("ManualClock")
                .field("now", &state.now)
                .field("slept", &state.slept)
                .field("events", &state.events.len())
                .finish()
        })
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        self.with(|state| state.now)
    }

    fn sleep(&self, time: Duration) {
        let start = self.now();
        self.advance(time);
        self.add_slept(start);
    }

    fn wait(&self, until: Option<Duration>, signal: &Signal, seen: u64) -> bool {
        let start = self.now();
        let to = until.unwrap_or(Duration::MAX);
        while signal.changes() == seen && self.next_event(to) {}
        let changed = signal.changes() != seen;
        let changed = match until {
            Some(until) if !changed => {
                self.with(|state| state.now = state.now.max(until));
                false
            }
            None if !changed => signal.wait_really(seen, None),
            _ => changed,
        };
        self.add_slept(start);
        changed
    }
}

impl<C: Clock + ?Sized> Clock for std::sync::Arc<C> {
    fn now(&self) -> Duration {
        (**self).now()
    }

    fn sleep(&self, time: Duration) {
        (**self).sleep(time);
    }

    fn wait(&self, until: Option<Duration>, signal: &Signal, seen: u64) -> bool {
        (**self).wait(until, signal, seen)
    }
}
