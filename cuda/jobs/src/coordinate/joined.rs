//! [`JoinedJob`]: what a coordination knows of a job, its numbers beside those of the files.
//!
//! ROUND1, ROUND2 and ROUND4 are those of `rounds`.

use larder_control::{BusId, Command, JobId, JobReport, SleepState};
use serde::Serialize;

use crate::files::JobFiles;
use crate::order;

/// A job that joined.
#[derive(Debug)]
pub(super) struct JoinedJob {
    pub(super) id: JobId,
    pub(super) pid: u32,
    pub(super) gpu: BusId,
    pub(super) priority: u32,
    /// Orders up to this number came from earlier coordinators (ROUND1).
    pub(super) base: u64,
    /// The limit of an order that was not confirmed when the job joined (ROUND2).
    pub(super) unseen_limit: u64,
    /// The last limit that this coordinator sent, which belongs in the control file (ROUND4).
    pub(super) limit: Option<Command>,
    pub(super) perf: Option<Command>,
    /// The last word on its sleep, which belongs in the control file too.
    pub(super) asleep: Option<Command>,
    /// What was sent last is not in the control file.
    pub(super) is_unwritten: bool,
    pub(super) state: JobFigures,
    pub(super) wrote_unix_ms: u64,
}

/// A job's figures, in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub(crate) struct JobFigures {
    pub(super) job: String,
    /// The limit in force.
    pub(super) limit_bytes: u64,
    pub(super) held_bytes: u64,
    /// What is above the limit and still to be given back.
    pub(super) deferred_bytes: u64,
    /// `None` if the job gives no number.
    pub(super) wanted_bytes: Option<u64>,
    /// The most that the job can hold from now on.
    pub(super) charge_bytes: u64,
}

impl JoinedJob {
    /// A report in this coordinator's numbers (ROUND1, ROUND2).
    pub(super) fn translate(&self, raw: JobReport) -> JobReport {
        let limit_bytes = if raw.version < self.base {
            raw.limit_bytes.max(self.unseen_limit)
        } else {
            raw.limit_bytes
        };
        let lifted = limit_bytes - raw.limit_bytes;
        JobReport {
            version: raw.version.saturating_sub(self.base),
            limit_bytes,
            deferred_bytes: raw.deferred_bytes.saturating_sub(lifted),
            sleep: match raw.sleep {
                // It may have read an older order.
                Some(SleepState::Asleep) if self.is_unwritten => Some(SleepState::Waking),
                sleep => sleep,
            },
            ..raw
        }
    }

    /// The limit that the job was sent last, by this coordinator or an earlier one.
    pub(super) fn last_limit(&self) -> u64 {
        match self.limit {
            Some(Command::SetLimit { limit_bytes, .. }) => limit_bytes,
            _ => self.state.limit_bytes,
        }
    }

    /// Writes the limit and the share into the control file if it has others (ROUND4).
    pub(super) fn write(&mut self, job: &JobFiles) -> Result<(), String> {
        if self.limit.is_none() && self.perf.is_none() && self.asleep.is_none() {
            return Ok(());
        }
        self.is_unwritten = true;
        let (before, _) = order::read(job).map_err(words)?;
        let mut file = before.clone();
        for command in [&self.limit, &self.perf, &self.asleep]
            .into_iter()
            .flatten()
        {
            file.command(self.gpu, command);
        }
        if file != before {
            order::write(job, &file).map_err(words)?;
        }
        // A share is written once: a person may pause a job until the share changes again.
        self.perf = None;
        self.is_unwritten = false;
        Ok(())
    }
}

pub(super) fn words(error: impl std::fmt::Display) -> String {
    error.to_string()
}
