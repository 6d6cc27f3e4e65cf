//! [`JobShared`]: the parts of a job that its thread, its listener and its actions share.

use std::io;
use std::sync::{Arc, Mutex, Weak};

use larder_control::{
    BusId, Clock, ControlFile, FileLock, Life, Pacer, PerfControl, ResourceManagement, RunActions,
    Sharing, Statistics, sweep,
};
use larder_core::limits::LimitEventKind;
use larder_core::sync::{AtomicU8, AtomicU64, Ordering};

use super::combiner::Combiner;
use super::device_time::QueuedRuns;
use super::limits::{Adjusted, ManagedPools, StatusCheck};
use super::sleep::JobSleep;
use super::{Apply, JobConfig, JobError, Run, runs, thread};
use crate::DeviceAllocator;
use crate::driver::locked;
use crate::limits::{Budget, LimitedPool};

/// The parts of a job that its thread, its listener and its actions share.
pub(super) struct JobShared {
    pub(super) config: JobConfig,
    /// The life of this process, which orders may name.
    pub(super) life: Option<Life>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) management: ResourceManagement<Arc<dyn Clock>>,
    pub(super) pacer: Arc<Pacer<Arc<dyn Clock>>>,
    pub(super) actions: RunActions<Run>,
    pub(super) managed: ManagedPools,
    /// The bytes that the job would like to hold on each GPU, or [`UNKNOWN`](Self::UNKNOWN).
    pub(super) wanted_bytes: AtomicU64,
    pub(super) sleep: Arc<JobSleep>,
    /// The statistics. The thread that has them sets limits and writes the status (CTRL1).
    statistics: Combiner<Statistics>,
    pub(super) report: Mutex<FileReport>,
    pub(super) progress: runs::RunProgress,
    pub(super) queued: Arc<QueuedRuns>,
    pub(super) bell: thread::Bell,
    /// 1 once the job ends.
    pub(super) ends: AtomicU8,
}

/// Counts of control files read, and the last problem, for people to read.
#[derive(Default)]
pub(super) struct FileReport {
    pub(super) files: u64,
    pub(super) refused_files: u64,
    pub(super) unwritten: u64,
    pub(super) problem: Option<String>,
    /// The `controlVersion` of the newest control file whose limits are set.
    pub(super) version: Option<u64>,
}

impl JobShared {
    /// Value of `wanted_bytes` before the program sets it.
    pub(super) const UNKNOWN: u64 = u64::MAX;

    pub(super) fn new(config: JobConfig, clock: Arc<dyn Clock>) -> Arc<Self> {
        let management = ResourceManagement::new(Arc::clone(&clock));
        let (pacing, reader) = (config.pacer, management.reader());
        let pacer = Pacer::with_config(Arc::clone(&clock), reader, pacing);
        Arc::new(Self {
            actions: RunActions::new(Arc::clone(&clock)),
            pacer: Arc::new(pacer),
            statistics: Combiner::new(Statistics::default()),
            report: Mutex::default(),
            progress: runs::RunProgress::default(),
            queued: Arc::default(),
            bell: thread::Bell::default(),
            ends: AtomicU8::new(0),
            config,
            life: Life::this(),
            clock,
            management,
            managed: ManagedPools::default(),
            wanted_bytes: AtomicU64::new(Self::UNKNOWN),
            sleep: Arc::default(),
        })
    }

    /// Locks the names of both files, and reports those that cannot be locked.
    pub(super) fn lock_files(&self) -> Result<Vec<FileLock>, JobError> {
        let files = &self.config.files;
        let mut locks = Vec::new();
        for path in [&files.control, &files.status].into_iter().flatten() {
            match FileLock::take(path, Sharing::Nobody) {
                Ok(lock) => locks.push(lock),
                Err(error) if error.source.kind() == io::ErrorKind::WouldBlock => {
                    return Err(JobError::Taken(error));
                }
                // Limits are safe without the lock, since a coordinator's orders are for one life.
                Err(error) => locked(&self.report).problem = Some(error.to_string()),
            }
        }
        if let Some(status) = &files.status {
            sweep(status);
        }
        Ok(locks)
    }

