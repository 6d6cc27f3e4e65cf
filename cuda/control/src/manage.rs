//! How long a job pauses at the end of a run, so that it keeps the device busy for its share of the time
//! only: AntMan's formula, to the microsecond, and the wait that carries it out.
//!
//! Of a run of S microseconds, T - R were inserted pauses (T: the slot planned last time, R: what was left of
//! it); the others, at least 1, were busy. The run should take busy x 100 / perf microseconds. The job sleeps
//! for what is missing, less 50 for the pause's own cost; that time is the next T and R.
//!
//! [`ResourceManagement::after_run`] says what to do and [`ResourceManagement::finish_run`] does it. A
//! [`Pacer`](crate::Pacer) spreads its pauses over a step's launches instead: use the one or the other.
//!
//! Locks: one, around the two numbers of the formula, held for arithmetic only and never over a wait.

use core::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::clock::Clock;
use crate::perf::{DutyCycle, DutyCycleReader, PerfControl};

/// What a pause costs beside its length, in microseconds.
const PAUSE_COST_US: u64 = 50;

/// What happens to a planned slot when the share returns to full, or a suspension ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Slots {
    /// The slot is dropped, and a running pause ends or is planned again.
    #[default]
    Forgotten,
    /// The slot stays and is inserted until it has decayed; a pause is slept to its end. Upstream does this:
    /// it drops a slot only in a run that also adjusted a limit ([`ResourceManagement::note_adjusted`]).
    Kept,
}

/// What to do at the end of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "it is a plan: somebody has to sleep"]
pub enum SleepPlan {
    /// Start the next run at once.
    Nothing,
    /// Sleep for this time, then start the next run.
    Sleep(Duration),
    /// Start the next run when the share is no longer 0.
    Suspend,
}

/// How a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a run whose wait is not over must not start"]
#[non_exhaustive]
pub enum Waited {
    /// The plan was carried out.
    Done,
    /// The duty cycle was cancelled; no pause is inserted any more.
    Cancelled,
    /// The allowed time passed before the plan was carried out.
    TimedOut,
}

/// The state of the formula between two runs, in microseconds.
#[derive(Clone, Copy, Debug, Default)]
struct SlotState {
    /// T: the slot that was planned last time.
    slot: u64,
    /// R: what is left of the slot.
    left: u64,
    /// Whether a limit was adjusted in this run.
    adjusted: bool,
}

/// A job's pauses between runs.
///
/// ```
/// use std::time::Duration;
/// use larder_control::{ManualClock, PerfControl, ResourceManagement, SleepPlan, Waited};
///
/// let management = ResourceManagement::new(ManualClock::new());
/// management.set_perf(PerfControl::new(50)?);
/// let run = Duration::from_millis(100);
/// assert_eq!(management.after_run(run), SleepPlan::Sleep(Duration::from_micros(99_950)));
/// assert_eq!(management.finish_run(run), Waited::Done);
/// # Ok::<(), larder_control::PerfOutOfRange>(())
/// ```
#[derive(Debug)]
pub struct ResourceManagement<C> {
    clock: C,
    slots: Slots,
    duty_cycle: DutyCycle,
    reader: DutyCycleReader,
    state: Mutex<SlotState>,
}

impl<C: Clock> ResourceManagement<C> {
    /// Starts at the full share, with [`Slots::Forgotten`].
    pub fn new(clock: C) -> Self {
        Self::with_slots(clock, Slots::default())
    }

    /// Starts at the full share and treats planned slots as `slots` says.
    pub fn with_slots(clock: C, slots: Slots) -> Self {
        let duty_cycle = DutyCycle::new();
        let reader = duty_cycle.reader();
        Self {
            clock,
            slots,
            duty_cycle,
            reader,
            state: Mutex::default(),
        }
    }

    /// Sets the share. Wakes suspended and sleeping threads, which plan again.
    pub fn set_perf(&self, perf: PerfControl) {
        self.duty_cycle.set(perf);
    }

    /// The share in force.
    pub fn perf(&self) -> PerfControl {
        self.reader.perf()
    }

    /// A reader of this share, for a [`Pacer`](crate::Pacer).
    pub fn reader(&self) -> DutyCycleReader {
        self.duty_cycle.reader()
    }

    /// Ends every wait, now and later; no pause is inserted any more.
    pub fn cancel(&self) {
        self.duty_cycle.cancel();
    }

    /// R: the time that is left to insert of the slot planned last.
    pub fn idle_left(&self) -> Duration {
        Duration::from_micros(self.with_state(|state| state.left))
    }

    /// Sets R. A caller that inserted part of the slot subtracts that part.
    pub fn set_idle_left(&self, left: Duration) {
        self.with_state(|state| state.left = micros(left));
    }

