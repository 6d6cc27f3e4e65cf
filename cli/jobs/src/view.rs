//! The content of a job's two files as one value to show.
//!
//! A bad file does not hide the other one: a file that is incomplete, or not a status or control
//! file, becomes the description of a problem.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use larder_control::{
    BusId, ControlFile, GpuLimit, GpuStatus, JobStatus, Life, SleepState, StatusFile, SwapReason,
    is_of_user, read_owned,
};
use serde::Serialize;

use crate::alive::{Liveness, alive};
use crate::files::JobPaths;
use crate::order::{self, OrderError};

/// A job as its two files describe it; serialized as a line of JSON. Shares are in percent.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct JobView {
    /// The job's files, and the name in their file names.
    #[serde(flatten)]
    pub(crate) files: JobPaths,
    /// The name in the job's status.
    pub(crate) says_name: Option<String>,
    pub(crate) pid: Option<u32>,
    pub(crate) alive: Liveness,
    /// Priority; higher is more important.
    pub(crate) priority: Option<i64>,
    pub(crate) gpus: Vec<GpuView>,
    /// Whether the job has reported its end.
    pub(crate) ended: bool,
    /// The number of the newest order that the job obeys.
    pub(crate) control_version: Option<u64>,
    /// The share of the time in force.
    pub(crate) perf: Option<i32>,
    /// The share of the time in the control file.
    pub(crate) target_perf: Option<i32>,
    /// The state of the job's sleep; `None` if it cannot sleep.
    pub(crate) sleep: Option<SleepState>,
    /// Whether the control file orders the job to sleep.
    pub(crate) target_asleep: Option<bool>,
    /// Bytes of the job's copies on the host, and bytes of device memory that it needs to wake.
    pub(crate) copied_bytes: u64,
    pub(crate) wake_bytes: u64,
    /// The longest average duration of the job's runs, in microseconds.
    pub(crate) mini_batch_micros: Option<u64>,
    /// Time since the status was written.
    pub(crate) age_ms: Option<u64>,
    /// Descriptions of the files' problems.
    pub(crate) problems: Vec<String>,
}

/// A job's memory on one GPU.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct GpuView {
    pub(crate) gpu: BusId,
    /// Bytes in blocks on the device, current and maximum.
    pub(crate) device_live_bytes: u64,
    pub(crate) device_peak_bytes: u64,
    /// Bytes held from the device, and those of them in regions with a block in use.
    pub(crate) device_held_bytes: u64,
    pub(crate) device_stable_bytes: u64,
    /// Bytes in blocks on the host, current and maximum.
    pub(crate) host_live_bytes: u64,
    pub(crate) host_peak_bytes: u64,
    pub(crate) host_limit_bytes: u64,
    /// The reason why blocks went to the host, in AntMan's words.
    pub(crate) swap_reason: &'static str,
    /// The limit in force, which AntMan's jobs do not report.
    pub(crate) limit_bytes: Option<u64>,
    /// Bytes held above the limit, still to be released.
    pub(crate) deferred_bytes: Option<u64>,
    /// The limit in the control file.
    pub(crate) target_limit_bytes: Option<u64>,
}

impl JobView {
    /// Reads both files and looks up the process.
    pub(crate) fn look(files: &JobPaths, now: SystemTime) -> Self {
        let mut problems = Vec::new();
        let said = read_status(&files.status).unwrap_or_else(|problem| {
            problems.push(problem);
            None
        });
        let (status, user) = said.map_or((None, None), |(status, user)| (Some(status), user));
        let (control, dropped) = order::read(files, user).unwrap_or_else(|error| {
            let problem = match error {
                // The error's advice is for writers and does not apply here.
                OrderError::Unreadable(error) => error.to_string(),
                error => error.to_string(),
            };
            (ControlFile::default(), vec![problem])
        });
        problems.extend(dropped);
        let own = status.as_ref().and_then(|status| status.larder.as_ref());
        let written = own.map(|own| own.written_at_unix_ms).filter(|ms| *ms > 0);
        let written = written.or_else(|| changed_unix_ms(&files.status));
        let pid = own.map(|own| own.pid).filter(|pid| *pid > 0);
        let life = own.and_then(|own| own.life);
        let (alive, ended) = (alive(pid, life), own.is_some_and(|own| own.ended));
        if let (Liveness::No, false, Some(pid)) = (alive, ended, pid) {
            problems.push(not_there(pid, &files.name));
        }
        let sleep = own.and_then(|own| own.sleep.as_ref());
        problems.extend(sleep.and_then(|sleep| sleep.problem.clone()));
        let mut gpus = Vec::new();
        for (gpu, status) in status.iter().flat_map(|status| &status.gpus) {
            let limit = own.and_then(|own| own.gpus.get(gpu));
            gpus.push(GpuView::new(*gpu, status, limit));
        }
        for (gpu, said) in &control.gpus {
            if !gpus.iter().any(|known| known.gpu == *gpu) {
                gpus.push(GpuView::new(*gpu, &GpuStatus::default(), None));
            }
            for known in gpus.iter_mut().filter(|known| known.gpu == *gpu) {
                known.target_limit_bytes = said.max_device_mem;
            }
        }
        Self {
            files: files.clone(),
            says_name: own.map(|own| own.name.clone()),
            pid,
            alive,
            priority: own.and_then(|own| own.priority),
            gpus,
            ended,
            control_version: own.and_then(|own| own.control_version),
            perf: own.map(|own| own.perf_control),
            target_perf: control.perf_control,
            sleep: sleep.map(|sleep| sleep.state),
            target_asleep: control.asleep,
            copied_bytes: sleep.map_or(0, |sleep| sleep.copied_bytes),
            wake_bytes: sleep.map_or(0, |sleep| sleep.wake_bytes),
            mini_batch_micros: status.as_ref().map(|status| status.mini_batch_micros),
            age_ms: written.map(|ms| unix_ms(now).saturating_sub(ms)),
            problems,
        }
    }

