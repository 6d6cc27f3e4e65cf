//! Pauses between a step's launches, so that a job keeps the device busy for its share of the time.
//!
//! Upstream plans one pause per run and lets a thread spend shrinking shares of it. Here each step has a plan
//! (busy x (100 - perf) / perf, plus the time still due), and each launch, of any kind, inserts an equal
//! share of the plan. There is no thread and no queue: the launching thread waits. A pause that was not
//! inserted stays due, so over many steps the share of the time is exact to the nanosecond.
//!
//! [`state`] does the arithmetic; this file has the lock, the clock and the waits. The lock is held only for
//! the arithmetic.

mod state;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::clock::Clock;
use crate::manage::Waited;
use crate::perf::{DutyCycleReader, PerfControl};
use state::PacerState;

/// Configuration of a [`Pacer`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PacerConfig {
    /// Maximum time carried from step to step, as pauses that are due or as pauses made ahead. Due time above
    /// this is paused at the end of the step; time paused ahead above this is forgotten.
    pub carry_bound: Duration,
    /// Pauses shorter than this are joined with later pauses, since each wait has its own cost. With 0, every
    /// launch pauses for its own share.
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

/// The wait of a launch before it continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a launch that does not pause is not paced"]
pub enum Pause {
    /// The launch continues immediately.
    None,
    /// The launch waits until the clock reads this time.
    Until(Duration),
    /// The launch waits until the share is not 0. If a launch or an end returns this, nothing has been
    /// recorded, and the caller repeats the call. If [`Pacer::waited`] returns it, the caller calls `waited`
    /// again.
    Suspended,
}

/// Totals of a [`Pacer`] over all steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PacerReport {
    /// Steps that have ended.
    pub steps: u64,
    /// Launches in steps.
    pub launches: u64,
    /// Time in steps outside of pauses and suspensions; for queued steps, the reported time.
    pub busy: Duration,
    /// Time in pauses, without suspensions.
    pub inserted: Duration,
    /// Time in steps spent in suspensions that are over.
    pub suspended: Duration,
    /// Pauses that are due but not inserted yet.
    pub due: Duration,
    /// Time that was paused before it was due.
    pub ahead: Duration,
}

/// Paces the launches of one device. Any number of threads may launch. Pauses do not overlap, and no launch
/// continues during a pause.
///
/// A step begins with [`begin`](Self::begin) and ends with [`end_wait`](Self::end_wait). The pacer predicts
/// the busy time and the launches of a step from the previous step. The first step has no prediction, so it
/// runs without pauses and pauses at its end; so does every step that follows a step without launches. A step
/// with fewer launches than the last one pauses at its end for the missing launches; in a step with more
/// launches, the additional ones do not pause. Outside of steps, only a suspension delays a launch.
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
    /// Makes a pacer for the duty cycle of `reader`, with the default settings.
    pub fn new(clock: C, reader: DutyCycleReader) -> Self {
        Self::with_config(clock, reader, PacerConfig::default())
    }

    /// Makes a pacer for the duty cycle of `reader`, with these settings.
    pub fn with_config(clock: C, reader: DutyCycleReader, config: PacerConfig) -> Self {
        Self {
            clock,
            reader,
            state: Mutex::new(PacerState::new(config)),
        }
    }

    /// Begins a step. If a step has not ended, it ends first, without a pause, and its due time is carried
    /// over.
    pub fn begin(&self) {
        let (now, perf) = (self.clock.now(), self.reader.perf());
        self.with_state(|state| state.begin(now, perf, None));
    }

    /// Begins a step whose work is queued on the device: its busy time is the time that [`ran`](Self::ran)
    /// reports, not the time until its end. `unreported` is the number of earlier queued steps that have not
    /// been reported yet. The device must have finished all queued work when a pause begins: check
    /// [`is_pause_next`](Self::is_pause_next) before each launch and
    /// [`is_pause_at_end`](Self::is_pause_at_end) before the end, and wait for the device if there is a
    /// pause. At such an end, pauses shorter than [`PacerConfig::min_pause`] are joined with later ones.
    pub fn begin_queued(&self, unreported: u64) {
        let (now, perf) = (self.clock.now(), self.reader.perf());
        self.with_state(|state| state.begin(now, perf, Some(unreported)));
    }

    /// Reports the device's busy time for a queued step, during that step or later: once for each step, in
    /// their order. The pauses for that time follow the share that the last launch, begin or end used.
    pub fn ran(&self, busy: Duration) {
        self.with_state(|state| state.ran(busy));
    }

    /// Returns whether the next launch in a queued step waits. O(1).
    pub fn is_pause_next(&self) -> bool {
        let (now, perf) = (self.clock.now(), self.reader.perf());
        self.with_state(|state| state.is_pause_next(now, perf))
    }

    /// Returns whether the end of a queued step is expected to wait, given an estimate for the unreported
    /// steps. If so, report them first. O(1).
    pub fn is_pause_at_end(&self) -> bool {
        let (now, perf) = (self.clock.now(), self.reader.perf());
        self.with_state(|state| state.is_pause_at_end(now, perf))
    }

    /// Records a launch and returns its pause. O(1); takes the lock and does not wait. The caller makes the
    /// pause and reports it with [`waited`](Self::waited); [`launch_wait`](Self::launch_wait) does all of
    /// this.
    pub fn launch(&self) -> Pause {
        let (now, perf) = (self.clock.now(), self.reader.perf());
        self.with_state(|state| state.launch(now, perf))
    }

    /// Records a launch and waits until its pause is over. A change of the share ends the pause; the rest is
    /// planned again.
    pub fn launch_wait(&self) -> Waited {
        self.drive(PacerState::launch)
    }

    /// Ends the step and returns the pause before the next step. The caller makes the pause and reports it
    /// with [`waited`](Self::waited).
    pub fn end(&self) -> Pause {
        let (now, perf) = (self.clock.now(), self.reader.perf());
        self.with_state(|state| state.end(now, perf))
    }

    /// Ends the step and waits until its last pause is over.
    pub fn end_wait(&self) -> Waited {
        self.drive(PacerState::end)
    }

    /// Reports that a pausing thread is awake. Time beyond the plan counts as paused. Returns the rest of the
    /// pause, if the pause is not over. A change of the share ends a pause; a change to 0 turns it into a
    /// suspension.
    pub fn waited(&self, pause: Pause) -> Pause {
        let (now, perf) = (self.clock.now(), self.reader.perf());
        self.with_state(|state| state.waited(pause, now, perf))
    }

    /// Returns the totals so far. O(1).
    pub fn report(&self) -> PacerReport {
        self.with_state(|state| state.report())
    }

    /// Repeats `ask` until it returns no suspension, then waits until the pause is over.
    fn drive(&self, ask: impl Fn(&mut PacerState, Duration, PerfControl) -> Pause) -> Waited {
        let mut seen = self.reader.read();
        let mut pause = self.with_state(|state| ask(state, self.clock.now(), seen.perf));
        while pause == Pause::Suspended {
            self.reader.wait(&self.clock, None, seen);
            seen = self.reader.read();
            pause = self.with_state(|state| ask(state, self.clock.now(), seen.perf));
        }
        // A suspension that replaces a pause delays the launch as well.
        loop {
            let until = match pause {
                Pause::None => break,
                Pause::Until(until) => Some(until),
                Pause::Suspended => None,
            };
            self.reader.wait(&self.clock, until, seen);
            seen = self.reader.read();
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
