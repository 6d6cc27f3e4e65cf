//! [`Coordination`]: larder-control's coordinator over the files of jobs.
//!
//! A round reads the status files, lets the coordinator decide, and writes the control files that changed.
//! Between two rounds it holds no resource, so it may be ended at any moment: the jobs keep their last
//! limits, and another coordinator continues from the files.
//!
//! ROUND1. Numbers of orders continue from a job's files: an order of this coordinator has a higher number than
//! anything in the files when the job joined, so an answer to an earlier coordinator is not mistaken.
//! ROUND2. A job with an order that it has not confirmed counts with the larger of both limits.
//! ROUND3. A job's memory counts until the job is gone: its status said that it ended and its process is gone,
//! its status file was removed, or another process has taken its files over. A dead process alone is not
//! enough, because a process may only look dead from here.
//! ROUND4. The limits in a control file are those that this coordinator sent last; it reverts changes by hand.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use larder_control::{
    BusId, Command, CoordinateError, Coordinator, CoordinatorConfig, JobId, JobPolicy, JobStatus,
    StatusFile,
};
use serde::Serialize;

use super::CoordinationSettings;
use super::joined::{JobFigures, JoinedJob, words};
use crate::alive::{Alive, alive};
use crate::files::{FilesError, JobFiles, find};
use crate::order;
use crate::view::{not_there, read_status};

/// Something that happened in a round; a line of JSON. `job` is the job's name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "what")]
pub(crate) enum CoordinationEvent {
    /// A job counts from now on, with the memory that it may hold already.
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
    /// It is a job's turn, or another's.
    Turn { job: String, asleep: bool },
    /// The figures of a job changed.
    State(JobFigures),
    /// Something is wrong; the coordination goes on.
    Problem { job: String, problem: String },
}

/// Larder-control's coordinator over the files of jobs.
#[derive(Debug)]
pub(crate) struct Coordination {
    settings: CoordinationSettings,
    coordinator: Coordinator,
    known: BTreeMap<JobFiles, JoinedJob>,
    /// The present problem of each job, so that each is reported once.
    problems: BTreeMap<String, String>,
}

impl Coordination {
    pub(crate) fn new(settings: CoordinationSettings) -> Self {
        let coordinator = Coordinator::new(CoordinatorConfig {
            total_bytes: settings.total_bytes,
            step_bytes: settings.step_bytes,
            calm: settings.calm,
            turn: settings.turn,
        });
        Self {
            settings,
            coordinator,
            known: BTreeMap::new(),
            problems: BTreeMap::new(),
        }
    }

    /// Runs a round: reads all files, decides, and writes. `now` never goes back. If the places cannot be
    /// read, nothing changes; a job's own files are never an error.
    pub(crate) fn round(
        &mut self,
        places: &[PathBuf],
        now: Duration,
    ) -> Result<Vec<CoordinationEvent>, FilesError> {
        let found = find(places)?;
        let mut said = Vec::new();
        let mut wrong = BTreeMap::new();
        for job in &found {
            if let Err(problem) = self.look(job, now, &mut said) {
                wrong.insert(job.name.clone(), problem);
            }
        }
        self.remove_gone(&found, &mut said);
        let commands = self.coordinator.decide(now);
        self.take_down(&commands, &mut said);
        for (job, known) in &mut self.known {
            if let Err(problem) = known.write(job) {
                wrong.insert(job.name.clone(), problem);
            }
            let charge = self.coordinator.charge_bytes(known.id).unwrap_or(0);
            if known.state.charge_bytes != charge {
                known.state.charge_bytes = charge;
                said.push(CoordinationEvent::State(known.state.clone()));
            }
        }
        for (job, problem) in &wrong {
            if self.problems.get(job) != Some(problem) {
                let (job, problem) = (job.clone(), problem.clone());
                said.push(CoordinationEvent::Problem { job, problem });
            }
        }
        self.problems = wrong;
        Ok(said)
    }