    /// Returns the share of the time to show: the share in force; if the job does not report it,
    /// the one in its control file; if that has none, 100.
    pub(crate) fn shown_perf(&self) -> i32 {
        self.perf.or(self.target_perf).unwrap_or(100)
    }
}

impl GpuView {
    fn new(gpu: BusId, status: &GpuStatus, limit: Option<&GpuLimit>) -> Self {
        let usage = &status.usage;
        Self {
            gpu,
            device_live_bytes: usage.device_live_bytes,
            device_peak_bytes: usage.device_peak_bytes,
            device_held_bytes: usage.device_reserved_bytes,
            device_stable_bytes: usage.device_stable_bytes,
            host_live_bytes: usage.host_live_bytes,
            host_peak_bytes: usage.host_peak_bytes,
            host_limit_bytes: usage.host_limit_bytes,
            swap_reason: match status.swap_reason {
                SwapReason::Fragment => "FRAGMENT",
                SwapReason::Oom => "OOM",
                _ => "",
            },
            limit_bytes: limit.map(|limit| limit.limit_bytes),
            deferred_bytes: limit.map(|limit| limit.deferred_bytes),
            target_limit_bytes: None,
        }
    }
}

/// Describes the problem of a job whose process ended, or seems to have ended, without a last
/// status.
pub(crate) fn not_there(pid: u32, name: &str) -> String {
    format!(
        "process {pid} does not exist, but its memory still counts: if it was killed, `larder control forget {name}`"
    )
}

/// Maximum number of GPUs that a file may name. No machine has more, and each takes memory here.
const MOST_GPUS: usize = 64;

/// A status, and the UID of its owner if the system has users.
pub(crate) type Said = (StatusFile, Option<u32>);

/// Reads a job's status; `None` if there is no file. An error describes the defect. One is that the
/// status belongs to a user other than the process's, who could write anything into it.
pub(crate) fn read_status(path: &Path) -> Result<Option<Said>, String> {
    let read = read_owned(path, StatusFile::MAX_BYTES).map_err(|error| error.to_string())?;
    let Some((text, user)) = read else {
        return Ok(None);
    };
    let status = StatusFile::parse(text).map_err(|error| error.to_string())?;
    let own = status.larder.as_ref();
    are_few(status.gpus.len().max(own.map_or(0, |own| own.gpus.len())))?;
    if let Some(own) = own {
        believe(own, user)?;
    }
    Ok(Some((status, user)))
}

/// Refuses a status that was not written by the process it names.
fn believe(own: &JobStatus, user: Option<u32>) -> Result<(), String> {
    let pid = own.life.map_or(own.pid, Life::pid);
    if pid != own.pid {
        return Err(format!(
            "it names process {} but has the life of process {pid}: not believed",
            own.pid
        ));
    }
    // A process with that PID but another life says nothing about the job's process.
    let is_here = own.life.is_none_or(|life| Life::of(pid) == Some(life));
    match user.filter(|user| *user != 0) {
        Some(user) if is_here && is_of_user(pid, user) == Some(false) => Err(format!(
            "it belongs to user {user}, and process {pid} is another user's: not believed; remove it"
        )),
        _ => Ok(()),
    }
}

/// Refuses a file that names more GPUs than a machine can have.
pub(crate) fn are_few(gpus: usize) -> Result<(), String> {
    match gpus {
        0..=MOST_GPUS => Ok(()),
        _ => Err(format!(
            "it names {gpus} GPUs, of {MOST_GPUS} at most: not believed"
        )),
    }
}

fn changed_unix_ms(path: &Path) -> Option<u64> {
    let changed = fs::metadata(path).ok()?.modified().ok()?;
    Some(unix_ms(changed))
}

/// Returns milliseconds since 1970; 0 for an earlier time.
pub(crate) fn unix_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
