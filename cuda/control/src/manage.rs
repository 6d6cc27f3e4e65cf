//! The pause of a job at the end of a run, so that the job keeps the device busy only for its share of the
//! time: AntMan's formula, exact to the microsecond, and the wait.
//!
//! A run of S microseconds (at least 1) should take S x 100 / share microseconds. The job sleeps for the
//! difference, less 50 microseconds for the cost of the pause itself.
//!
//! [`ResourceManagement::after_run`] plans the pause and [`ResourceManagement::finish_run`] makes it. A
//! [`Pacer`](crate::Pacer) spreads its pauses over a step's launches instead: use one of the two.

use core::fmt;
use std::time::Duration;

use crate::clock::Clock;
use crate::perf::{DutyCycle, DutyCycleReader, PerfControl};

/// Cost of a pause in addition to its length, in microseconds.
const PAUSE_COST_US: u64 = 50;

/// The plan for the end of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "it is a plan: somebody has to sleep"]
pub enum SleepPlan {
    /// Start the next run immediately.
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
    /// The duty cycle was cancelled, so no more pauses are inserted.
    Cancelled,
    /// The allowed time passed before the plan was carried out.
    TimedOut,
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
    duty_cycle: DutyCycle,
    reader: DutyCycleReader,
}

impl<C: Clock> ResourceManagement<C> {
    /// Makes a resource management with the full share.
    pub fn new(clock: C) -> Self {
        let duty_cycle = DutyCycle::new();
        let reader = duty_cycle.reader();
        Self {
            clock,
            duty_cycle,
            reader,
        }
    }

    /// Sets the share. Wakes suspended and sleeping threads, which plan again.
    pub fn set_perf(&self, perf: PerfControl) {
        self.duty_cycle.set(perf);
    }

    /// Returns the share in force.
    pub fn perf(&self) -> PerfControl {
        self.reader.perf()
    }

    /// Returns a reader of this share, for a [`Pacer`](crate::Pacer).
    pub fn reader(&self) -> DutyCycleReader {
        self.duty_cycle.reader()
    }

    /// Ends every wait, now and later. No more pauses are inserted.
    pub fn cancel(&self) {
        self.duty_cycle.cancel();
    }

    /// Plans the pause after a run that took `run_time`. O(1).
    pub fn after_run(&self, run_time: Duration) -> SleepPlan {
        plan(self.perf(), run_time)
    }

    /// Plans the pause after a run, as [`after_run`](Self::after_run) does, and carries it out.
    /// Only [`set_perf`](Self::set_perf) and [`cancel`](Self::cancel) end a suspension.
    pub fn finish_run(&self, run_time: Duration) -> Waited {
        self.finish(run_time, None)
    }

    /// Plans the pause after a run and carries it out, for at most `longest`. After [`Waited::TimedOut`],
    /// a caller waits for the end of a suspension with [`wait_on`](Self::wait_on); the rest of a sleep is
    /// lost.
    pub fn finish_run_within(&self, run_time: Duration, longest: Duration) -> Waited {
        self.finish(run_time, Some(self.clock.now().saturating_add(longest)))
    }

    /// Waits while the share is 0, for at most `longest`. Continues a suspension that timed out.
    pub fn wait_on(&self, longest: Duration) -> Waited {
        self.wait_suspended(Some(self.clock.now().saturating_add(longest)))
    }

    fn finish(&self, run_time: Duration, until: Option<Duration>) -> Waited {
        let start = self.clock.now();
        let mut seen = self.reader.read();
        loop {
            // The time slept so far counts, since the new end is measured from the start, too.
            let end = match plan(seen.perf, run_time) {
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
            seen = self.reader.read();
        }
        self.ended()
    }

    /// Waits until the share is not 0.
    fn wait_suspended(&self, until: Option<Duration>) -> Waited {
        loop {
            let seen = self.reader.read();
            if !seen.perf.is_suspended() {
                break;
            }
            if !self.reader.wait(&self.clock, until, seen) {
                return Waited::TimedOut;
            }
        }
        self.ended()
    }

    fn ended(&self) -> Waited {
        if self.reader.is_cancelled() {
            return Waited::Cancelled;
        }
        Waited::Done
    }
}

/// Returns the plan for a run according to the formula above.
fn plan(perf: PerfControl, run_time: Duration) -> SleepPlan {
    if perf.is_full() {
        return SleepPlan::Nothing;
    }
    if perf.is_suspended() {
        return SleepPlan::Suspend;
    }
    let run = micros(run_time);
    let whole = u128::from(run.max(1)) * 100 / u128::from(perf.percent());
    let spent = u128::from(run) + u128::from(PAUSE_COST_US);
    match u64::try_from(whole.saturating_sub(spent)) {
        Ok(0) => SleepPlan::Nothing,
        pause => SleepPlan::Sleep(Duration::from_micros(pause.unwrap_or(u64::MAX))),
    }
}

impl fmt::Display for Waited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Done => "done",
            Self::Cancelled => "cancelled: no more pauses are inserted",
            Self::TimedOut => "not done yet: wait again, or cancel",
        })
    }
}

/// Returns whole microseconds, saturating.
fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
