//! [`JobSleep`]: a job that sleeps between two runs while its control file demands it.
//!
//! JOBSLEEP1. Memory is released and brought back by one thread at a time, while no run is under way, and
//! with no lock held. No thread waits for another thread's run: the thread that ends the last run puts the
//! memory to sleep.
//! JOBSLEEP2. A run begins, and a run that has ended returns, once the job is awake. After a cancel this
//! happens immediately, even if the memory could not be brought back.
//! JOBSLEEP3. Before the job takes memory, it sets the status to `waking`; then it reads the control file
//! once more. A coordinator that revokes its permission writes first and then reads, so one of the two sees
//! what the other wrote (COORD5).
//! JOBSLEEP4. A job that woke ends a run before it sleeps again. So every turn gets at least one run done, even if
//! it is shorter than a wake.

use core::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use larder_control::{ControlFile, Signal, SleepState, SleepStatus, read_orders};
use larder_core::ByteCount;

use super::JobShared;
use super::limits::StatusCheck;
use crate::driver::locked;

/// Time between a refusal and the retry.
const AGAIN: Duration = Duration::from_millis(100);

/// The sleep state of a job, and its orders.
#[derive(Default)]
pub(super) struct JobSleep {
    state: Mutex<SleepOrders>,
    changed: Signal,
}

#[derive(Default)]
struct SleepOrders {
    told: bool,
    cancelled: bool,
    /// Whether the ordered sleep was refused.
    refused: bool,
    /// Whether a thread is releasing memory or bringing it back.
    moves: bool,
    phase: SleepState,
    /// Number of runs under way.
    runs: u64,
    /// Whether no run has ended since the job woke (JOBSLEEP4).
    has_just_woken: bool,
    copied_bytes: u64,
    wake_bytes: u64,
    problem: Option<String>,
    /// Time of the retry after a refusal.
    again: Duration,
}

/// Next action of a thread between two runs.
enum BetweenRuns {
    Run,
    Wait(Option<Duration>),
    Sleep,
    Wake,
}

impl SleepOrders {
    fn next(&mut self, now: Duration) -> BetweenRuns {
        if !self.cancelled && now >= self.again {
            self.refused = false;
        }
        let sleeps = self.told && !self.cancelled && !self.refused;
        match self.phase {
            _ if self.moves => BetweenRuns::Wait(None),
            SleepState::Awake if !sleeps || self.runs > 0 || self.has_just_woken => {
                BetweenRuns::Run
            }
            SleepState::Awake => BetweenRuns::Sleep,
            SleepState::Asleep if sleeps => BetweenRuns::Wait(None),
            // Some of the memory may already be back.
            SleepState::Waking if sleeps => BetweenRuns::Sleep,
            _ if self.cancelled && self.refused => BetweenRuns::Run,
            _ if now < self.again => BetweenRuns::Wait(Some(self.again)),
            _ => BetweenRuns::Wake,
        }
    }

    fn try_again(&mut self, problem: String, now: Duration) {
        self.problem = Some(problem);
        self.again = now + AGAIN;
    }
}

/// A run under way, counted until this is dropped.
pub(super) struct UnderWay(Arc<JobSleep>);

impl fmt::Debug for UnderWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UnderWay")
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        locked(&self.0.state).runs -= 1;
    }
}

/// Marks that this thread moves memory, until dropped.
struct MoveGuard<'r>(&'r JobSleep);

impl Drop for MoveGuard<'_> {
    fn drop(&mut self) {
        locked(&self.0.state).moves = false;
        self.0.changed.raise();
    }
}

impl JobSleep {
    /// Takes the control file's order. Returns true if the order changed the status.
    pub(super) fn tell(&self, asleep: bool) -> bool {
        let mut state = locked(&self.state);
        if state.told == asleep {
            return false;
        }
        (state.told, state.refused, state.again) = (asleep, false, Duration::ZERO);
        let is_settled = state.phase == SleepState::Awake && state.problem.take().is_some();
        drop(state);
        self.changed.raise();
        is_settled
    }

    /// Ends all sleep. Memory that cannot be brought back is left for the program to wake.
    pub(super) fn cancel(&self) {
        let mut state = locked(&self.state);
        (state.cancelled, state.refused, state.again) = (true, false, Duration::ZERO);
        drop(state);
        self.changed.raise();
    }

    /// Returns the sleep part of the status.
    pub(super) fn status(&self) -> SleepStatus {
        let state = locked(&self.state);
        let mut status = SleepStatus::default();
        status.state = state.phase;
        status.copied_bytes = state.copied_bytes;
        status.wake_bytes = state.wake_bytes;
        status.problem.clone_from(&state.problem);
        status
    }

    pub(super) fn is_awake(&self) -> bool {
        locked(&self.state).phase == SleepState::Awake
    }

