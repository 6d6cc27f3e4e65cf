//! [`Coordination`]: applies larder-control's coordinator to the files of jobs; `members` chooses
//! the jobs that it counts.
//!
//! A round reads the files, lets the coordinator decide, and writes the control files that changed.
//! Between two rounds the coordination holds no resource but its locks, so it may be ended at any
//! moment. The jobs keep their last limits, and another coordinator continues from the files.
//!
//! ROUND1. Order numbers continue from a job's files: an order of this coordinator has a higher
//! number than any that was in the files when the job joined, so an answer to an earlier
//! coordinator is not mistaken for an answer to this one.
//! ROUND2. A job that has not confirmed the order in its control file counts as all the memory that
//! it may hold by that order and by earlier ones, as recorded in the file; so does a job whose
//! status is gone.
//! ROUND3. A job's memory counts until the job is gone: its status reported its end and its process
//! is gone, its status file was removed and its process is gone, or another process has taken its
//! files over. A dead process alone is not enough, because a process that exists may look dead from
//! here.
//! ROUND4. The limits in a control file are those that this coordinator sent last; it reverts
//! changes made by hand.
//! ROUND5. Memory that a coordinator gave always counts, if the control file that says so is not
//! owned by the job's user. Further memory that a status claims counts only up to the part of the
//! total that is charged to no other job, and a limit that no coordinator gave counts only for the
//! calm; so no status takes memory from another job.
//! ROUND6. An order is for one life of a job. A job that starts again obeys none of the old orders,
//! and has no memory until it gets a new one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use larder_control::{BusId, Command, CoordinateError, Coordinator, JobId, Life, StatusFile};
use serde::Serialize;

use super::CoordinationSettings;
use super::joined::{Belief, JobFigures, JoinedJob, words};
use super::reading::Reading;
use crate::alive::{Liveness, alive};
use crate::files::{FilesError, JobPaths, Twins, find};
use crate::view::not_there;

/// An event of a round, serialized as a line of JSON. `job` is the job's name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "what")]
pub(crate) enum CoordinationEvent {
    /// A job counts from now on, with the memory that it may already hold.
    Joined {
        job: String,
        priority: u32,
        limit_bytes: u64,
    },
    /// A job is gone and its memory is free again.
    Gone { job: String, why: &'static str },
    /// A job gets a new limit, for a reason that names the jobs the memory is for.
    Limit {
        job: String,
        from_bytes: u64,
        to_bytes: u64,
        why: String,
    },
    /// A job gets a new share of the time.
    Perf { job: String, percent: u8 },
    /// A job begins its turn, or ends it.
    Turn { job: String, asleep: bool },
    /// The figures of a job changed.
    State(JobFigures),
    /// A defect; the coordination continues.
    Problem { job: String, problem: String },
}

/// Maximum number of jobs that the reason of a limit names.
const NAMED: usize = 3;

/// Returns whether a process exists, by its PID or its life.
pub(super) type IsAlive<'a> = &'a dyn Fn(Option<u32>, Option<Life>) -> Liveness;

/// The application of larder-control's coordinator to the files of jobs.
#[derive(Clone, Debug)]
pub(crate) struct Coordination {
    pub(super) settings: CoordinationSettings,
    /// One coordinator for each GPU, since the total is that of one device.
    pub(super) coordinators: BTreeMap<BusId, Coordinator>,
    pub(super) known: BTreeMap<JobPaths, JoinedJob>,
    /// The current problem of each job, so that each is reported once.
    problems: BTreeMap<JobPaths, String>,
}

impl Coordination {
    pub(crate) const fn new(settings: CoordinationSettings) -> Self {
        Self {
            settings,
            coordinators: BTreeMap::new(),
            known: BTreeMap::new(),
            problems: BTreeMap::new(),
        }
    }

