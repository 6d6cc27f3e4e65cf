//! [`Coordination`]: larder-control's coordinator over the files of jobs.
//!
//! A round reads the files, lets the coordinator decide, and writes the control files that changed.
//! Between two rounds it holds no resource but its locks, so it may be ended at any moment: the jobs keep their last
//! limits, and another coordinator continues from the files.
//!
//! ROUND1. Numbers of orders continue from a job's files: an order of this coordinator has a higher number than
//! anything in the files when the job joined, so an answer to an earlier coordinator is not mistaken.
//! ROUND2. A job that has not confirmed the order in its control file counts with all that it may hold by that order and
//! by earlier ones, which the file says; so it does if its status is gone.
//! ROUND3. A job's memory counts until the job is gone: its status said that it ended and its process is gone,
//! its status file was removed and its process is gone, or another process has taken its files over. A dead process alone
//! is not enough, because a process may only look dead from here.
//! ROUND4. The limits in a control file are those that this coordinator sent last; it reverts changes by hand.
//! ROUND5. What a coordinator gave counts always, by a control file that is not the job's user's own. What a status says beyond that counts as far as the total has room for
//! it beside all other jobs, and a limit that nobody gave for the calm alone; so no status takes from another job.
//! ROUND6. An order is for one life of a job. A job that starts again obeys none of them, and has nothing before a new one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use larder_control::{
    BusId, Command, ControlFile, CoordinateError, Coordinator, CoordinatorConfig, GpuLimit, JobId,
    JobPolicy, JobStatus, Life, StatusFile,
};
use serde::Serialize;

use super::CoordinationSettings;
use super::joined::{Belief, JobFigures, JoinedJob, words};
use crate::alive::{Alive, alive};
use crate::files::{FilesError, JobFiles, Twins, find};
use crate::order;
use crate::view::{are_few, not_there, read_status};

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

/// A job's two files, as they were read; what is wrong with one comes in words.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub(super) status: Result<Option<StatusFile>, String>,
    pub(super) control: Result<ControlFile, String>,
    /// The control file is the job's user's, who may write into it what he was given.
    pub(super) is_own_word: bool,
    /// Whose the status is, where the system has users.
    pub(super) user: Option<u32>,
}

/// The most jobs that the reason of a limit names.
const NAMED: usize = 3;

/// Whether a process exists, by its number or its life.
pub(super) type IsAlive<'a> = &'a dyn Fn(Option<u32>, Option<Life>) -> Alive;

/// Larder-control's coordinator over the files of jobs.
#[derive(Clone, Debug)]
pub(crate) struct Coordination {
    settings: CoordinationSettings,
    /// One for each GPU: the total is that of one device.
    coordinators: BTreeMap<BusId, Coordinator>,
    pub(super) known: BTreeMap<JobFiles, JoinedJob>,
    /// The present problem of each job, so that each is reported once.
    problems: BTreeMap<JobFiles, String>,
}

impl Reading {
    /// Reads both, and keeps what is needed: all of a folder's are held at once.
    fn of(job: &JobFiles) -> Self {
        let said = read_status(&job.status);
        let user = said.as_ref().ok().and_then(|said| said.as_ref()?.1);
        let status = said.map(|said| {
            said.map(|(mut status, _)| {
                status.forget_unknown();
                status.durations.clear();
                status
            })
        });
        let strict = order::read(job, None);
        let is_own_word = strict.is_err() && user.is_some();
        let read = if is_own_word {
            order::read(job, user)
        } else {
            strict
        };
        let control = read.map_err(words).and_then(|(mut file, _)| {
            are_few(file.gpus.len())?;
            file.forget_unknown();
            Ok(file)
        });
        Self {
            status,
            control,
            is_own_word,
            user,
        }
    }

    fn has_several_gpus(&self) -> bool {
        let status = self.status.as_ref().ok().and_then(Option::as_ref);
        let own = status.and_then(|status| status.larder.as_ref());
        own.is_some_and(|own| own.gpus.len() > 1)
    }

