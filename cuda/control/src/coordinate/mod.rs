//! A small coordinator: which job may hold how much of a device's memory, and how fast it may run. Pure:
//! statuses go in, commands come out; files, processes and clocks are somebody else's.
//!
//! K1. A job's *charge* is the most it can hold from now on, by all that is known: the largest of the limit
//! it has confirmed, the limit that was sent and is not confirmed, and what it holds above its limit.
//! K2. The sum of the charges never exceeds the total, so neither does what is held, at any time. A limit is
//! raised out of what no charge covers; memory that one job is to give up is another's only after the first
//! has confirmed the lower limit and that the memory has gone.
//! K3. At most one limit of a job is under way; its version goes up, and the job's status says the version
//! that it obeys. So an old status cannot be taken for an answer.
//! A job that obeys another coordinator's version when it is heard for the first time goes on from it.
//! K4. A job's memory is gone when somebody says so ([`Coordinator::gone`]): silence is no death. A job that
//! starts again is another job, and the dead one's memory counts until it is told gone.
//!
//! What a job has to do for K2: grant nothing above the limit it was told last, 0 before it was told any; and
//! report what it holds *after* it obeyed the version it reports.

mod job;
mod targets;

use core::fmt;
use std::time::Duration;

use crate::perf::PerfControl;
use job::Job;
use targets::targets;

/// Names a job; never given twice by a coordinator.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct JobId(u64);

/// What is promised to a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobPolicy {
    /// For people.
    pub name: String,
    /// Higher goes first; equals share.
    pub priority: u32,
    /// Its limit never goes below this, once it has got there.
    pub floor_bytes: u64,
    /// Its share of the time while a job of higher priority wants memory; otherwise it is full.
    pub perf_beside: PerfControl,
}

/// What a job says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JobReport {
    /// The newest version of a limit that the job obeys, 0 before the first.
    pub version: u64,
    /// The limit in force there: what was commanded, or what the job made of it.
    pub limit_bytes: u64,
    /// What it holds.
    pub held_bytes: u64,
    /// What it holds above its limit and has not given back.
    pub deferred_bytes: u64,
    /// What it would like to hold.
    pub wanted_bytes: u64,
}

/// What to tell a job. A newer one replaces an older one of its kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Command {
    /// A new limit, with the version that confirms it.
    SetLimit {
        /// To whom.
        job: JobId,
        /// The limit.
        limit_bytes: u64,
        /// Above all before.
        version: u64,
    },
    /// A new share of the time.
    SetPerf {
        /// To whom.
        job: JobId,
        /// The share.
        perf: PerfControl,
    },
}

/// How a [`Coordinator`] decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CoordinatorConfig {
    /// What the device has for all jobs.
    pub total_bytes: u64,
    /// Wants are rounded up to multiples of this, and a limit changes by less only where it has to meet one
    /// exactly. 0 counts as 1.
    pub step_bytes: u64,
    /// A job that wants less is believed when it has done so for this long. One that wants more, at once.
    /// A job that made a higher limit of one is not asked for less before.
    pub calm: Duration,
}

/// What was said of a job does not fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CoordinateError {
    /// There is no such job, or it is gone.
    Unknown,
    /// The floors would not fit in the total.
    FloorsExceedTotal {
        /// What is promised to nobody.
        left_bytes: u64,
    },
    /// A version that was never sent.
    NeverSent {
        /// The newest that was.
        version: u64,
    },
    /// The job holds, or may hold, more than it was ever allowed. It is counted, limits are lowered to their
    /// targets until all fits in the total again, and nobody's is raised before.
    AboveLimit {
        /// Above what it was allowed.
        bytes: u64,
    },
}

/// Divides a device's memory among jobs. See the module for what it promises and what it asks of jobs.
///
/// ```
/// use std::time::Duration;
/// use larder_control::{Command, Coordinator, CoordinatorConfig, JobReport, JobPolicy, PerfControl};
///
/// let mut coordinator = Coordinator::new(CoordinatorConfig {
///     total_bytes: 100, step_bytes: 10, calm: Duration::from_secs(10),
/// });
/// let job = coordinator.join(JobPolicy {
///     name: "train".into(), priority: 1, floor_bytes: 20, perf_beside: PerfControl::FULL,
/// })?;
/// let report = JobReport { version: 0, limit_bytes: 0, held_bytes: 0, deferred_bytes: 0, wanted_bytes: 55 };
/// coordinator.report(job, report, Duration::ZERO)?;
/// let limit = Command::SetLimit { job, limit_bytes: 60, version: 1 };
/// assert_eq!(coordinator.decide(Duration::ZERO), [limit]);
/// # Ok::<(), larder_control::CoordinateError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Coordinator {
    config: CoordinatorConfig,
    jobs: Vec<Job>,
    next: u64,
}

