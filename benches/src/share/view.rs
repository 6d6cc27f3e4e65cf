//! The content of a job's two files as one value to show.
//!
//! A bad file does not hide the other one: an incomplete file, or one that is no status or control file,
//! becomes a problem in words.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use larder_control::{
    BusId, Compat, ControlFile, FileError, GpuLimit, GpuStatus, StatusFile, SwapReason, read_whole,
};
use serde::Serialize;

use super::alive::{Alive, alive};
use super::files::JobFiles;

/// A job as its two files describe it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct JobView {
    /// The job's files, and the name they give it.
    #[serde(flatten)]
    pub files: JobFiles,
    /// The name in the job's status.
    pub says_name: Option<String>,
    /// The number of the job's process.
    pub pid: Option<u32>,
    /// Whether the job's process exists.
    pub alive: Alive,
    /// The job's priority; higher is more important.
    pub priority: Option<i64>,
    /// The job's memory, by GPU.
    pub gpus: Vec<GpuView>,
    /// Whether the job has ended by itself.
    pub ended: bool,
    /// The newest of a coordinator's orders that the job obeys.
    pub control_version: Option<u64>,
    /// The job's share of the time in force, in percent.
    pub perf: Option<i32>,
    /// The share of the time in the control file, in percent.
    pub target_perf: Option<i32>,
    /// The longest of the job's average runs, in microseconds.
    pub mini_batch_micros: Option<u64>,
    /// Milliseconds since the status was written.
    pub age_ms: Option<u64>,
    /// The problems with the job's files.
    pub problems: Vec<String>,
}

/// A job's memory on one GPU, in bytes.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct GpuView {
    /// The GPU.
    pub gpu: BusId,
    /// The bytes in blocks on the device now.
    pub device_live_bytes: u64,
    /// The most bytes that were in blocks on the device.
    pub device_peak_bytes: u64,
    /// The bytes held from the device.
    pub device_held_bytes: u64,
    /// The bytes held in regions with a block in use.
    pub device_stable_bytes: u64,
    /// The bytes in blocks on the host now.
    pub host_live_bytes: u64,
    /// The most bytes that were in blocks on the host.
    pub host_peak_bytes: u64,
    /// The limit of host memory.
    pub host_limit_bytes: u64,
    /// Why blocks went to the host.
    pub swap_reason: &'static str,
    /// The limit in force; AntMan's jobs do not report it.
    pub limit_bytes: Option<u64>,
    /// The bytes above the limit that are still to be given back.
    pub deferred_bytes: Option<u64>,
    /// The limit in the control file.
    pub target_limit_bytes: Option<u64>,
}

impl JobView {
    /// Reads both files and looks up the process.
    #[must_use]
    pub fn look(files: &JobFiles, now: SystemTime) -> Self {
        let mut problems = Vec::new();
        let status = read_status(&files.status).unwrap_or_else(|problem| {
            problems.push(problem);
            None
        });
        let control = read_control(&files.control, &mut problems);
        let mut view = Self::of_status(files, status.as_ref(), now);
        if let (Alive::No, false, Some(pid)) = (view.alive, view.ended, view.pid) {
            problems.push(not_there(pid, &files.name));
        }
        view.target_perf = control.perf_control;
        for (gpu, said) in &control.gpus {
            let target = said.max_device_mem;
            match view.gpus.iter_mut().find(|known| known.gpu == *gpu) {
                Some(known) => known.target_limit_bytes = target,
                None => {
                    let unseen = GpuView::new(*gpu, &GpuStatus::default(), None);
                    view.gpus.push(GpuView {
                        target_limit_bytes: target,
                        ..unseen
                    });
                }
            }
        }
        view.problems = problems;
        view
    }

    fn of_status(files: &JobFiles, status: Option<&StatusFile>, now: SystemTime) -> Self {
        let own = status.and_then(|status| status.larder.as_ref());
        let written = own.map(|own| own.written_at_unix_ms).filter(|ms| *ms > 0);
        let written = written.or_else(|| changed_unix_ms(&files.status));
        let pid = own.map(|own| own.pid).filter(|pid| *pid > 0);
        let gpus = status.into_iter().flat_map(|status| &status.gpus);
        Self {
            files: files.clone(),
            says_name: own.map(|own| own.name.clone()),
            pid,
            alive: alive(pid, written),
            priority: own.and_then(|own| own.priority),
            gpus: gpus
                .map(|(gpu, status)| {
                    let limit = own.and_then(|own| own.gpus.get(gpu));
                    GpuView::new(*gpu, status, limit)
                })
                .collect(),
            ended: own.is_some_and(|own| own.ended),
            control_version: own.and_then(|own| own.control_version),
            perf: own.map(|own| own.perf_control),
            target_perf: None,
            mini_batch_micros: status.map(|status| status.mini_batch_micros),
            age_ms: written.map(|ms| unix_ms(now).saturating_sub(ms)),
            problems: Vec::new(),
        }
    }

    /// The share of the time to show: the one in force if the job reports it, else the one in its control
    /// file, else 100.
    #[must_use]
    pub fn shown_perf(&self) -> i32 {
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

/// The problem of a job whose process ended without a last status, or only seems to have ended.
#[must_use]
pub fn not_there(pid: u32, name: &str) -> String {
    format!(
        "process {pid} is not there, and its memory counts still: if it was killed, `larder control forget {name}`"
    )
}

/// A job's status; `None` if there is no file.
///
/// # Errors
/// The file cannot be read or is no status; the error says it in words.
pub fn read_status(path: &Path) -> Result<Option<StatusFile>, String> {
    let text = read_whole(path, StatusFile::MAX_BYTES).map_err(words)?;
    let parse = |text: Vec<u8>| StatusFile::parse(text).map_err(|error| error.to_string());
    text.map(parse).transpose()
}

/// The values of a control file that can be read; none if there is no file.
fn read_control(path: &Path, problems: &mut Vec<String>) -> ControlFile {
    let text = match read_whole(path, ControlFile::MAX_BYTES) {
        Ok(Some(text)) => text,
        Ok(None) => return ControlFile::default(),
        Err(error) => {
            problems.push(words(error));
            return ControlFile::default();
        }
    };
    match ControlFile::parse(text, Compat::Corrected) {
        Ok(parsed) => {
            problems.extend(parsed.problems.iter().map(ToString::to_string));
            parsed.file
        }
        Err(error) => {
            problems.push(error.to_string());
            ControlFile::default()
        }
    }
}

fn words(error: FileError) -> String {
    error.to_string()
}

fn changed_unix_ms(path: &Path) -> Option<u64> {
    let changed = fs::metadata(path).ok()?.modified().ok()?;
    Some(unix_ms(changed))
}

/// Milliseconds since 1970; 0 for an earlier time.
#[must_use]
pub fn unix_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
