//! Pauses between a step's launches, so that a job keeps the device busy for its share of the time.
//!
//! Upstream plans one pause a run and lets a thread spend shrinking shares of it. Here each step has a plan,
//! busy x (100 - perf) / perf and what is still owed, and each launch, of any kind, inserts an equal share
//! of it. There is no thread and no queue: who launches waits. Nothing is lost: what was not inserted is
//! owed, and the share of the time is met to the nanosecond over many steps.
//!
//! What happens when is reckoned in [`state`]; here are the lock, the clock and the waits. The lock is held
//! for arithmetic only.

mod state;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::clock::Clock;
use crate::manage::Waited;
use crate::perf::{DutyCycleReader, PerfControl};
use state::PacerState;

/// How a [`Pacer`] pauses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PacerConfig {
    /// At most so much time is carried from step to step: owed to the neighbours, or paused ahead. What is
    /// owed above it is paused at the end of the step; what was paused ahead above it is forgotten.
    pub carry_bound: Duration,
    /// Shorter pauses are put together, since a wait has a cost of its own. 0 keeps every share apart.
    pub min_pause: Duration,
}

impl Default for PacerConfig {
    fn default() -> Self {
        Self {
            carry_bound: Duration::from_secs(1),
            min_pause: Duration::from_micros(50),
        }
    }
}

/// What a launch has to do before it goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a launch that does not pause is not paced"]
pub enum Pause {
    /// Nothing.
    None,
    /// Wait until the clock says so.
    Until(Duration),
    /// Wait until the share is not 0. Of a launch or an end: then ask again, nothing was noted. Of
    /// [`Pacer::waited`]: then say `waited` again.
    Suspended,
}

/// Totals of a [`Pacer`], all steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PacerReport {
    /// Steps that have ended.
    pub steps: u64,
    /// Launches in steps.
    pub launches: u64,
    /// Time in steps that was not paused.
    pub busy: Duration,
    /// Time that was paused. A suspension is neither.
    pub inserted: Duration,
    /// Time that is owed.
    pub due: Duration,
    /// Time that was paused ahead.
    pub ahead: Duration,
}

/// Paces the launches of one device. Any number of threads may launch; pauses lie end to end, and no launch
/// goes on while one lasts.
///
/// A step begins with [`begin`](Self::begin) and ends with [`end_wait`](Self::end_wait). How long a step is
/// busy and how often it launches is taken from the step before. The first one knows neither, so it runs
/// through and pauses at its end, as does every step after one without launches. A step with fewer launches
/// than the last pauses at its end for those that did not come; with more, the later ones do not pause.
/// Outside of steps a launch is held back by a suspension only.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use larder_control::{Clock, ManualClock, Pacer, PerfControl, DutyCycle};
///
/// let clock = Arc::new(ManualClock::new());
/// let duty_cycle = DutyCycle::new();
/// let pacer = Pacer::new(Arc::clone(&clock), duty_cycle.reader());
/// duty_cycle.set(PerfControl::new(25)?);
/// for _step in 0..4 {
///     pacer.begin();
///     for _launch in 0..10 {
///         clock.advance(Duration::from_millis(1)); // the work of the launch
///         let _ = pacer.launch_wait();
///     }
///     let _ = pacer.end_wait();
/// }
/// // 40 ms of work took 160 ms.
/// assert_eq!(clock.now(), Duration::from_millis(160));
/// # Ok::<(), larder_control::PerfOutOfRange>(())
/// ```
#[derive(Debug)]
pub struct Pacer<C> {
    clock: C,
    reader: DutyCycleReader,
    state: Mutex<PacerState>,
}

impl<C: Clock> Pacer<C> {
    /// Obeys `reader`'s duty cycle.
    pub fn new(clock: C, reader: DutyCycleReader) -> Self {
        Self::with_config(clock, reader, PacerConfig::default())
    }

    /// The same, with settings.
    pub fn with_config(clock: C, reader: DutyCycleReader, config: PacerConfig) -> Self {
        Self {
            clock,
            reader,
            state: Mutex::new(PacerState::new(config)),
        }
    }

    /// A step begins. One that has not ended is ended first, without a pause; what it owes is carried.
    pub fn begin(&self) {
        let (now, perf) = (self.clock.now(), self.reader.perf());
        self.with_state(|state| state.begin(now, perf));
    }

    /// A launch: what to wait for before it. O(1), waits for nothing but the lock. Who carries out the pause
    /// says so with [`waited`](Self::waited); [`launch_wait`](Self::launch_wait) does both.
    pub fn launch(&self) -> Pause {
        let (now, perf) = (self.clock.now(), self.reader.perf());
        self.with_state(|state| state.launch(now, perf))
    }

    /// A launch, after its pause. A change of the share ends the pause: what is missing is planned again.
    pub fn launch_wait(&self) -> Waited {
        self.drive(PacerState::launch)
    }

    /// The step ends: what to wait for before the next one, as for [`launch`](Self::launch).
    pub fn end(&self) -> Pause {
        let (now, perf) = (self.clock.now(), self.reader.perf());
        self.with_state(|state| state.end(now, perf))
    }

    /// The step ends, after its pause.
    pub fn end_wait(&self) -> Waited {
        self.drive(PacerState::end)
    }

    /// Whoever has paused is awake. Longer than planned counts as paused too. The answer says whether the
    /// pause is over, and if not, how long it lasts: a change of the share ends it, and one to 0 makes a
    /// suspension of it.
    pub fn waited(&self, pause: Pause) -> Pause {
        let (now, perf) = (self.clock.now(), self.reader.perf());
        self.with_state(|state| state.waited(pause, now, perf))
    }

    /// Totals so far. O(1).
    pub fn report(&self) -> PacerReport {
        self.with_state(|state| state.report())
    }

    /// Asks until it is not suspended, then pauses.
    fn drive(&self, ask: impl Fn(&mut PacerState, Duration, PerfControl) -> Pause) -> Waited {
        let mut seen = self.reader.look();
        let mut pause = self.with_state(|state| ask(state, self.clock.now(), seen.perf));
        while pause == Pause::Suspended {
            self.reader.wait(&self.clock, None, seen);
            seen = self.reader.look();
            pause = self.with_state(|state| ask(state, self.clock.now(), seen.perf));
        }
        // A suspension that ends a pause holds the launch too.
        loop {
            let until = match pause {
                Pause::None => break,
                Pause::Until(until) => Some(until),
                Pause::Suspended => None,
            };
            self.reader.wait(&self.clock, until, seen);
            seen = self.reader.look();
            pause = self.waited(pause);
        }
        if self.reader.is_cancelled() {
            return Waited::Cancelled;
        }
        Waited::Done
    }

    fn with_state<R>(&self, f: impl FnOnce(&mut PacerState) -> R) -> R {
        f(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
