//! Translation between a coordinator and the files of a job: commands into [`ControlFile`]s, reports out of
//! [`StatusFile`]s.
//!
//! In AntMan's files an answer cannot be distinguished from an old status. So each order has a number,
//! `controlVersion` in the control file, and the job repeats the number in its status once the order is in
//! force (COORD3).

use crate::coordinate::{Command, JobReport};
use crate::{BusId, ControlFile, PerfControl, SleepState, SleepStatus, StatusFile};

impl ControlFile {
    /// Writes a command for a GPU into the file and keeps all other fields. The file holds the newest command
    /// of each kind, so the job misses nothing if one command replaces another before the job reads the file.
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
            Command::SetAsleep { asleep, .. } => self.asleep = Some(asleep),
        }
    }
}

impl StatusFile {
    /// Returns the report of the job's memory on a GPU, for a [`Coordinator`](crate::Coordinator). Returns
    /// `None` if the status has no limit for the GPU, which is always so with AntMan's jobs. A job that does
    /// not report its want counts as wanting everything.
    pub fn report(&self, gpu: BusId) -> Option<JobReport> {
        let job = self.larder.as_ref()?;
        let here = job.gpus.get(&gpu)?;
        let sleep = job.sleep.as_ref();
        let can_sleep =
            |sleep: &&SleepStatus| sleep.state != SleepState::Awake || sleep.problem.is_none();
        Some(JobReport {
            version: job.control_version.unwrap_or(0),
            limit_bytes: here.limit_bytes,
            held_bytes: here.held_bytes,
            deferred_bytes: here.deferred_bytes,
            wanted_bytes: here.wanted_bytes.unwrap_or(u64::MAX),
            guaranteed_bytes: here.guaranteed_bytes,
            sleep: sleep.filter(can_sleep).map(|sleep| sleep.state),
            wake_bytes: sleep.map_or(0, |sleep| sleep.wake_bytes),
        })
    }
}

impl PerfControl {
    /// Returns the share for a file's `perfControl`. A number above 100 or below 0 means the full share,
    /// because upstream then computes no time to sleep.
    pub fn of_file(perf_control: i32) -> Self {
        u64::try_from(perf_control).map_or(Self::FULL, |percent| {
            Self::new(percent).unwrap_or(Self::FULL)
        })
    }
}
