//! A small coordinator, which decides how much of a device's memory each job may hold, and how fast each job
//! may run. It takes reports and returns commands, without side effects: callers handle files, processes and
//! clocks.
//!
//! COORD1. A job's *charge* is the maximum that it can hold from now on, as far as is known: the
//! largest of the limit that it has confirmed, the limit that was sent and is not confirmed, and the bytes
//! that it holds above its limit.
//! COORD2. The sum of the charges never exceeds the total; so, at any time, neither does the memory that jobs
//! hold. A limit is raised only with memory that no charge covers. Memory that one job is to release is given
//! to another job only after the first has confirmed the lower limit and has released the memory.
//! COORD3. At most one limit of a job is unconfirmed. Versions increase, and the job's status has the version
//! that the job obeys, so an old status cannot be mistaken for an answer. If a job's first report has another
//! coordinator's version, the job continues from that version.
//! COORD4. A job's memory counts until the caller reports that the job is gone ([`Coordinator::gone`]); a job
//! that no longer reports is not gone. A job that starts again is a new job.
//!
//! COORD5. With turns, only the memory that a job holds counts once a report shows the job asleep, provided
//! that the report was read after the order to sleep was written. A waking job reports that it wakes, and
//! reads its orders once more, before it takes memory. So whichever of the two writes first, the job or the
//! coordinator, the other one sees it ([`SleepState`]).
//!
//! COORD2 requires two things of a job. It grants nothing above the last limit that it was sent, which is 0
//! before the first. And the memory that it reports is the memory that it holds *after* it has obeyed the
//! reported version.

mod job;
mod targets;
mod turns;

use std::time::Duration;

use larder_core::ByteCount;

use crate::SleepState;
use crate::perf::PerfControl;
use job::CoordinatedJob;
use targets::targets;
use turns::{Seat, moves};

/// Identifies a job. A coordinator never reuses an id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct JobId(u64);

/// The policy for a job: the coordinator's promise to the job, and the job's rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobPolicy {
    /// The job's name, shown to people.
    pub name: String,
    /// The job's priority: a higher priority goes first, and jobs with equal priorities divide memory fairly.
    pub priority: u32,
    /// Once the job's limit has reached this number of bytes, it never drops below it.
    pub floor_bytes: u64,
    /// The job's share of the time while a job with a higher priority wants memory; at other times, the job has
    /// the full share.
    pub perf_beside: PerfControl,
}

/// A job's report of its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct JobReport {
    /// The newest version of a limit that the job obeys; 0 before the first.
    pub version: u64,
    /// The limit in force: the limit that was sent, or the limit that the job set instead.
    pub limit_bytes: u64,
    /// Bytes that the job holds.
    pub held_bytes: u64,
    /// Bytes above its limit that the job has not released yet.
    pub deferred_bytes: u64,
    /// Bytes that the job would like to hold.
    pub wanted_bytes: u64,
    /// Bytes that the job does not return on request; those that it wants beyond them come after what the other
    /// jobs want for themselves. With `None`, the job returns nothing.
    pub guaranteed_bytes: Option<u64>,
    /// Whether the job sleeps; `None` if it does not support sleep, or cannot sleep now.
    pub sleep: Option<SleepState>,
    /// Bytes that a sleeping job needs to wake.
    pub wake_bytes: u64,
}

/// A command to a job. A newer command replaces an older command of the same kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Command {
    /// A new limit, with the version that confirms it.
    SetLimit {
        /// The job that the command is for.
        job: JobId,
        /// The limit.
        limit_bytes: u64,
        /// The version, which is higher than all earlier ones.
        version: u64,
    },
    /// A new share of the time.
    SetPerf {
        /// The job that the command is for.
        job: JobId,
        /// The share.
        perf: PerfControl,
    },
    /// The order to sleep after the current run, or to be awake. Used only with turns.
    SetAsleep {
        /// The job that the command is for.
        job: JobId,
        /// Whether the job is to sleep.
        asleep: bool,
    },
}

