//! Configuration of a [`Job`](super::Job).

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use larder_control::{Ceiling, Durability, ListenerConfig, PacerConfig};

/// The environment variable by which AntMan's programs find their control file.
const CONTROL_VARIABLE: &str = "GPU_CONFIG_FILE";
/// The environment variable by which AntMan's programs find their status file.
const STATUS_VARIABLE: &str = "GPU_STATUS_FILE";

/// A job's two files. Without a control file the job receives no orders; without a status file it reports
/// nothing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct JobFiles {
    /// The control file, with the orders to the job. It need not exist yet.
    pub control: Option<PathBuf>,
    /// The status file, which the job writes. Its folder must exist.
    pub status: Option<PathBuf>,
}

impl JobFiles {
    /// Returns the files that the environment names, as for AntMan's programs, with `GPU_CONFIG_FILE` and
    /// `GPU_STATUS_FILE`. A variable that is unset or empty names no file. The variables are read once, here.
    pub fn from_env() -> Self {
        let file = |name| env::var_os(name).and_then(named);
        Self {
            control: file(CONTROL_VARIABLE),
            status: file(STATUS_VARIABLE),
        }
    }
}

fn named(path: OsString) -> Option<PathBuf> {
    (!path.is_empty()).then(|| path.into())
}

/// When a job sets the limits of its control file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Apply {
    /// Between runs: immediately if no run is under way or the job is suspended, otherwise when a run ends.
    /// So a step has the same limit from its beginning to its end. AntMan sets limits only at the end of a
    /// run.
    #[default]
    AtRunEnd,
    /// When the file is read, which is safe at any moment since lowering a limit does not wait. But an
    /// allocation of the run under way may be refused.
    AtOnce,
}

/// Where a job with a share of the time pauses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pauses {
    /// Evenly before the launches that go through the job's [`LaunchPacer`](super::LaunchPacer), with the
    /// remainder at the end of the run.
    #[default]
    Spread,
    /// At the end of a run, by AntMan's formula.
    AtRunEnd,
}

/// Configuration of a [`Job`](super::Job). [`JobConfig::new`] has the defaults.
#[derive(Clone, PartialEq, Debug)]
pub struct JobConfig {
    /// The two files.
    pub files: JobFiles,
    /// The job's name in its status, for people to read.
    pub name: String,
    /// The job's priority in its status, for the coordinator; larger is more important.
    pub priority: Option<i64>,
    /// When limits are set.
    pub apply: Apply,
    /// Where pauses are made.
    pub pauses: Pauses,
    /// How high a control file may raise a limit.
    pub ceiling: Ceiling,
    /// How the control file is watched, and how often it is polled. With
    /// [`WatchMode::Manual`](larder_control::WatchMode::Manual) the job has no thread, and only
    /// [`Job::poll`](super::Job::poll) polls.
    pub listener: ListenerConfig,
    /// How pauses are spread.
    pub pacer: PacerConfig,
    /// When a status counts as written.
    pub durability: Durability,
}

impl JobConfig {
    /// Makes the default configuration of a job with this name and these files: limits are set between runs
    /// and are at most the allocators' initial limits, pauses are spread, and the control file is watched.
    pub fn new(name: impl Into<String>, files: JobFiles) -> Self {
        Self {
            files,
            name: name.into(),
            priority: None,
            apply: Apply::default(),
            pauses: Pauses::default(),
            ceiling: Ceiling::default(),
            listener: ListenerConfig::default(),
            pacer: PacerConfig::default(),
            durability: Durability::default(),
        }
    }
}
