//! [`JoinedJob`], the coordinator's record of a job: how its order numbers relate to those in the
//! files, and how much of its status is believed.
//!
//! The invariants ROUND1, ROUND2 and ROUND4 to ROUND6 are in `rounds`.

use std::sync::Arc;
use std::time::Duration;

use larder_control::{
    BusId, Command, ControlFile, FileLock, JobId, JobReport, Life, Sharing, SleepState, sweep,
};
use larder_core::ByteCount;
use serde::Serialize;

use crate::files::JobPaths;
use crate::order;

/// A job that joined.
#[derive(Clone, Debug)]
pub(super) struct JoinedJob {
    pub(super) id: JobId,
    pub(super) pid: u32,
    pub(super) life: Option<Life>,
    pub(super) gpu: BusId,
    pub(super) priority: u32,
    /// Orders up to this number came from earlier coordinators (ROUND1).
    pub(super) base: u64,
    /// Bytes that the job could hold by unconfirmed orders of earlier coordinators when it joined
    /// (ROUND2).
    pub(super) unseen_bytes: u64,
    /// Bytes that the job was given and may still hold (ROUND5).
    pub(super) given_bytes: u64,
    /// Whether the job's status claims a limit above the believed one, so that the job must be sent
    /// a limit as long as it may still obey.
    pub(super) is_unlimited: bool,
    /// The time at which the job's status first claimed more than `given_bytes`.
    pub(super) claims_since: Option<Duration>,
    /// Whether no status of the job has been read yet, or an order was not written, so that the
    /// files may know more than this record.
    pub(super) joins_again: bool,
    /// Whether the job has several GPUs. Its files have one order number for all of them, so only
    /// one coordinator may write them.
    pub(super) has_several_gpus: bool,
    /// The lock that makes this coordinator the one that writes the files.
    pub(super) only: Option<Arc<FileLock>>,
    /// The last limit that this coordinator sent, which belongs in the control file (ROUND4), and
    /// the bytes that the job may hold until it obeys.
    pub(super) limit: Option<(Command, u64)>,
    pub(super) perf: Option<Command>,
    /// The last order to sleep or wake, which belongs in the control file too.
    pub(super) asleep: Option<Command>,
    /// Whether the last order is not in the control file yet.
    pub(super) is_unwritten: bool,
    /// Whether files that killed coordinators left next to the control file have been removed.
    pub(super) has_swept: bool,
    /// Whether the process did not exist in the last round. A status that was read just before the job's end does not
    /// say so, so only a second round counts.
    pub(super) was_missing: bool,
    /// The user that owns the job's status, if the system has users.
    pub(super) user: Option<u32>,
    pub(super) state: JobFigures,
}

/// A job's figures, in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub(crate) struct JobFigures {
    pub(super) job: String,
    /// The limit in force.
    pub(super) limit_bytes: u64,
    pub(super) held_bytes: u64,
    /// Bytes above the limit, still to be released.
    pub(super) deferred_bytes: u64,
    /// Bytes wanted, or `None` if the job reports no number.
    pub(super) wanted_bytes: Option<u64>,
    /// Bytes that the job does not return on request, or `None` if it returns nothing.
    pub(super) guaranteed_bytes: Option<u64>,
    /// Maximum bytes that the job can hold from now on.
    pub(super) charge_bytes: u64,
}

/// The device's memory, and the time for which a job's own limit counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Belief {
    pub(super) total_bytes: u64,
    /// Bytes of the total for which no other job is charged.
    pub(super) room_bytes: u64,
    pub(super) calm: Duration,
    pub(super) now: Duration,
}

impl JoinedJob {
    /// Converts a report to this coordinator's order numbers (ROUND1, ROUND2).
    pub(super) fn translate(&self, raw: JobReport) -> JobReport {
        let limit_bytes = if raw.version < self.base {
            raw.limit_bytes.max(self.unseen_bytes)
        } else {
            raw.limit_bytes
        };
        let lifted = limit_bytes - raw.limit_bytes;
        JobReport {
            version: raw.version.saturating_sub(self.base),
            limit_bytes,
            deferred_bytes: raw.deferred_bytes.saturating_sub(lifted),
            sleep: match raw.sleep {
                // The job may have gone to sleep on an older order.
                Some(SleepState::Asleep) if self.is_unwritten => Some(SleepState::Waking),
                sleep => sleep,
            },
            ..raw
        }
    }