impl Command {
    /// Returns the job that the command is for.
    pub const fn job(&self) -> JobId {
        match *self {
            Self::SetLimit { job, .. }
            | Self::SetPerf { job, .. }
            | Self::SetAsleep { job, .. } => job,
        }
    }
}

/// Configuration of a [`Coordinator`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CoordinatorConfig {
    /// Bytes that the device has for all jobs.
    pub total_bytes: u64,
    /// The unit of limits. The bytes that jobs want are rounded up to multiples of the unit, and a limit
    /// changes by less than a unit only to meet its target exactly. 0 counts as 1.
    pub step_bytes: u64,
    /// The stabilization time. A job must want less for this long before its limit drops; an increase
    /// counts immediately. A job that set a higher limit than the one it was sent is sent the lower limit
    /// again after this time.
    pub calm: Duration,
    /// Minimum length of a turn. Jobs that together want more than the total take turns: each gets all the
    /// memory that it wants, and the others sleep meanwhile. A turn lasts for this time multiplied by the
    /// job's priority (1 to 10), and continues while no other job waits. With `None`, all jobs are awake and
    /// divide the memory.
    pub turn: Option<Duration>,
}

/// An error in a policy or a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CoordinateError {
    /// No such job has joined, or it is gone.
    #[error("there is no such job: it never joined, or is gone")]
    Unknown,
    /// The sum of the floors would exceed the total.
    #[error("only {:#} are not promised yet: choose a lower floor", ByteCount(*left_bytes))]
    FloorsExceedTotal {
        /// Bytes that no floor covers.
        left_bytes: u64,
    },
    /// The job reports a version that was never sent.
    #[error("the newest limit has version {version}: is this another coordinator's job?")]
    NeverSent {
        /// The newest version sent.
        version: u64,
    },
    /// The job holds, or may hold, more than it was allowed. The report counts nevertheless. The coordinator
    /// lowers limits to their targets until the charges fit in the total again, and raises no limit before
    /// that.
    #[error("{:#} more than allowed: the job does not obey its limit, stop the job", ByteCount(*bytes))]
    AboveLimit {
        /// Bytes above the allowed number.
        bytes: u64,
    },
}

/// Divides a device's memory among jobs: the bytes that the jobs can hold together never exceed the total,
/// provided that no job grants more than the last limit that it was sent.
///
/// ```
/// use std::time::Duration;
/// use larder_control::{Command, Coordinator, CoordinatorConfig, JobReport, JobPolicy, PerfControl};
///
/// let mut coordinator = Coordinator::new(CoordinatorConfig {
///     total_bytes: 100, step_bytes: 10, calm: Duration::from_secs(10), turn: None,
/// });
/// let job = coordinator.join(JobPolicy {
///     name: "train".into(), priority: 1, floor_bytes: 20, perf_beside: PerfControl::FULL,
/// })?;
/// let report = JobReport { wanted_bytes: 55, ..JobReport::default() };
/// coordinator.report(job, report, Duration::ZERO)?;
/// let limit = Command::SetLimit { job, limit_bytes: 60, version: 1 };
/// assert_eq!(coordinator.decide(Duration::ZERO), [limit]);
/// # Ok::<(), larder_control::CoordinateError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Coordinator {
    config: CoordinatorConfig,
    jobs: Vec<CoordinatedJob>,
    next: u64,
}

impl Coordinator {
    /// Makes a coordinator without jobs.
    pub const fn new(config: CoordinatorConfig) -> Self {
        Self {
            config,
            jobs: Vec::new(),
            next: 0,
        }
    }

    /// Adds a job that holds nothing and has a limit of 0 until it is sent another. If jobs are already
    /// running when a coordinator starts, the caller lets all of them join, [`report`](Self::report)s the
    /// status of each, and then decides. A job with limits from an earlier coordinator continues from the
    /// version of those limits.
    ///
    /// # Errors
    ///
    /// The floors of all jobs would exceed the total. Nothing changes.
    pub fn join(&mut self, policy: JobPolicy) -> Result<JobId, CoordinateError> {
        self.join_with(policy, 0)
    }