    /// Reads one job's status, which may be missing, incomplete, or another process's.
    fn look(
        &mut self,
        job: &JobFiles,
        now: Duration,
        said: &mut Vec<CoordinationEvent>,
    ) -> Result<(), String> {
        let Some(status) = read_status(&job.status)? else {
            return Ok(());
        };
        let Some(own) = &status.larder else {
            return Err("it says nothing of limits, so its memory is not counted".into());
        };
        if let Some(known) = self.known.get(job)
            && known.pid != own.pid
        {
            if alive(Some(known.pid), Some(known.wrote_unix_ms)) == Alive::Yes {
                return Err(format!(
                    "process {} writes the status of process {}, which is there: give them names of their own",
                    own.pid, known.pid
                ));
            }
            self.gone(job, "another process has its files", said);
        }
        let is_there = alive(Some(own.pid), Some(own.written_at_unix_ms));
        if own.ended && is_there != Alive::Yes {
            self.gone(job, "it ended", said);
            return Ok(());
        }
        if !self.known.contains_key(job) {
            if own.gpus.is_empty() {
                // The job has no memory yet.
                return Ok(());
            }
            if is_there == Alive::No {
                return Err("its process is gone, so it is not counted: remove its files".into());
            }
            self.join(job, own, said)?;
        }
        self.report(job, &status, now, said)?;
        if is_there == Alive::No {
            return Err(not_there(own.pid, &job.name));
        }
        Ok(())
    }

    /// The GPU that a job's memory is counted on; the job names at least one GPU.
    fn gpu_of(&mut self, own: &JobStatus) -> Result<BusId, String> {
        let mut gpus = own.gpus.keys().copied();
        match self.settings.gpu {
            Some(gpu) if gpus.any(|other| other == gpu) => Ok(gpu),
            Some(gpu) => Err(format!("it is not on the GPU {gpu}: not counted")),
            None => {
                let gpu = gpus.next().ok_or("it has not said which GPU it uses")?;
                if gpus.next().is_some() {
                    return Err("it uses several GPUs: say which one is divided, by --gpu".into());
                }
                // The total is that of one device.
                self.settings.gpu = Some(gpu);
                Ok(gpu)
            }
        }
    }

    fn join(
        &mut self,
        job: &JobFiles,
        own: &JobStatus,
        said: &mut Vec<CoordinationEvent>,
    ) -> Result<(), String> {
        let gpu = self.gpu_of(own)?;
        let priority = u32::try_from(own.priority.unwrap_or(0).max(0)).unwrap_or(u32::MAX);
        let commanded = order::read(job).map(|(file, _)| file).unwrap_or_default();
        let policy = JobPolicy {
            name: job.name.clone(),
            priority,
            floor_bytes: self.settings.floor_bytes,
            perf_beside: self.settings.perf_beside,
        };
        let id = self.coordinator.join(policy).map_err(words)?;
        let obeyed = own.control_version.unwrap_or(0);
        let sent = commanded.control_version.unwrap_or(0);
        let last_limit = commanded.gpus.get(&gpu).and_then(|gpu| gpu.max_device_mem);
        let unseen_limit = last_limit.filter(|_| sent > obeyed).unwrap_or(0);
        let in_force = own.gpus.get(&gpu).map_or(0, |limit| limit.limit_bytes);
        let limit_bytes = in_force.max(unseen_limit);
        said.push(CoordinationEvent::Joined {
            job: job.name.clone(),
            priority,
            limit_bytes,
        });
        let known = JoinedJob {
            id,
            pid: own.pid,
            gpu,
            priority,
            base: obeyed.max(sent),
            unseen_limit,
            limit: None,
            perf: None,
            asleep: None,
            is_unwritten: false,
            state: JobFigures {
                job: job.name.clone(),
                ..JobFigures::default()
            },
            wrote_unix_ms: own.written_at_unix_ms,
        };
        self.known.insert(job.clone(), known);
        Ok(())
    }

