//! The jobs that a [`Coordination`] counts: how jobs join, and how jobs that are gone are removed.
//!
//! The invariants ROUND1 to ROUND3 and ROUND6 are in `rounds`.

use std::collections::BTreeMap;

use larder_control::{
    BusId, ControlFile, CoordinateError, Coordinator, CoordinatorConfig, GpuLimit, JobId,
    JobPolicy, JobStatus, StatusFile,
};

use super::joined::{JobFigures, JoinedJob, words};
use super::reading::Reading;
use super::rounds::{Coordination, CoordinationEvent, IsAlive};
use crate::alive::Liveness;
use crate::files::JobPaths;

impl Coordination {
    /// Adds or removes a job according to its files. Their status may be missing, incomplete, or
    /// another process's. Returns the status if it can be believed.
    pub(super) fn look<'r>(
        &mut self,
        job: &JobPaths,
        reading: &'r Reading,
        alive: IsAlive<'_>,
        said: &mut Vec<CoordinationEvent>,
    ) -> Result<Option<&'r StatusFile>, String> {
        let ordered = reading.control.clone().unwrap_or_default();
        let is_anothers = reading.life().is_none_or(|life| ordered.life != Some(life));
        if is_anothers
            && !self.known.contains_key(job)
            && alive(None, ordered.life) == Liveness::Yes
        {
            // The job's status is missing, or another process's (ROUND2).
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
            if !is_same && alive(Some(known.pid), known.life) == Liveness::Yes {
                return Err(format!(
                    "process {} writes the status of process {}, which exists: give them different names",
                    own.pid, known.pid
                ));
            }
            if !is_same {
                self.gone(job, Some("another process has its files"), said);
            } else if known.joins_again {
                // The job joins again, with the numbers in its files.
                only = known.only.clone();
                self.gone(job, None, said);
                is_again = true;
            }
        }
        if own.ended && is_there != Liveness::Yes {
            self.gone(job, Some("it ended"), said);
            return Ok(None);
        }
        if !self.known.contains_key(job) {
            if own.gpus.is_empty() {
                // The job has no memory yet.
                return Ok(None);
            }
            if is_there == Liveness::No {
                return Err(format!(
                    "its process is gone, so it is not counted: `larder control forget {}` removes its files",
                    job.name
                ));
            }
            self.join(job, own, reading, &ordered, said)?;
            if is_again {
                // The event was reported before.
                said.pop();
            }
            if let Some(known) = self.known.get_mut(job) {
                known.only = only;
            }
        }
        Ok(Some(status))
    }

    /// Returns the GPU on which a job's memory counts, of those that the job names.
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

    /// Counts a job whose process exists as the bytes that an earlier coordinator's orders let it
    /// hold.
    fn join_by_orders(
        &mut self,
        job: &JobPaths,
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
        job: &JobPaths,
        own: &JobStatus,
        reading: &Reading,
        ordered: &ControlFile,
        said: &mut Vec<CoordinationEvent>,
    ) -> Result<(), String> {
        let gpu = self.gpu_of(own.gpus.keys().copied())?;
        let priority = u32::try_from(own.priority.unwrap_or(0).max(0)).unwrap_or(u32::MAX);
        // Orders for another life do not concern this one (ROUND6).
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
            was_missing: false,
            user: reading.user,
            state: JobFigures {
                job: job.name.clone(),
                ..JobFigures::default()
            },
        };
        self.known.insert(job.clone(), known);
        Ok(())
    }

    /// Lets a job join its GPU's coordinator, with the bytes that it may already hold.
    fn admit(
        &mut self,
        job: &JobPaths,
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
            // The job has memory, so it counts regardless of promises to others.
            Err(CoordinateError::FloorsExceedTotal { .. }) if may_hold > 0 => {
                coordinator.join_with(policy(0), may_hold)
            }
            joined => joined,
        }
    }

    /// Removes jobs whose status files were removed and whose processes are gone (ROUND3).
    pub(super) fn remove_gone(
        &mut self,
        readings: &BTreeMap<JobPaths, Reading>,
        alive: IsAlive<'_>,
        said: &mut Vec<CoordinationEvent>,
    ) {
        let is_missing = |reading: &Reading| matches!(reading.status, Ok(None));
        let removed: Vec<_> = self
            .known
            .iter()
            .filter(|(job, known)| {
                readings.get(*job).is_none_or(is_missing)
                    && alive(Some(known.pid), known.life) != Liveness::Yes
            })
            .map(|(job, _)| job.clone())
            .collect();
        for job in removed {
            self.gone(&job, Some("its status file was removed"), said);
        }
    }

    /// Removes a job if it is known, and reports it if there is a reason.
    fn gone(
        &mut self,
        job: &JobPaths,
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
}