    pub(super) fn cancel(&self) {
        self.management.cancel();
        self.sleep.cancel();
    }

    pub(super) fn add(
        self: &Arc<Self>,
        gpu: BusId,
        device: &Arc<dyn LimitedPool>,
        memory: Option<&DeviceAllocator>,
        host: Option<Weak<dyn LimitedPool>>,
    ) {
        let shared = Arc::downgrade(self);
        let watch = Budget::of(device.node()).watch(move |event| {
            if event.kind == LimitEventKind::ShrinkDone
                && let Some(shared) = shared.upgrade()
            {
                shared.bell.ring();
            }
        });
        if self.managed.add(gpu, device, memory, host, watch) {
            // A new allocator must not grow past its limit, even if a run is under way.
            self.with_statistics(|_| self.obey());
            self.bell.ring();
        }
    }

    /// Obeys a control file that the listener has read.
    pub(super) fn read(&self, text: &[u8]) {
        let parsed = match ControlFile::parse(text) {
            Ok(parsed) => parsed,
            Err(error) => {
                let mut report = locked(&self.report);
                report.refused_files += 1;
                report.problem = Some(error.to_string());
                return;
            }
        };
        if !parsed.file.is_for(self.life) {
            let words =
                "the control file's orders are for another process: the job waits for new ones";
            locked(&self.report).problem = Some(words.to_owned());
            return;
        }
        {
            let mut report = locked(&self.report);
            report.files += 1;
            if let Some(problem) = parsed.problems.first() {
                report.problem = Some(problem.to_string());
            }
        }
        self.managed.take(&parsed.file);
        if let Some(perf) = parsed.file.perf_control {
            self.management.set_perf(PerfControl::of_file(perf));
        }
        self.bell.ring();
        self.settle_or_leave();
        // Last, so that the job wakes under the limits of this file.
        let asleep = parsed.file.asleep;
        if asleep.is_some_and(|asleep| self.sleep.tell(asleep)) {
            self.bell.ring();
            self.settle_or_leave();
        }
    }

    /// Runs `work` with the statistics once no other thread has them, and then settles until no thread has
    /// left in the meantime. If this thread already has the statistics, returns `None` and settles later.
    pub(super) fn with_statistics<R>(&self, work: impl FnOnce(&mut Statistics) -> R) -> Option<R> {
        let done = self
            .statistics
            .work(work, |statistics| self.settle(statistics));
        if done.is_some() {
            self.managed.call_back_loans();
        }
        done
    }

    /// Settles, or leaves that to the thread that has the statistics.
    pub(super) fn settle_or_leave(&self) {
        let settle = |statistics: &mut Statistics| self.settle(statistics);
        if self.statistics.work_or_leave(settle) {
            self.managed.call_back_loans();
        }
    }

    /// Sets the waiting limits, if that is allowed now, and writes the status if the bell rang.
    pub(super) fn settle(&self, statistics: &mut Statistics) {
        if self.may_obey() {
            self.obey();
        }
        // Relaxed: the thread that set this has left or has the statistics, and the combiner orders both
        // cases.
        let ends = self.ends.load(Ordering::Relaxed) != 0;
        if self.bell.take() || ends {
            // The report contains the error.
            let _ = self.check(statistics, StatusCheck::Early);
        }
        if ends {
            // Bytes released from now on do not ring the bell.
            self.managed.end();
        }
    }

    /// Sets the waiting limits, and returns their outcomes. The caller has the statistics (CTRL1).
    pub(super) fn obey(&self) -> Vec<Adjusted> {
        let (adjusted, version) = self.managed.obey(self.config.ceiling);
        let before = core::mem::replace(&mut locked(&self.report).version, version);
        if !adjusted.is_empty() || before != version {
            self.bell.ring();
        }
        adjusted
    }

    /// Returns whether limits may be set now. A suspended job counts as between runs, since it may stay
    /// inside a run for a long time while the coordinator waits.
    fn may_obey(&self) -> bool {
        self.config.apply == Apply::AtOnce
            || self.progress.is_between_runs()
            || self.management.perf().is_suspended()
            || !self.sleep.is_awake()
    }
}