    /// Runs a round: reads all files, decides, and writes. `now` must not decrease. If the places
    /// cannot be read, nothing changes; bad files of a job are not an error.
    pub(crate) fn round(
        &mut self,
        places: &[PathBuf],
        now: Duration,
    ) -> Result<Vec<CoordinationEvent>, FilesError> {
        let found = find(places, Twins::All)?;
        let readings: BTreeMap<_, _> = found
            .into_iter()
            .map(|job| {
                let reading = Reading::of(&job);
                (job, reading)
            })
            .collect();
        for (job, known) in &mut self.known {
            known.has_several_gpus |= readings.get(job).is_some_and(Reading::has_several_gpus);
            if !known.is_ours() {
                known.forget_sent();
            }
        }
        let mut said = Vec::new();
        let mut wrong = self.decide(&readings, &alive, now, &mut said);
        for (job, known) in &mut self.known {
            let written = match known.is_ours() {
                true => known.write(job),
                // From the next round on, the file may be this coordinator's to write.
                false => known.claim(job),
            };
            if let Err(problem) = written {
                wrong.insert(job.clone(), problem);
            }
        }
        for (job, problem) in &wrong {
            if self.problems.get(job) != Some(problem) {
                let (job, problem) = (job.name.clone(), problem.clone());
                said.push(CoordinationEvent::Problem { job, problem });
            }
        }
        self.problems = wrong;
        Ok(said)
    }

    /// Processes the readings and decides. Returns the problems by job.
    pub(super) fn decide(
        &mut self,
        readings: &BTreeMap<JobPaths, Reading>,
        alive: IsAlive<'_>,
        now: Duration,
        said: &mut Vec<CoordinationEvent>,
    ) -> BTreeMap<JobPaths, String> {
        let mut wrong = BTreeMap::new();
        self.remove_gone(readings, alive, said);
        // The memory that was given to all jobs counts before the claims of any job or its user
        // (ROUND5).
        let mut present = Vec::new();
        for is_own_word in [false, true] {
            for (job, reading) in readings {
                if reading.is_own_word != is_own_word {
                    continue;
                }
                match self.look(job, reading, alive, said) {
                    Ok(status) => present.extend(status.map(|status| (job, status))),
                    Err(problem) => {
                        wrong.insert(job.clone(), problem);
                    }
                }
            }
        }
        for (job, status) in present {
            if let Err(problem) = self.report(job, status, alive, now, said) {
                wrong.insert(job.clone(), problem);
            }
        }
        let mut commands = Vec::new();
        for (gpu, coordinator) in &mut self.coordinators {
            let mut of_gpu = coordinator.decide(now);
            let unlimited = self
                .known
                .values()
                .filter(|known| known.gpu == *gpu && known.is_unlimited);
            of_gpu.extend(unlimited.filter_map(|known| coordinator.restate(known.id)));
            commands.push((*gpu, of_gpu));
        }
        for (gpu, commands) in commands {
            self.take_down(gpu, &commands, said);
        }
        for known in self.known.values_mut() {
            let charge = self.coordinators.get(&known.gpu);
            let charge = charge.and_then(|coordinator| coordinator.charge_bytes(known.id));
            let charge = charge.unwrap_or(0);
            if known.state.charge_bytes != charge {
                known.state.charge_bytes = charge;
                said.push(CoordinationEvent::State(known.state.clone()));
            }
        }
        wrong
    }

    fn report(
        &mut self,
        job: &JobPaths,
        status: &StatusFile,
        alive: IsAlive<'_>,
        now: Duration,
        said: &mut Vec<CoordinationEvent>,
    ) -> Result<(), String> {
        let Some(known) = self.known.get_mut(job) else {
            return Ok(());
        };
        let Some(raw) = status.report(known.gpu) else {
            return Err(format!("it no longer reports the GPU {}", known.gpu));
        };
        let Some(coordinator) = self.coordinators.get_mut(&known.gpu) else {
            return Ok(());
        };
        let total_bytes = self.settings.total_bytes;
        let own = coordinator.charge_bytes(known.id).unwrap_or(0);
        let others = coordinator.charged_bytes().saturating_sub(own);
        let belief = Belief {
            total_bytes,
            room_bytes: total_bytes.saturating_sub(others),
            calm: self.settings.calm,
            now,
        };
        let (report, disbelieved) = known.believe(known.translate(raw), belief);
        let result = coordinator.report(known.id, report, now);
        let charge_bytes = coordinator.charge_bytes(known.id).unwrap_or(0);
        let state = JobFigures {
            job: job.name.clone(),
            limit_bytes: raw.limit_bytes,
            held_bytes: raw.held_bytes,
            deferred_bytes: raw.deferred_bytes,
            wanted_bytes: Some(raw.wanted_bytes).filter(|wanted| *wanted != u64::MAX),
            guaranteed_bytes: raw.guaranteed_bytes,
            charge_bytes,
        };
        if state != known.state {
            known.state = state.clone();
            said.push(CoordinationEvent::State(state));
        }
        if let Some(problem) = disbelieved {
            return Err(problem);
        }
        match result {
            // The job already held that memory when it joined.
            Err(CoordinateError::AboveLimit { .. }) if report.version == 0 => {}
            result => result.map_err(words)?,
        }
        let is_missing = alive(Some(known.pid), known.life) == Liveness::No;
        match core::mem::replace(&mut known.was_missing, is_missing) && is_missing {
            true => Err(not_there(known.pid, &job.name)),
            false => Ok(()),
        }
    }

