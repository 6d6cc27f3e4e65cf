//! How a [`Job`](super::Job) is made.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use larder_control::{Ceiling, Durability, ListenerConfig, PacerConfig};

/// The name under which AntMan's programs find their control file.
const CONTROL_VARIABLE: &str = "GPU_CONFIG_FILE";
/// The name under which they find their status file.
const STATUS_VARIABLE: &str = "GPU_STATUS_FILE";

/// A job's two files. Without one of them the job does not listen, or does not tell.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct JobFiles {
    /// What a coordinator tells the job. It need not be there yet.
    pub control: Option<PathBuf>,
    /// What the job tells of itself. Its folder must be there.
    pub status: Option<PathBuf>,
}

impl JobFiles {
    /// The files that the environment names, as AntMan's programs find them: `GPU_CONFIG_FILE` and
    /// `GPU_STATUS_FILE`; not set or empty is none. Read once, here.
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

/// When a limit that a control file says is put in force.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Apply {
    /// Between runs: at once if none is under way or the job is suspended, else when one ends. Steps see
    /// one limit from their beginning to their end. Upstream applies at the end of a run only.
    #[default]
    AtRunEnd,
    /// When the file is read. Nothing is waited for, so this is safe at any moment; an allocation of the
    /// run that is under way may be refused.
    AtOnce,
}

/// Where a job that has a share of the time makes its pauses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pauses {
    /// Before launches that go through the job's [`LaunchPacer`](super::LaunchPacer), evenly, and at the
    /// end of the run for what was not met.
    #[default]
    Spread,
    /// At the end of a run, by upstream's formula.
    AtRunEnd,
}

/// How a [`Job`](super::Job) is made. [`JobConfig::new`] has the defaults.
#[derive(Clone, PartialEq, Debug)]
pub struct JobConfig {
    /// The two files.
    pub files: JobFiles,
    /// For people; stands in the status.
    pub name: String,
    /// Whose wishes come first, larger is more important; for the coordinator, stands in the status.
    pub priority: Option<i64>,
    /// When limits are put in force.
    pub apply: Apply,
    /// Where pauses are made.
    pub pauses: Pauses,
    /// How high a control file may raise a limit. Upstream: to what the allocator began with.
    pub ceiling: Ceiling,
    /// How the control file is watched, and how often it is looked at. With
    /// [`WatchMode::Manual`](larder_control::WatchMode::Manual) the job has no thread:
    /// [`Job::poll`](super::Job::poll) looks.
    pub listener: ListenerConfig,
    /// How pauses are spread.
    pub pacer: PacerConfig,
    /// When a status counts as written.
    pub durability: Durability,
}

impl JobConfig {
    /// A job of that name with those files: limits between runs and up to what allocators began with,
    /// pauses spread, the control file watched.
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