    /// Whose status it is, if it says so.
    fn life(&self) -> Option<Life> {
        self.status.as_ref().ok()?.as_ref()?.larder.as_ref()?.life
    }
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

    /// Runs a round: reads all files, decides, and writes. `now` never goes back. If the places cannot be
    /// read, nothing changes; a job's own files are never an error.
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
                // From the next round on it may be.
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

    /// Takes what was read and decides; what is wrong with whom.
    pub(super) fn decide(
        &mut self,
        readings: &BTreeMap<JobFiles, Reading>,
        alive: IsAlive<'_>,
        now: Duration,
        said: &mut Vec<CoordinationEvent>,
    ) -> BTreeMap<JobFiles, String> {
        let mut wrong = BTreeMap::new();
        self.remove_gone(readings, alive, said);
        // What was given to all counts before what any of them, or its user, says (ROUND5).
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

    /// Lets a job join or go by its files, of which the status may be missing, incomplete, or another process's. The
    /// status, if it is to be believed.
    fn look<'r>(
        &mut self,
        job: &JobFiles,
        reading: &'r Reading,
        alive: IsAlive<'_>,
        said: &mut Vec<CoordinationEvent>,
    ) -> Result<Option<&'r StatusFile>, String> {
        let ordered = reading.control.clone().unwrap_or_default();
        let is_anothers = reading.life().is_none_or(|life| ordered.life != Some(life));
        if is_anothers && !self.known.contains_key(job) && alive(None, ordered.life) == Alive::Yes {
            // Its status is missing, or that of another process (ROUND2).
            let joined = self.join_by_orders(job, reading, &ordered, said);
            if !matches!(reading.status, Ok(Some(_))) {
                joined?;
            }
        }
        let Some(status) = reading.status.as_ref().map_err(Clone::clone)? else {
            return match self.known.contains_key(job) {
                true => Err("its status is missing: it is counted with what it had".into()),
                false => Ok(None),
            };
        };
        let Some(own) = &status.larder else {
            return Err("it says nothing of limits, so its memory is not counted".into());
        };
        let is_there = alive(Some(own.pid), own.life);
        let (mut is_again, mut only) = (false, None);
        if let Some(known) = self.known.get(job) {
            let is_same = (known.pid, known.life) == (own.pid, own.life);
            if !is_same && alive(Some(known.pid), known.life) == Alive::Yes {
                return Err(format!(
                    "process {} writes the status of process {}, which is there: give them names of their own",
                    own.pid, known.pid
                ));
            }
            if !is_same {
                self.gone(job, Some("another process has its files"), said);
            } else if known.joins_again {
                // With what its files say of it.
                only = known.only.clone();
                self.gone(job, None, said);
                is_again = true;
            }
        }
        if own.ended && is_there != Alive::Yes {
            self.gone(job, Some("it ended"), said);
            return Ok(None);
        }
        if !self.known.contains_key(job) {
            if own.gpus.is_empty() {
                // The job has no memory yet.
                return Ok(None);
            }
            if is_there == Alive::No {
                return Err(format!(
                    "its process is gone, so it is not counted: `larder control forget {}` removes its files",
                    job.name
                ));
            }
            self.join(job, own, reading, &ordered, said)?;
            if is_again {
                // It was said before.
                said.pop();
            }
            if let Some(known) = self.known.get_mut(job) {
                known.only = only;
            }
        }
        Ok(Some(status))
    }

    /// The GPU that a job's memory is counted on; the job names at least one GPU.
    fn gpu_of(&self, mut gpus: impl Iterator<Item = BusId>) -> Result<BusId, String> {
        match self.settings.gpu {
            Some(gpu) if gpus.any(|other| other == gpu) => Ok(gpu),
            Some(gpu) => Err(format!("it is not on the GPU {gpu}: not counted")),
            None => {
                let gpu = gpus.next().ok_or("it has not said which GPU it uses")?;
                if gpus.next().is_some() {
                    return Err("it uses several GPUs: say which one is divided, by --gpu".into());
                }
                Ok(gpu)
            }
        }
    }

    /// Counts a living job with what an earlier coordinator's orders let it hold.
    fn join_by_orders(
        &mut self,
        job: &JobFiles,
        reading: &Reading,
        ordered: &ControlFile,
        said: &mut Vec<CoordinationEvent>,
    ) -> Result<(), String> {
        let limited = ordered.gpus.iter();
        let mut limited = limited.filter(|(_, gpu)| gpu.max_device_mem.is_some());
        let (Some(life), Some(_)) = (ordered.life, limited.clone().next()) else {
            return Ok(());
        };
        let mut own = JobStatus::default();
        (own.pid, own.life) = (life.pid(), Some(life));
        own.gpus
            .extend(limited.by_ref().map(|(gpu, _)| (*gpu, GpuLimit::default())));
        self.join(job, &own, reading, ordered, said)?;
        if let Some(known) = self.known.get_mut(job) {
            known.joins_again = true;
        }
        Ok(())
    }

    fn join(
        &mut self,
        job: &JobFiles,
        own: &JobStatus,
        reading: &Reading,
        ordered: &ControlFile,
        said: &mut Vec<CoordinationEvent>,
    ) -> Result<(), String> {
        let gpu = self.gpu_of(own.gpus.keys().copied())?;
        let priority = u32::try_from(own.priority.unwrap_or(0).max(0)).unwrap_or(u32::MAX);
        // Orders for another life are nothing to this one (ROUND6).
        let ordered = Some(ordered).filter(|ordered| ordered.is_for(own.life));
        let given = ordered.and_then(|ordered| ordered.gpus.get(&gpu));
        let last = given.map_or(0, |given| given.max_device_mem.unwrap_or(0));
        let noted = given.map_or(0, |given| given.may_hold.unwrap_or(0));
        let charged = self
            .coordinators
            .get(&gpu)
            .map_or(0, Coordinator::charged_bytes);
        let room = self.settings.total_bytes.saturating_sub(charged);
        let may_hold = match reading.is_own_word {
            false => noted.max(last),
            true => noted.max(last).min(room),
        };
        let obeyed = own.control_version.unwrap_or(0);
        let sent = ordered
            .and_then(|ordered| ordered.control_version)
            .unwrap_or(0);
        let unseen_bytes = if sent > obeyed { may_hold } else { 0 };
        let in_force = own.gpus.get(&gpu).map_or(0, |limit| limit.limit_bytes);
        let limit_bytes = in_force.max(unseen_bytes);
        let id = self.admit(job, gpu, priority, may_hold).map_err(words)?;
        said.push(CoordinationEvent::Joined {
            job: job.name.clone(),
            priority,
            limit_bytes,
        });
        let known = JoinedJob {
            id,
            pid: own.pid,
            life: own.life,
            gpu,
            priority,
            base: obeyed.max(sent),
            unseen_bytes,
            given_bytes: may_hold,
            is_unlimited: false,
            claims_since: None,
            joins_again: false,
            has_several_gpus: own.gpus.len() > 1,
            only: None,
            limit: None,
            perf: None,
            asleep: None,
            is_unwritten: false,
            has_swept: false,
            user: reading.user,
            state: JobFigures {
                job: job.name.clone(),
                ..JobFigures::default()
            },
        };
        self.known.insert(job.clone(), known);
        Ok(())
    }

    /// Lets a job join its GPU's coordinator with what it may hold already.
    fn admit(
        &mut self,
        job: &JobFiles,
        gpu: BusId,
        priority: u32,
        may_hold: u64,
    ) -> Result<JobId, CoordinateError> {
        let settings = &self.settings;
        let coordinator = self.coordinators.entry(gpu).or_insert_with(|| {
            Coordinator::new(CoordinatorConfig {
                total_bytes: settings.total_bytes,
                step_bytes: settings.step_bytes,
                calm: settings.calm,
                turn: settings.turn,
            })
        });
        let policy = |floor_bytes| JobPolicy {
            name: job.name.clone(),
            priority,
            floor_bytes,
            perf_beside: settings.perf_beside,
        };
        match coordinator.join_with(policy(settings.floor_bytes), may_hold) {
            // It has memory, and counts whatever is promised to others.
            Err(CoordinateError::FloorsExceedTotal { .. }) if may_hold > 0 => {
                coordinator.join_with(policy(0), may_hold)
            }
            joined => joined,
        }
    }

    fn report(
        &mut self,
        job: &JobFiles,
        status: &StatusFile,
        alive: IsAlive<'_>,
        now: Duration,
        said: &mut Vec<CoordinationEvent>,
    ) -> Result<(), String> {
        let Some(known) = self.known.get_mut(job) else {
            return Ok(());
        };
        let Some(raw) = status.report(known.gpu) else {
            return Err(format!("it says nothing of the GPU {} any more", known.gpu));
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
            // The job held that before it joined.
            Err(CoordinateError::AboveLimit { .. }) if report.version == 0 => {}
            result => result.map_err(words)?,
        }
        match alive(Some(known.pid), known.life) {
            Alive::No => Err(not_there(known.pid, &job.name)),
            Alive::Yes | Alive::Unknown => Ok(()),
        }
    }

    /// Removes jobs whose status files were removed and whose processes are gone (ROUND3).
    fn remove_gone(
        &mut self,
        readings: &BTreeMap<JobFiles, Reading>,
        alive: IsAlive<'_>,
        said: &mut Vec<CoordinationEvent>,
    ) {
        let is_missing = |reading: &Reading| matches!(reading.status, Ok(None));
        let removed: Vec<_> = self
            .known
            .iter()
            .filter(|(job, known)| {
                readings.get(*job).is_none_or(is_missing)
                    && alive(Some(known.pid), known.life) != Alive::Yes
            })
            .map(|(job, _)| job.clone())
            .collect();
        for job in removed {
            self.gone(&job, Some("its status file was removed"), said);
        }
    }

    /// Removes a job if it is known; said if there is a reason.
    fn gone(
        &mut self,
        job: &JobFiles,
        why: Option<&'static str>,
        said: &mut Vec<CoordinationEvent>,
    ) {
        let Some(known) = self.known.remove(job) else {
            return;
        };
        if let Some(coordinator) = self.coordinators.get_mut(&known.gpu) {
            let left = coordinator.gone(known.id);
            debug_assert!(left.is_ok(), "it joined");
        }
        if let Some(why) = why {
            let job = job.name.clone();
            said.push(CoordinationEvent::Gone { job, why });
        }
    }

    /// Stores the commands in their jobs' records, and adds an event with the reason for each.
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
                let from_bytes = known.last_limit();
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

    /// The names of the other jobs on a GPU that want more than they have, of the same priority or a higher one; a few of
    /// them.
    fn lacking(&self, gpu: BusId, of: JobId) -> Option<String> {
        let all = self.known.values().filter(|known| known.gpu == gpu);
        let priority = all
            .clone()
            .find(|known| known.id == of)
            .map_or(0, |known| known.priority);
        let mut lacking = all.filter(|known| {
            let wanted = known.state.wanted_bytes.unwrap_or(u64::MAX);
            known.id != of && known.priority >= priority && wanted > known.state.limit_bytes
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
    /// The sum of what all jobs can hold, in bytes.
    pub(crate) fn charged_bytes(&self) -> u64 {
        self.coordinators
            .values()
            .map(Coordinator::charged_bytes)
            .sum()
    }
}