    /// Stores the commands in the records of their jobs, and adds an event with the reason for
    /// each.
    fn take_down(&mut self, gpu: BusId, commands: &[Command], said: &mut Vec<CoordinationEvent>) {
        for command in commands {
            let id = command.job();
            let lacking = self.lacking(gpu, id);
            let mut known = self.known.iter_mut();
            let Some((files, known)) = known.find(|(_, known)| (known.gpu, known.id) == (gpu, id))
            else {
                continue;
            };
            let job = files.name.clone();
            if let Command::SetLimit {
                limit_bytes,
                version,
                ..
            } = *command
            {
                let from_bytes = known.sent_bytes().unwrap_or(known.state.limit_bytes);
                let why = if limit_bytes >= from_bytes {
                    "it wants it, and it is free".to_owned()
                } else {
                    lacking.map_or_else(
                        || "all together have too much".to_owned(),
                        |names| format!("for {names}"),
                    )
                };
                said.push(CoordinationEvent::Limit {
                    job,
                    from_bytes,
                    to_bytes: limit_bytes,
                    why,
                });
                let command = Command::SetLimit {
                    job: id,
                    limit_bytes,
                    version: known.base.saturating_add(version),
                };
                let coordinator = self.coordinators.get(&gpu);
                let charge = coordinator.and_then(|of_gpu| of_gpu.charge_bytes(id));
                let may_hold = charge.unwrap_or(0).max(limit_bytes);
                known.limit = Some((command, may_hold));
                known.given_bytes = known.given_bytes.max(limit_bytes);
            } else if let Command::SetPerf { perf, .. } = *command {
                let percent = perf.percent();
                said.push(CoordinationEvent::Perf { job, percent });
                known.perf = Some(*command);
            } else if let Command::SetAsleep { asleep, .. } = *command {
                said.push(CoordinationEvent::Turn { job, asleep });
                known.asleep = Some(*command);
            }
        }
    }

    /// Returns the names of the other jobs on a GPU that want more than they have and come before this job: they have
    /// the same or a higher priority, or want for themselves what this job lends; at most [`NAMED`] of them.
    fn lacking(&self, gpu: BusId, of: JobId) -> Option<String> {
        let all = self.known.values().filter(|known| known.gpu == gpu);
        let of_job = all.clone().find(|known| known.id == of);
        let priority = of_job.map_or(0, |known| known.priority);
        let lends = of_job.is_some_and(|known| known.state.guaranteed_bytes.is_some());
        let mut lacking = all.filter(|known| {
            let wanted = known.state.wanted_bytes.unwrap_or(u64::MAX);
            let kept = known.state.guaranteed_bytes.unwrap_or(u64::MAX).min(wanted);
            let limit = known.state.limit_bytes;
            let comes_first = known.priority >= priority || lends && kept > limit;
            known.id != of && wanted > limit && comes_first
        });
        let named: Vec<_> = lacking
            .by_ref()
            .take(NAMED)
            .map(|known| known.state.job.as_str())
            .collect();
        let names = match lacking.count() {
            _ if named.is_empty() => return None,
            0 => named.join(", "),
            others => format!("{} and {others} others", named.join(", ")),
        };
        Some(names)
    }
}

#[cfg(test)]
impl Coordination {
    /// Returns the bytes that all jobs together can hold.
    pub(crate) fn charged_bytes(&self) -> u64 {
        self.coordinators
            .values()
            .map(Coordinator::charged_bytes)
            .sum()
    }
}