impl Coordinator {
    /// Without jobs.
    pub const fn new(config: CoordinatorConfig) -> Self {
        Self {
            config,
            jobs: Vec::new(),
            next: 0,
        }
    }

    /// A job begins, with nothing held and a limit of 0 until it is told another. A coordinator that begins
    /// while jobs run: let all of them join and [`report`](Self::report) each one's status, then decide; a
    /// job that was told limits before goes on from their version.
    ///
    /// # Errors
    ///
    /// The floors of all jobs would exceed the total. Nothing has changed.
    pub fn join(&mut self, policy: JobPolicy) -> Result<JobId, CoordinateError> {
        let promised: u64 = self.jobs.iter().map(|job| job.policy.floor_bytes).sum();
        let left_bytes = self.config.total_bytes - promised;
        if policy.floor_bytes > left_bytes {
            return Err(CoordinateError::FloorsExceedTotal { left_bytes });
        }
        let id = JobId(self.next);
        self.next += 1;
        self.jobs.push(Job::new(id, policy));
        Ok(id)
    }

    /// A job's processes have ended and their memory is the device's again.
    ///
    /// # Errors
    ///
    /// No such job.
    pub fn gone(&mut self, job: JobId) -> Result<(), CoordinateError> {
        let place = self.jobs.iter().position(|other| other.id == job);
        let place = place.ok_or(CoordinateError::Unknown)?;
        self.jobs.remove(place);
        Ok(())
    }

    /// A job has reported, at a moment that never goes back. Reports of a job come in the order in which it
    /// made them, some may be missing; one of an older version is passed over. O(jobs).
    ///
    /// # Errors
    ///
    /// An unknown job or version: nothing has changed. More than was allowed: the report counts all the same.
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

    /// What to tell whom, so that the wants of the jobs are met as well as they can be now. To be asked after
    /// each report, and from time to time. What it says counts as told. O(jobs squared).
    pub fn decide(&mut self, now: Duration) -> Vec<Command> {
        let calm = self.config.calm;
        self.jobs.iter_mut().for_each(|job| job.settle(now, calm));
        let wants: Vec<_> = self.jobs.iter().map(Job::want).collect();
        let targets = targets(self.config.total_bytes, &wants);
        let mut commands = Vec::new();
        let missing = self.raise(&targets, &mut commands);
        // Limits that nobody allowed, if a job reported one.
        let over = self.charged_bytes().saturating_sub(self.config.total_bytes);
        self.lower(&targets, missing.saturating_add(over), &mut commands);
        self.pace(&mut commands);
        commands
    }

    /// What a job may hold at most, by all that is known (K1). None if there is no such job.
    pub fn charge_bytes(&self, job: JobId) -> Option<u64> {
        let job = self.jobs.iter().find(|other| other.id == job)?;
        Some(job.charge())
    }

    /// All that may be held: at most the total, if the jobs obey (K2).
    pub fn charged_bytes(&self) -> u64 {
        self.jobs
            .iter()
            .fold(0, |sum, job| sum.saturating_add(job.charge()))
    }

    /// Raises limits out of what no charge covers: those below their floor first, then by priority. Answers
    /// how much of that is missing.
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
            let charge = job.charge();
            let need = target.saturating_sub(charge);
            let grant = need.min(free);
            // What it cannot be told yet stays free for it.
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

    /// Lowers limits above their targets, of the least priority first, by what is missing, or charged above
    /// the total, and is not on its way already. Nobody is lowered for nobody.
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
            // What it has refused to give up is not asked for again before some time has passed.
            let least = job.refused().map_or(target, |refused| refused.max(target));
            let spare = job.limit.saturating_sub(least);
            if missing == 0 || spare == 0 || !job.is_confirmed() {
                continue;
            }
            let whole = missing.max(self.config.step_bytes);
            let cut = spare.min(whole);
            missing = missing.saturating_sub(cut);
            commands.push(job.send_limit(job.limit - cut));
        }
    }

    /// A job is slowed while one of higher priority wants memory.
    fn pace(&mut self, commands: &mut Vec<Command>) {
        let busiest = self
            .jobs
            .iter()
            .filter(|job| job.want > 0)
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

impl fmt::Display for CoordinateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("there is no such job: it never joined, or is gone"),
            Self::FloorsExceedTotal { left_bytes } => {
                write!(
                    f,
                    "only {left_bytes} bytes are promised to nobody: take a lower floor"
                )
            }
            Self::NeverSent { version } => {
                write!(
                    f,
                    "the newest limit has version {version}: is this another coordinator's job?"
                )
            }
            Self::AboveLimit { bytes } => {
                write!(
                    f,
                    "{bytes} bytes above what was allowed: the job does not obey its limit, stop it"
                )
            }
        }
    }
}

impl core::error::Error for CoordinateError {}
