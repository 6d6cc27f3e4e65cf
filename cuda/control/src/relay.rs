//! What a coordinator and a job say to each other, put into their files and taken out: commands into
//! [`ControlFile`]s, reports out of [`StatusFile`]s.
//!
//! AntMan's files cannot tell an answer from an old status. So an order has a number, `controlVersion` in
//! the control file, which the job repeats in its status once the order is in force (K3).

use crate::coordinate::{Command, JobReport};
use crate::manage::Slots;
use crate::{BusId, Compat, ControlFile, PerfControl, StatusFile};

impl ControlFile {
    /// Puts a command into the file, for a GPU; what it says nothing of stays. A file holds the newest
    /// command of each kind, so that one that is replaced before the job looked is made up for.
    pub fn command(&mut self, gpu: BusId, command: &Command) {
        match *command {
            Command::SetLimit {
                limit_bytes,
                version,
                ..
            } => {
                self.limit(gpu, limit_bytes);
                self.control_version = Some(version);
            }
            Command::SetPerf { perf, .. } => self.perf_control = Some(perf.percent().into()),
        }
    }
}

impl StatusFile {
    /// What a [`Coordinator`](crate::Coordinator) is told of the job's memory on a GPU. `None` if the job
    /// says nothing of limits there, as AntMan's do not. A job that does not know what it wants, wants all.
    pub fn report(&self, gpu: BusId) -> Option<JobReport> {
        let job = self.larder.as_ref()?;
        let here = job.gpus.get(&gpu)?;
        Some(JobReport {
            version: job.control_version.unwrap_or(0),
            limit_bytes: here.limit_bytes,
            held_bytes: here.held_bytes,
            deferred_bytes: here.deferred_bytes,
            wanted_bytes: here.wanted_bytes.unwrap_or(u64::MAX),
        })
    }
}

impl PerfControl {
    /// The share that a file's `perfControl` means. Above 100 and below 0 it holds nothing back: upstream
    /// finds no time to sleep then.
    pub fn of_file(perf_control: i32) -> Self {
        u64::try_from(perf_control).map_or(Self::FULL, |percent| {
            Self::new(percent).unwrap_or(Self::FULL)
        })
    }
}

impl From<Compat> for Slots {
    fn from(compat: Compat) -> Self {
        match compat {
            Compat::Corrected => Self::Forgotten,
            Compat::AntMan => Self::Kept,
        }
    }
}
