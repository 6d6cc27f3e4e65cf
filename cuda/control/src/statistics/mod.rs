//! [`Statistics`]: when a job's status is worth writing, and what it says.

mod history;

use core::fmt;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use history::Histories;

use crate::status_file::{DeviceUsage, GpuStatus, JobStatus, StatusFile, SwapReason};
use crate::whole_file::{Durability, FileError, replace_whole};
use crate::{BusId, Clock};

/// The time between two checks, unless a run's time changes hugely.
const CHECK_EVERY: Duration = Duration::from_secs(10);

/// The source of the memory figures, asked at each check.
pub trait UsageSource {
    /// The seven numbers of each device, with peaks since this was last asked. The caller adds up devices of
    /// one GPU, peaks too, which may be more than the GPU ever had.
    fn usage(&mut self) -> Vec<(BusId, DeviceUsage)>;

    /// The job's own part of the status beside AntMan's format, if any. A new `written_at_unix_ms` alone is
    /// no change.
    fn job(&mut self) -> Option<JobStatus> {
        None
    }
}

/// Where a status goes.
pub trait StatusSink {
    /// Why it could not be written.
    type Error;

    /// Replaces the last status, whole: readers see the old one or this.
    ///
    /// # Errors
    /// The last status stands then.
    fn write(&mut self, status: &StatusFile) -> Result<(), Self::Error>;

    /// Whether what was written is there no more, so that the next check writes it again.
    fn is_gone(&mut self) -> bool {
        false
    }
}

/// A status in a file, replaced by renaming.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StatusPath {
    /// The file.
    pub path: PathBuf,
    /// How durable a write is when it counts as done.
    pub durability: Durability,
}

impl StatusSink for StatusPath {
    type Error = FileError;

    fn write(&mut self, status: &StatusFile) -> Result<(), FileError> {
        replace_whole(&self.path, status.to_text().as_bytes(), self.durability)
    }

    fn is_gone(&mut self) -> bool {
        std::fs::symlink_metadata(&self.path)
            .is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }
}

/// What recording a run did to the status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Recorded {
    /// The run was noted; the next check is not due.
    Noted,
    /// A check found nothing changed.
    Unchanged,
    /// A check found a change and wrote the status.
    Written,
}

/// Follows a job's runs and memory and writes its status when it changed.
///
/// The first run brings a check; then the first run 10 s after the last check does, and any run that takes
/// more than ten times as long as the oldest of the last nine of its graph, or less than a tenth of it. A
/// check writes if the average of a graph moved by 1 % of what was written last, if a graph came or went (its
/// last run was 100 s ago), if one of the seven numbers of a GPU or the job's own part changed, or if what was written last
/// is gone. After a failed write the next check writes. At most 4,096 graphs are remembered, those that ran last.
///
/// One thread at a time; a run costs O(log graphs), a check O(graphs + GPUs) and what the source and the sink do.
#[derive(Debug)]
pub struct Statistics<U, S, C> {
    source: U,
    sink: S,
    clock: C,
    histories: Histories,
    usage: BTreeMap<BusId, DeviceUsage>,
    job: Option<JobStatus>,
    last_check: Option<Duration>,
    /// Whether something changed that the sink has not written.
    unwritten: bool,
    /// Whether the sink has written anything.
    has_written: bool,
}

impl<U: UsageSource, S: StatusSink, C: Clock> Statistics<U, S, C> {
    /// Statistics of a job without runs.
    pub fn new(source: U, sink: S, clock: C) -> Self {
        Self {
            source,
            sink,
            clock,
            histories: Histories::default(),
            usage: BTreeMap::new(),
            job: None,
            last_check: None,
            unwritten: false,
            has_written: false,
        }
    }