    fn report(
        &mut self,
        job: &JobFiles,
        status: &StatusFile,
        now: Duration,
        said: &mut Vec<CoordinationEvent>,
    ) -> Result<(), String> {
        let Some(known) = self.known.get_mut(job) else {
            return Ok(());
        };
        let Some(raw) = status.report(known.gpu) else {
            return Err(format!("it says nothing of the GPU {} any more", known.gpu));
        };
        let report = known.translate(raw);
        let result = self.coordinator.report(known.id, report, now);
        let charge_bytes = self.coordinator.charge_bytes(known.id).unwrap_or(0);
        let state = JobFigures {
            job: job.name.clone(),
            limit_bytes: raw.limit_bytes,
            held_bytes: raw.held_bytes,
            deferred_bytes: raw.deferred_bytes,
            wanted_bytes: Some(raw.wanted_bytes).filter(|wanted| *wanted != u64::MAX),
            charge_bytes,
        };
        if let Some(own) = &status.larder {
            known.wrote_unix_ms = own.written_at_unix_ms;
        }
        if state != known.state {
            known.state = state.clone();
            said.push(CoordinationEvent::State(state));
        }
        match result {
            // The job held that before it joined.
            Err(CoordinateError::AboveLimit { .. }) if report.version == 0 => Ok(()),
            result => result.map_err(words),
        }
    }

    /// Removes jobs whose status files were removed and whose processes are gone (ROUND3).
    fn remove_gone(&mut self, found: &[JobFiles], said: &mut Vec<CoordinationEvent>) {
        let removed: Vec<_> = self
            .known
            .iter()
            .filter(|(job, known)| {
                let has_status = found.contains(job) && job.status.exists();
                !has_status && alive(Some(known.pid), Some(known.wrote_unix_ms)) != Alive::Yes
            })
            .map(|(job, _)| job.clone())
            .collect();
        for job in removed {
            self.gone(&job, "its status file was removed", said);
        }
    }

    fn gone(&mut self, job: &JobFiles, why: &'static str, said: &mut Vec<CoordinationEvent>) {
        if let Some(known) = self.known.remove(job) {
            let left = self.coordinator.gone(known.id);
            debug_assert!(left.is_ok(), "it joined");
            let job = job.name.clone();
            said.push(CoordinationEvent::Gone { job, why });
        }
    }

    /// Stores the commands in their jobs' records, and adds an event with the reason for each.
    fn take_down(&mut self, commands: &[Command], said: &mut Vec<CoordinationEvent>) {
        for command in commands {
            let id = command.job();
            let lacking = self.lacking(id);
            let Some((files, known)) = self.known.iter_mut().find(|(_, known)| known.id == id)
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
                let from_bytes = known.last_limit();
                let why = if limit_bytes >= from_bytes {
                    "it wants it, and it is free".to_owned()
                } else if lacking.is_empty() {
                    "all together have too much".to_owned()
                } else {
                    format!("for {}", lacking.join(", "))
                };
                said.push(CoordinationEvent::Limit {
                    job,
                    from_bytes,
                    to_bytes: limit_bytes,
                    why,
                });
                known.limit = Some(Command::SetLimit {
                    job: id,
                    limit_bytes,
                    version: known.base.saturating_add(version),
                });
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

    /// The names of the other jobs that want more than they have, of the same priority or a higher one.
    fn lacking(&self, of: JobId) -> Vec<String> {
        let mut known = self.known.values();
        let priority = known
            .find(|known| known.id == of)
            .map_or(0, |known| known.priority);
        let lacking = self.known.values().filter(|known| {
            let wanted = known.state.wanted_bytes.unwrap_or(u64::MAX);
            known.id != of && known.priority >= priority && wanted > known.state.limit_bytes
        });
        lacking.map(|known| known.state.job.clone()).collect()
    }
}

#[cfg(test)]
impl Coordination {
    /// The sum of what all jobs can hold, in bytes.
    pub(crate) fn charged_bytes(&self) -> u64 {
        self.coordinator.charged_bytes()
    }
}