    /// Adds a job that may hold `may_hold_bytes` bytes according to an earlier coordinator's orders. These
    /// bytes are charged until its first report.
    ///
    /// # Errors
    ///
    /// The floors of all jobs would exceed the total. Nothing changes.
    pub fn join_with(
        &mut self,
        policy: JobPolicy,
        may_hold_bytes: u64,
    ) -> Result<JobId, CoordinateError> {
        let promised: u64 = self.jobs.iter().map(|job| job.policy.floor_bytes).sum();
        let left_bytes = self.config.total_bytes - promised;
        if policy.floor_bytes > left_bytes {
            return Err(CoordinateError::FloorsExceedTotal { left_bytes });
        }
        let id = JobId(self.next);
        self.next += 1;
        self.jobs.push(CoordinatedJob::new(
            id,
            policy,
            may_hold_bytes,
            self.config.turn.is_some(),
        ));
        Ok(id)
    }

    /// Removes a job whose processes have ended and whose memory is free again.
    ///
    /// # Errors
    ///
    /// There is no such job.
    pub fn gone(&mut self, job: JobId) -> Result<(), CoordinateError> {
        let place = self.jobs.iter().position(|other| other.id == job);
        let place = place.ok_or(CoordinateError::Unknown)?;
        self.jobs.remove(place);
        Ok(())
    }

    /// Takes a job's report at the time `now`, which never goes back. A job's reports come in the order in
    /// which it made them. Some may be missing, and a report with an older version is ignored. With turns, a
    /// report may show a job asleep only if it was read after the newest order to sleep was written;
    /// otherwise the caller reports [`Waking`](SleepState::Waking). O(jobs).
    ///
    /// # Errors
    ///
    /// The job or the version is unknown; nothing changes then. Or the job holds more than it was allowed;
    /// the report counts nevertheless.
    pub fn report(
        &mut self,
        job: JobId,
        report: JobReport,
        now: Duration,
    ) -> Result<(), CoordinateError> {
        let step = self.config.step_bytes;
        let job = self.jobs.iter_mut().find(|other| other.id == job);
        job.ok_or(CoordinateError::Unknown)?
            .report(report, now, step)
    }

    /// Returns the commands that now meet the jobs' demands as well as possible. The caller calls this after
    /// each report and from time to time, and sends every command, because each counts as sent. O(jobs
    /// squared).
    pub fn decide(&mut self, now: Duration) -> Vec<Command> {
        let calm = self.config.calm;
        self.jobs.iter_mut().for_each(|job| job.settle(now, calm));
        let mut commands = Vec::new();
        self.take_turns(now, &mut commands);
        let wants: Vec<_> = self.jobs.iter().map(CoordinatedJob::want).collect();
        let targets = targets(self.config.total_bytes, &wants);
        let missing = self.raise(&targets, &mut commands);
        // The charges exceed the total if a job reported a limit that it was not sent.
        let over = self.charged_bytes().saturating_sub(self.config.total_bytes);
        self.lower(&targets, missing.saturating_add(over), &mut commands);
        self.pace(&mut commands);
        commands
    }

    /// Sends a job the limit that the coordinator assumes, for a job that reported another. Returns `None`
    /// while an order is on its way, or if there is no such job.
    pub fn restate(&mut self, job: JobId) -> Option<Command> {
        let job = self.jobs.iter_mut().find(|other| other.id == job)?;
        job.is_confirmed().then(|| job.send_limit(job.limit))
    }

    /// Returns the job's charge: the maximum that it can hold from now on (COORD1). Returns `None` if there
    /// is no such job.
    pub fn charge_bytes(&self, job: JobId) -> Option<u64> {
        let job = self.jobs.iter().find(|other| other.id == job)?;
        Some(job.charge())
    }

    /// Returns the sum of all charges, which is at most the total if the jobs obey (COORD2).
    pub fn charged_bytes(&self) -> u64 {
        self.jobs
            .iter()
            .fold(0, |sum, job| sum.saturating_add(job.charge()))
    }

