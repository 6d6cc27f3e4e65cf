//! [`ControlChange`]: a user's change of a job's control file.
//!
//! ORDER1. A control file that cannot be read is not written, since its values would be lost.
//! ORDER2. An order keeps all fields and GPUs that it does not name, except orders to an earlier
//! run of the job, which no process obeys any more.
//!
//! Another program may write the file between the read and the write; the last write wins. Two
//! writers would undo each other's limits, so a job should have one coordinator, or one user who
//! changes its limits.

use larder_control::{
    BusId, ControlFile, Durability, FileError, ParseError, PerfControl, StatusFile, read_orders,
    replace_whole,
};

use crate::alive::{Liveness, alive};
use crate::arguments::{parse_limit, parse_perf};
use crate::files::JobPaths;
use crate::view::read_status;

/// A change of a job's control file. A field that is `None` stays as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::Args)]
pub(crate) struct ControlChange {
    /// Bytes of device memory that the job may hold, such as 512MiB; 0 for none
    #[arg(long = "limit", value_name = "N", value_parser = parse_limit, allow_hyphen_values = true)]
    pub(crate) limit_bytes: Option<u64>,
    /// The GPU for which the limit is, such as 00:1e.0; not needed if the job has only one
    #[arg(long, value_name = "ID", requires = "limit_bytes")]
    pub(crate) gpu: Option<BusId>,
    /// The share of the time in percent, 0 to 100
    #[arg(long, value_name = "P", value_parser = parse_perf, allow_hyphen_values = true)]
    pub(crate) perf: Option<PerfControl>,
    /// Whether the job is to sleep
    #[arg(skip)]
    pub(crate) asleep: Option<bool>,
}

/// The reason why an order was not written; the control file is unchanged.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OrderError {
    #[error("nothing to change: give a limit or a share of the time")]
    Empty,
    #[error("the job has not said which GPU it uses: name it, such as 00:1e.0")]
    NoGpu,
    #[error("the job has several GPUs; name one of them: {0}")]
    SeveralGpus(String),
    #[error(
        "the control file is for process {0}, which is there, and the status is that of process {1}: end one of them, or \
         give them names of their own"
    )]
    TwoProcesses(u32, u32),
    /// The control file exists and cannot be parsed (ORDER1).
    #[error("{0}; nothing was written; repair the file or remove it")]
    Unreadable(#[from] ParseError),
    #[error(transparent)]
    File(#[from] FileError),
}

impl ControlChange {
    /// Creates an order that changes only the share of the time.
    pub(crate) fn share(perf: PerfControl) -> Self {
        Self {
            perf: Some(perf),
            ..Self::default()
        }
    }

    /// Creates an order that only puts the job to sleep or wakes it.
    pub(crate) fn asleep(asleep: bool) -> Self {
        Self {
            asleep: Some(asleep),
            ..Self::default()
        }
    }

    /// Writes the order into the job's control file. Returns the invalid values that were in the
    /// old file and are removed.
    pub(crate) fn give(&self, job: &JobPaths) -> Result<Vec<String>, OrderError> {
        if self.limit_bytes.is_none() && self.perf.is_none() && self.asleep.is_none() {
            return Err(OrderError::Empty);
        }
        let said = read_status(&job.status).ok().flatten();
        let user = said.as_ref().and_then(|(_, user)| *user);
        let (mut file, dropped) = read(job, user)?;
        let own = said.as_ref().and_then(|(status, _)| status.larder.as_ref());
        let now = own.and_then(|own| own.life);
        if let Some(ordered) = file.life {
            match (alive(None, file.life), now) {
                (Liveness::No, _) => file.forget_orders(),
                (_, Some(now)) if ordered != now => {
                    return Err(OrderError::TwoProcesses(ordered.pid(), now.pid()));
                }
                _ => {}
            }
        }
        if let Some(bytes) = self.limit_bytes {
            let status = said.as_ref().map(|(status, _)| status);
            file.limit(self.whose(status, &file)?, bytes);
        }
        if let Some(perf) = self.perf {
            file.perf_control = Some(i32::from(perf.percent()));
        }
        file.asleep = self.asleep.or(file.asleep);
        write(job, &file)?;
        // This fails if the file belongs to a user whom the job does not obey.
        read(job, user)?;
        Ok(dropped)
    }

    /// Returns the GPU to which the order's limit applies.
    fn whose(&self, status: Option<&StatusFile>, file: &ControlFile) -> Result<BusId, OrderError> {
        if let Some(gpu) = self.gpu {
            return Ok(gpu);
        }
        let gpus = status.into_iter().flat_map(|status| status.gpus.keys());
        let mut gpus: Vec<BusId> = gpus.copied().collect();
        if gpus.is_empty() {
            gpus = file.gpus.keys().copied().collect();
        }
        match gpus[..] {
            [] => Err(OrderError::NoGpu),
            [gpu] => Ok(gpu),
            _ => {
                let names: Vec<_> = gpus.iter().map(ToString::to_string).collect();
                Err(OrderError::SeveralGpus(names.join(", ")))
            }
        }
    }
}

/// Reads a job's control file. Returns it with its problems; without a file, returns an empty one.
/// The file must be one that a process of `user` obeys; `None` stands for the user of this process.
pub(crate) fn read(
    job: &JobPaths,
    user: Option<u32>,
) -> Result<(ControlFile, Vec<String>), OrderError> {
    let Some(text) = read_orders(&job.control, ControlFile::MAX_BYTES, user)? else {
        return Ok((ControlFile::default(), Vec::new()));
    };
    let parsed = ControlFile::parse(text)?;
    let problems = parsed.problems.iter().map(ToString::to_string);
    Ok((parsed.file, problems.collect()))
}

/// Replaces a job's control file; if the system refuses, the old file stays.
pub(crate) fn write(job: &JobPaths, file: &ControlFile) -> Result<(), FileError> {
    replace_whole(&job.control, file.to_text().as_bytes(), Durability::Seen)
}