    /// Notes that a limit was adjusted in the run that ends now. It matters with [`Slots::Kept`] only.
    pub fn note_adjusted(&self) {
        self.with_state(|state| state.adjusted = true);
    }

    /// Plans the pause after a run that took `run_time`, pauses inside it included. O(1).
    pub fn after_run(&self, run_time: Duration) -> SleepPlan {
        let perf = self.perf();
        let busy = self.with_state(|state| state.busy(run_time));
        self.plan(perf, run_time, busy)
    }

    /// Plans the pause after a run, as [`after_run`](Self::after_run) does, and carries it out. Only
    /// [`set_perf`](Self::set_perf) and [`cancel`](Self::cancel) end a suspension.
    pub fn finish_run(&self, run_time: Duration) -> Waited {
        self.finish(run_time, None)
    }

    /// Plans the pause after a run and carries it out, for `longest` at most. After [`Waited::TimedOut`] a
    /// caller waits out a suspension with [`wait_on`](Self::wait_on); the rest of a sleep is lost.
    pub fn finish_run_within(&self, run_time: Duration, longest: Duration) -> Waited {
        self.finish(run_time, Some(self.clock.now().saturating_add(longest)))
    }

    /// Waits while the share is 0, for `longest` at most. It continues a suspension that timed out.
    pub fn wait_on(&self, longest: Duration) -> Waited {
        self.wait_suspended(Some(self.clock.now().saturating_add(longest)))
    }

    fn finish(&self, run_time: Duration, until: Option<Duration>) -> Waited {
        let start = self.clock.now();
        let mut seen = self.reader.look();
        let busy = self.with_state(|state| state.busy(run_time));
        let mut plan = self.plan(seen.perf, run_time, busy);
        loop {
            let end = match plan {
                SleepPlan::Nothing => break,
                SleepPlan::Suspend => return self.wait_suspended(until),
                SleepPlan::Sleep(time) => start.saturating_add(time),
            };
            let stop = until.map_or(end, |until| until.min(end));
            if !self.reader.wait(&self.clock, Some(stop), seen) {
                return if stop < end {
                    Waited::TimedOut
                } else {
                    Waited::Done
                };
            }
            if self.reader.is_cancelled() {
                break;
            }
            seen = self.reader.look();
            if self.slots == Slots::Forgotten {
                // The time slept so far counts: the new end is measured from the start, too.
                plan = self.plan(seen.perf, run_time, busy);
            }
        }
        self.ended()
    }

    /// Waits until the share is not 0.
    fn wait_suspended(&self, until: Option<Duration>) -> Waited {
        loop {
            let seen = self.reader.look();
            if !seen.perf.is_suspended() {
                break;
            }
            if !self.reader.wait(&self.clock, until, seen) {
                return Waited::TimedOut;
            }
        }
        if self.slots == Slots::Forgotten {
            self.with_state(SlotState::forget);
        }
        self.ended()
    }

    fn ended(&self) -> Waited {
        if self.reader.is_cancelled() {
            return Waited::Cancelled;
        }
        Waited::Done
    }

    /// Applies the formula and stores its numbers for the next run.
    fn plan(&self, perf: PerfControl, run_time: Duration, busy: u64) -> SleepPlan {
        self.with_state(|state| {
            let adjusted = core::mem::take(&mut state.adjusted);
            if perf.is_full() {
                if self.slots == Slots::Forgotten || adjusted {
                    state.forget();
                }
                return SleepPlan::Nothing;
            }
            if perf.is_suspended() {
                return SleepPlan::Suspend;
            }
            let want = u128::from(busy) * 100 / u128::from(perf.percent());
            let spent = u128::from(micros(run_time)) + u128::from(PAUSE_COST_US);
            let pause = u64::try_from(want.saturating_sub(spent)).unwrap_or(u64::MAX);
            state.slot = pause;
            state.left = pause;
            match pause {
                0 => SleepPlan::Nothing,
                pause => SleepPlan::Sleep(Duration::from_micros(pause)),
            }
        })
    }

    fn with_state<R>(&self, f: impl FnOnce(&mut SlotState) -> R) -> R {
        f(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl SlotState {
    /// The busy microseconds of a run: those that are no inserted pause. Called once a run, before the plan.
    fn busy(&self, run_time: Duration) -> u64 {
        let inserted = self.slot.saturating_sub(self.left);
        micros(run_time).saturating_sub(inserted).max(1)
    }

    fn forget(&mut self) {
        self.slot = 0;
        self.left = 0;
    }
}

impl fmt::Display for Waited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Done => "done",
            Self::Cancelled => "cancelled: no pause is inserted any more",
            Self::TimedOut => "not done yet: wait again, or cancel",
        })
    }
}

/// Whole microseconds; what does not fit is the largest number.
fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