    /// Decides which jobs have the device from now on.
    fn take_turns(&mut self, now: Duration, commands: &mut Vec<Command>) {
        let Some(turn) = self.config.turn else {
            return;
        };
        let total = self.config.total_bytes;
        let seated = self.jobs.iter_mut().map(|job| job.seated(total, now));
        let seated: Vec<_> = seated.collect();
        for (index, seat) in moves(total, turn, now, &seated) {
            self.jobs[index].sit(seat, now);
        }
        for job in &mut self.jobs {
            // Limits the job so that it fits next to others when it wakes.
            let most = job.need(total);
            if job.seat() == Seat::Out && job.is_confirmed() && job.limit > most {
                commands.push(job.send_limit(most));
            }
            commands.extend(job.send_asleep());
        }
    }

    /// Raises limits with memory that no charge covers: first the limits of jobs below their floors, then by
    /// priority. Returns the bytes that are missing to reach the targets.
    fn raise(&mut self, targets: &[u64], commands: &mut Vec<Command>) -> u64 {
        let mut order: Vec<_> = (0..self.jobs.len()).collect();
        order.sort_by_key(|&index| {
            let job = &self.jobs[index];
            let has_floor = job.charge() >= job.policy.floor_bytes;
            (has_floor, core::cmp::Reverse(job.policy.priority), job.id)
        });
        let mut free = self.config.total_bytes.saturating_sub(self.charged_bytes());
        let mut missing = 0;
        for index in order {
            let (job, target) = (&mut self.jobs[index], targets[index]);
            if job.seat() != Seat::In {
                continue;
            }
            let charge = job.charge();
            let need = target.saturating_sub(charge);
            let grant = need.min(free);
            // A job with an unconfirmed limit gets no command now. Its grant stays reserved for it.
            free -= grant;
            missing += need - grant;
            let limit = target.min(charge + grant);
            let enough = limit == target || limit - job.limit.min(limit) >= self.config.step_bytes;
            if job.is_confirmed() && limit > job.limit && enough {
                commands.push(job.send_limit(limit));
            }
        }
        missing
    }

    /// Lowers limits that are above their targets, lowest priority first. Lowers them by the bytes that are
    /// missing or charged above the total, less the bytes that jobs are already releasing. Lowers no limit if
    /// nothing is missing.
    fn lower(&mut self, targets: &[u64], mut missing: u64, commands: &mut Vec<Command>) {
        let coming = self
            .jobs
            .iter()
            .fold(0, |sum: u64, job| sum.saturating_add(job.coming()));
        missing = missing.saturating_sub(coming);
        let mut order: Vec<_> = (0..self.jobs.len()).collect();
        order.sort_by_key(|&index| {
            (
                self.jobs[index].policy.priority,
                core::cmp::Reverse(self.jobs[index].id),
            )
        });
        for index in order {
            let (job, target) = (&mut self.jobs[index], targets[index]);
            // Memory that the job refused to release is not requested again until the refusal is forgotten.
            let least = job.refused().map_or(target, |refused| refused.max(target));
            let spare = job.limit.saturating_sub(least);
            if missing == 0 || spare == 0 || !job.is_confirmed() || job.seat() != Seat::In {
                continue;
            }
            let whole = missing.max(self.config.step_bytes);
            let cut = spare.min(whole);
            missing = missing.saturating_sub(cut);
            commands.push(job.send_limit(job.limit - cut));
        }
    }

    /// Slows each job while a job with a higher priority wants memory.
    fn pace(&mut self, commands: &mut Vec<Command>) {
        let busiest = self
            .jobs
            .iter()
            .filter(|job| job.wants_memory() && job.seat() == Seat::In)
            .map(|job| job.policy.priority)
            .max();
        for job in &mut self.jobs {
            let perf = match busiest {
                Some(priority) if priority > job.policy.priority => job.policy.perf_beside,
                _ => PerfControl::FULL,
            };
            if perf != job.perf {
                job.perf = perf;
                commands.push(Command::SetPerf { job: job.id, perf });
            }
        }
    }
}