    /// Returns the believed part of a report, and a description of what is not believed (ROUND5).
    pub(super) fn believe(
        &mut self,
        report: JobReport,
        belief: Belief,
    ) -> (JobReport, Option<String>) {
        let Belief {
            total_bytes,
            room_bytes,
            calm,
            now,
        } = belief;
        let to_return = report.limit_bytes.saturating_add(report.deferred_bytes);
        let claimed = report.held_bytes.max(to_return);
        let sent = self.sent_bytes().unwrap_or(self.unseen_bytes);
        self.given_bytes = self.given_bytes.min(claimed).max(sent);
        self.is_unlimited = false;
        if claimed <= self.given_bytes {
            return (report, None);
        }
        let since = *self.claims_since.get_or_insert(now);
        let can_be = report.held_bytes <= total_bytes;
        let most = match can_be {
            true => self.given_bytes.max(room_bytes),
            false => self.given_bytes,
        };
        // The job's own limit counts until the job has had time to obey.
        let has_time = now.saturating_sub(since) < calm;
        let limit_most = if has_time { most } else { self.given_bytes };
        let limit_bytes = report.limit_bytes.min(limit_most);
        let may_obey = has_time || self.limit.is_none();
        self.is_unlimited = may_obey && limit_bytes < report.limit_bytes;
        let held_bytes = report.held_bytes.min(most);
        let above = held_bytes.max(self.given_bytes).saturating_sub(limit_bytes);
        let believed = JobReport {
            limit_bytes,
            held_bytes,
            deferred_bytes: report.deferred_bytes.min(above),
            ..report
        };
        let [holds, given, room, counted] =
            [report.held_bytes, self.given_bytes, room_bytes, held_bytes].map(ByteCount);
        let words = if !can_be {
            format!(
                "it claims to hold {holds} of a total of {}: not believed",
                ByteCount(total_bytes)
            )
        } else if report.held_bytes > most {
            format!(
                "it claims to hold {holds}; it was given {given}, and the others leave {room}: counted with {counted}"
            )
        } else if !has_time && report.limit_bytes > limit_bytes {
            format!(
                "it takes no limit but its own: counted with what it holds, {counted}, and not with what it may take; stop it"
            )
        } else {
            return (believed, None);
        };
        (believed, Some(words))
    }

    /// Returns the limit that this coordinator sent last; `None` if it sent none.
    pub(super) const fn sent_bytes(&self) -> Option<u64> {
        match self.limit {
            Some((Command::SetLimit { limit_bytes, .. }, _)) => Some(limit_bytes),
            _ => None,
        }
    }

    /// Returns the control file with the last orders of this coordinator (ROUND4), for this life of
    /// the job (ROUND6); `None` if there are none.
    pub(super) fn order(&self, before: &ControlFile) -> Option<ControlFile> {
        if self.limit.is_none() && self.perf.is_none() && self.asleep.is_none() {
            return None;
        }
        let mut file = before.clone();
        if file.life.is_some() && file.life != self.life {
            file.forget_orders();
        }
        file.life = self.life;
        let limit = self.limit.as_ref().map(|(command, _)| command);
        for command in [limit, self.perf.as_ref(), self.asleep.as_ref()]
            .into_iter()
            .flatten()
        {
            file.command(self.gpu, command);
        }
        if let Some((_, may_hold)) = self.limit {
            file.gpus.entry(self.gpu).or_default().may_hold = Some(may_hold);
        }
        Some(file)
    }

    /// Records that the last orders are in the control file. A share is written only once, so that
    /// a user may pause a job until the share changes again.
    pub(super) const fn written(&mut self) {
        self.perf = None;
        self.is_unwritten = false;
    }

    /// Returns whether this coordinator writes the job's file.
    pub(super) const fn is_ours(&self) -> bool {
        !self.has_several_gpus || self.only.is_some()
    }

    /// Makes this coordinator the one that writes a job's file with orders for several GPUs, unless
    /// another coordinator does.
    pub(super) fn claim(&mut self, job: &JobPaths) -> Result<(), String> {
        let name = format!("{}.coordinator", job.name);
        let lock = FileLock::take(&job.control.with_file_name(name), Sharing::Nobody);
        let lock = lock.map_err(|error| {
            format!("it uses several GPUs and gets nothing here, since one coordinator writes its file: {error}")
        })?;
        self.only = Some(Arc::new(lock));
        self.forget_sent();
        Ok(())
    }

    /// Forgets orders that were not written, since the file may have changed.
    pub(super) fn forget_sent(&mut self) {
        (self.limit, self.perf, self.asleep) = (None, None, None);
        self.joins_again = true;
    }

    /// Writes the last orders into the control file, if they differ from its content.
    pub(super) fn write(&mut self, job: &JobPaths) -> Result<(), String> {
        if self.limit.is_some() || self.perf.is_some() || self.asleep.is_some() {
            self.is_unwritten = true;
        }
        let (before, _) = order::read(job, self.user).map_err(words)?;
        let Some(file) = self.order(&before) else {
            return Ok(());
        };
        if file != before {
            if !self.has_swept {
                sweep(&job.control);
                self.has_swept = true;
            }
            order::write(job, &file).map_err(words)?;
        }
        self.written();
        Ok(())
    }
}

pub(super) fn words(error: impl std::fmt::Display) -> String {
    error.to_string()
}