    /// Notes that a run has ended.
    pub(super) fn note_ended(&self) {
        locked(&self.state).has_just_woken = false;
    }

    /// Waits until a run may begin. The waiting thread also puts the memory to sleep and wakes it.
    pub(super) fn begin(self: &Arc<Self>, job: &JobShared) -> UnderWay {
        loop {
            let seen = self.changed.changes();
            let now = job.clock.now();
            let mut state = locked(&self.state);
            let next = state.next(now);
            match next {
                BetweenRuns::Run => state.runs += 1,
                BetweenRuns::Wait(_) => {}
                BetweenRuns::Sleep | BetweenRuns::Wake => state.moves = true,
            }
            drop(state);
            match next {
                BetweenRuns::Run => return UnderWay(Arc::clone(self)),
                BetweenRuns::Wait(until) => {
                    job.clock.wait(until, &self.changed, seen);
                }
                BetweenRuns::Sleep => self.fall_asleep(job, MoveGuard(self)),
                BetweenRuns::Wake => self.wake(job, MoveGuard(self)),
            }
        }
    }

    /// Releases all memory, or none of it.
    fn fall_asleep(&self, job: &JobShared, moves: MoveGuard<'_>) {
        // Time asleep does not count as work, even if the last run has not ended its step.
        let _ = job.pacer.end();
        let memories = job.managed.memories();
        let (mut copied, mut released) = (0, 0);
        let slept = match job.managed.foreign_bytes() {
            0 => memories.iter().try_for_each(|memory| {
                let slept = memory.sleep().map_err(|error| error.to_string())?;
                copied += slept.copied_bytes;
                released += slept.released_bytes;
                Ok(())
            }),
            bytes => Err(format!(
                "{:#} were allocated without Larder and cannot be released, so the job stays awake",
                ByteCount(bytes)
            )),
        };
        let is_back = slept.is_ok() || memories.iter().all(|memory| memory.wake().is_ok());
        // The device has finished all queued runs.
        job.record_queued();
        let mut state = locked(&self.state);
        match slept {
            Ok(()) => {
                // Memory that was already asleep was not copied again.
                state.copied_bytes = copied.max(state.copied_bytes);
                state.wake_bytes = released.max(state.wake_bytes);
                (state.phase, state.problem) = (SleepState::Asleep, None);
            }
            Err(error) => {
                state.try_again(error, job.clock.now());
                state.refused = true;
                state.phase = if is_back {
                    SleepState::Awake
                } else {
                    SleepState::Waking
                };
            }
        }
        drop(state);
        job.write_status();
        drop(moves);
    }

    /// Brings all memory back, or the part before the first refusal.
    fn wake(&self, job: &JobShared, moves: MoveGuard<'_>) {
        let mut state = locked(&self.state);
        let is_first = state.phase == SleepState::Asleep;
        let is_cancelled = state.cancelled;
        state.phase = SleepState::Waking;
        drop(state);
        if is_first && !is_cancelled {
            // JOBSLEEP3: write `waking`, then read the control file once more.
            let is_said = job.write_status();
            if !is_said || job.is_told_to_sleep() {
                // If this order is outdated, the listener reports the newer one.
                let mut state = locked(&self.state);
                state.phase = SleepState::Asleep;
                state.again = job.clock.now() + AGAIN;
                drop(state);
                job.write_status();
                return;
            }
        }
        let memories = job.managed.memories();
        let woken = memories
            .iter()
            .try_for_each(|memory| memory.wake().map(drop));
        let mut state = locked(&self.state);
        match woken {
            Ok(()) => {
                (state.copied_bytes, state.wake_bytes) = (0, 0);
                state.phase = SleepState::Awake;
                state.has_just_woken = true;
                if !state.refused {
                    state.problem = None;
                }
            }
            Err(error) => {
                state.try_again(error.to_string(), job.clock.now());
                state.refused |= is_cancelled;
            }
        }
        drop(state);
        job.write_status();
        drop(moves);
    }
}

impl JobShared {
    /// Writes the status now if it has changed. Returns false if that failed.
    fn write_status(&self) -> bool {
        let checked = self.with_statistics(|statistics| self.check(statistics, StatusCheck::Early));
        checked.is_some_and(|checked| checked.is_ok())
    }

    /// Returns whether the control file currently orders sleep, or cannot be read.
    fn is_told_to_sleep(&self) -> bool {
        let Some(path) = &self.config.files.control else {
            return false;
        };
        let text = match read_orders(path, ControlFile::MAX_BYTES, None) {
            Ok(Some(text)) => text,
            Ok(None) => return false,
            Err(_) => return true,
        };
        let parsed = ControlFile::parse(text);
        let is_told = |file: ControlFile| file.is_for(self.life) && file.asleep == Some(true);
        parsed.is_ok_and(|parsed| is_told(parsed.file))
    }
}