    /// Records that a run of a graph is over, and checks if a check is due.
    ///
    /// # Errors
    /// The sink failed; the run counts, and the next check writes.
    pub fn record(&mut self, graph: u64, took: Duration) -> Result<Recorded, S::Error> {
        let now = self.clock.now();
        let huge = self.histories.record(graph, took, now);
        let due = self
            .last_check
            .is_none_or(|last| now.saturating_sub(last) >= CHECK_EVERY);
        if !due && !huge {
            return Ok(Recorded::Noted);
        }
        self.check()
    }

    /// Checks now, for example when a limit was lowered and the coordinator waits for the answer.
    ///
    /// # Errors
    /// The sink failed; the next check writes.
    pub fn check(&mut self) -> Result<Recorded, S::Error> {
        let now = self.clock.now();
        self.last_check = Some(now);
        let refused_before = self.unwritten;
        self.unwritten |= self.histories.average(now);
        self.unwritten |= self.histories.forget(now);
        self.unwritten |= self.has_written && self.sink.is_gone();
        self.take_usage(refused_before);
        self.take_job();
        if !self.unwritten {
            return Ok(Recorded::Unchanged);
        }
        self.sink.write(&self.status(now))?;
        self.histories.written();
        (self.unwritten, self.has_written) = (false, true);
        Ok(Recorded::Written)
    }

    /// The number of graphs that are remembered.
    pub fn graphs(&self) -> usize {
        self.histories.len()
    }

    /// The sink that statuses are written to.
    pub fn sink(&mut self) -> &mut S {
        &mut self.sink
    }

    /// The source of the memory figures.
    pub fn source(&mut self) -> &mut U {
        &mut self.source
    }

    fn take_usage(&mut self, refused_before: bool) {
        let mut usage = BTreeMap::new();
        for (gpu, numbers) in self.source.usage() {
            let of_gpu: &mut DeviceUsage = usage.entry(gpu).or_default();
            *of_gpu = of_gpu.plus(&numbers);
        }
        if refused_before {
            // An interval whose peak was not written goes on.
            for (gpu, now) in &mut usage {
                if let Some(before) = self.usage.get(gpu) {
                    now.device_peak_bytes = now.device_peak_bytes.max(before.device_peak_bytes);
                    now.host_peak_bytes = now.host_peak_bytes.max(before.host_peak_bytes);
                }
            }
        }
        self.unwritten |= usage != self.usage;
        self.usage = usage;
    }

    fn take_job(&mut self) {
        let job = self.source.job();
        let same = match (&job, &self.job) {
            (None, None) => true,
            (Some(job), Some(before)) => job.says_the_same(before),
            _ => false,
        };
        self.unwritten |= !same;
        self.job = job;
    }

    fn status(&self, now: Duration) -> StatusFile {
        let gpu = |(gpu, usage): (&BusId, &DeviceUsage)| {
            let status = GpuStatus::new(*usage, swap_reason(usage));
            (*gpu, status)
        };
        let mut status = StatusFile::default();
        status.gpus = self.usage.iter().map(gpu).collect();
        status.larder = self.job.clone();
        for (graph, micros, fresh) in self.histories.averages(now) {
            status.durations.insert(format!("graph_{graph}"), micros);
            if fresh {
                status.mini_batch_micros = status.mini_batch_micros.max(micros);
            }
        }
        status
    }
}

/// Why blocks went to the host. If both peaks together fit into what the device holds, there was room, but
/// fragmented.
fn swap_reason(usage: &DeviceUsage) -> SwapReason {
    if usage.host_peak_bytes == 0 {
        return SwapReason::None;
    }
    let peaks = usage.device_peak_bytes.checked_add(usage.host_peak_bytes);
    let fits = peaks.is_some_and(|peaks| peaks <= usage.device_reserved_bytes);
    if fits {
        SwapReason::Fragment
    } else {
        SwapReason::Oom
    }
}

impl fmt::Display for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Noted => "noted",
            Self::Unchanged => "nothing changed",
            Self::Written => "written",
        })
    }
}
