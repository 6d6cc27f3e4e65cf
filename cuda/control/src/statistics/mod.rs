//! [`Statistics`]: decides when a job's status should be written, and computes it.

mod history;

use std::collections::BTreeMap;
use std::time::Duration;

use history::Histories;

use crate::BusId;
use crate::status_file::{DeviceUsage, GpuStatus, JobStatus, StatusFile, SwapReason};

/// Time between two checks, unless a run's time changes hugely.
const CHECK_EVERY: Duration = Duration::from_secs(10);

/// Follows a job's runs and memory, and decides when its status should be written.
///
/// The first run causes a check. After that, the first run at least 10 s after the last check causes one, and
/// so does any run that takes more than ten times as long as the oldest of the last nine runs of its graph,
/// or less than a tenth of that. A check returns a status to write if the average of a graph differs by at
/// least 1 % from the one last written, if a graph is new or has left (its last run was 100 s ago), if one of
/// the seven numbers of a GPU or the job's own part has changed, or if the file written last has been
/// deleted. After a failed write, the next check returns a status, too. At most 4,096 graphs are remembered:
/// those that ran last.
///
/// A run costs O(log graphs), a check O(graphs + GPUs).
///
/// ```
/// use std::time::Duration;
/// use larder_control::Statistics;
///
/// let mut statistics = Statistics::default();
/// let now = Duration::ZERO;
/// assert!(statistics.record(7, Duration::from_millis(3), now)); // the first run
/// let status = statistics.check(now, [], None, false).unwrap();
/// assert_eq!(status.durations["graph_7"], 3000);
/// // … write it
/// statistics.written();
/// assert_eq!(statistics.check(now, [], None, false), None);
/// ```
#[derive(Debug, Default)]
pub struct Statistics {
    histories: Histories,
    usage: BTreeMap<BusId, DeviceUsage>,
    job: Option<JobStatus>,
    last_check: Option<Duration>,
    /// Whether a change is not yet written.
    unwritten: bool,
    has_written: bool,
}

impl Statistics {
    /// Records a run of a graph. Returns true if a check is due.
    pub fn record(&mut self, graph: u64, took: Duration, now: Duration) -> bool {
        let huge = self.histories.record(graph, took, now);
        let due = self
            .last_check
            .is_none_or(|last| now.saturating_sub(last) >= CHECK_EVERY);
        due || huge
    }

    /// Checks, and returns the status if it should be written. Report the write with
    /// [`written`](Self::written).
    ///
    /// `usage` has the seven numbers of each device, with peaks since the last check. The numbers of devices
    /// on one GPU are added up, even the peaks, whose sum the GPU may never have reached. `job` is the job's
    /// own part, which AntMan's format does not have; a new `written_at_unix_ms` alone is not a change.
    /// `is_gone` is true once the last status written has been deleted.
    pub fn check(
        &mut self,
        now: Duration,
        usage: impl IntoIterator<Item = (BusId, DeviceUsage)>,
        job: Option<JobStatus>,
        is_gone: bool,
    ) -> Option<StatusFile> {
        self.last_check = Some(now);
        let refused_before = self.unwritten;
        self.unwritten |= self.histories.average(now);
        self.unwritten |= self.histories.forget(now);
        self.unwritten |= self.has_written && is_gone;
        self.take_usage(usage, refused_before);
        self.take_job(job);
        self.unwritten.then(|| self.status(now))
    }

    /// Records that the status of the last check has been written.
    pub fn written(&mut self) {
        self.histories.written();
        (self.unwritten, self.has_written) = (false, true);
    }

    /// Returns the number of graphs remembered.
    pub fn graphs(&self) -> usize {
        self.histories.len()
    }

    fn take_usage(
        &mut self,
        devices: impl IntoIterator<Item = (BusId, DeviceUsage)>,
        refused_before: bool,
    ) {
        let mut usage = BTreeMap::new();
        for (gpu, numbers) in devices {
            let of_gpu: &mut DeviceUsage = usage.entry(gpu).or_default();
            *of_gpu = of_gpu.plus(&numbers);
        }
        if refused_before {
            // An interval continues if its peak was not written.
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

    fn take_job(&mut self, job: Option<JobStatus>) {
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

/// Returns the reason why blocks went to the host. If both peaks together fit into the memory that the device
/// holds, there was space, but fragmented.
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
