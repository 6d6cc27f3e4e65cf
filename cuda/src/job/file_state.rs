//! [`FileState`]: what a job's control file asks for and what its status file says, inside its
//! [combiner](super::combiner).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use larder_control::{
    Adjustment, BusId, Clock, ControlFile, ControlState, DeviceUsage, DutyCycleReader, FileError,
    JobStatus, Life, NoDevice, Recorded, Statistics, StatusFile, StatusPath, StatusSink,
    UsageAdjustment, UsageSource,
};

use super::managed::{JobPool, Look, ManagedPools};
use super::sleep::JobSleep;
use super::{JobConfig, Want};

/// What other threads left for the thread that works on the state next; behind a lock of its own.
#[derive(Default)]
pub(super) struct Inbox {
    /// Allocators that are managed from now on.
    pub(super) pools: Vec<JobPool>,
    /// Control files, in the order in which they were read.
    pub(super) files: Vec<ControlFile>,
}

/// A job's limits and its statistics. One thread at a time has them, without a lock.
pub(super) struct FileState {
    state: ControlState,
    /// Limits that wait for the end of a run.
    waiting: BTreeMap<BusId, u64>,
    /// What is in force once they are.
    version: Option<u64>,
    adjustment: UsageAdjustment<JobPool>,
    statistics: Statistics<StatusSource, StatusOutput, Arc<dyn Clock>>,
}

impl FileState {
    pub(super) fn new(
        config: &JobConfig,
        life: Option<Life>,
        clock: Arc<dyn Clock>,
        managed: Arc<ManagedPools>,
        perf: DutyCycleReader,
        want: Arc<Want>,
        sleep: Arc<JobSleep>,
    ) -> Self {
        let source = StatusSource {
            managed,
            perf,
            want,
            sleep,
            life,
            name: config.name.clone(),
            priority: config.priority,
            version: None,
            ended: false,
            look: Look::Due,
        };
        let durability = config.durability;
        let path = config.files.status.clone();
        let sink = StatusOutput(path.map(|path| StatusPath { path, durability }));
        Self {
            state: ControlState::new(),
            waiting: BTreeMap::new(),
            version: None,
            adjustment: UsageAdjustment::new(config.ceiling),
            statistics: Statistics::new(source, sink, clock),
        }
    }

    /// Takes what was left. What it changes waits for [`apply`](Self::apply).
    pub(super) fn take(&mut self, inbox: Inbox) {
        for pool in inbox.pools {
            if let Some(bytes) = self.state.limit_bytes(pool.gpu) {
                self.waiting.insert(pool.gpu, bytes);
            }
            self.adjustment.add(pool);
        }
        for file in inbox.files {
            self.waiting.extend(self.state.apply(&file).limits);
            self.version = file.control_version;
        }
    }

    /// Puts the limits that wait in force; true if the status says something else now.
    pub(super) fn apply(&mut self, adjusted: &mut Vec<Result<Adjustment, NoDevice>>) -> bool {
        self.adjustment
            .retain(|pool| pool.device.upgrade().is_some());
        let limits = core::mem::take(&mut self.waiting);
        let version = &mut self.statistics.source().version;
        let changed = !limits.is_empty() || *version != self.version;
        for (gpu, bytes) in limits {
            adjusted.push(self.adjustment.adjust(gpu, bytes));
        }
        self.statistics.source().version = self.version;
        changed
    }

    /// Asks again for limits that were refused or deferred.
    pub(super) fn retry(&mut self) {
        self.adjustment.retry();
    }

    pub(super) fn record(&mut self, graph: u64, took: Duration) -> Result<Recorded, FileError> {
        self.statistics.record(graph, took)
    }

    /// Writes the status if something in it has changed, whether it is due or not.
    pub(super) fn check(&mut self) -> Result<Recorded, FileError> {
        self.statistics.source().look = Look::Between;
        let checked = self.statistics.check();
        self.statistics.source().look = Look::Due;
        checked
    }

    /// The last status: the job has ended.
    pub(super) fn end(&mut self) -> Result<Recorded, FileError> {
        self.statistics.source().ended = true;
        self.check()
    }

    /// What the newest status would say of the job, with what is waiting.
    pub(super) fn version(&mut self) -> Option<u64> {
        self.statistics.source().version
    }
}

/// Where a job's status has its numbers from.
struct StatusSource {
    managed: Arc<ManagedPools>,
    perf: DutyCycleReader,
    want: Arc<Want>,
    sleep: Arc<JobSleep>,
    life: Option<Life>,
    name: String,
    priority: Option<i64>,
    version: Option<u64>,
    ended: bool,
    look: Look,
}

impl UsageSource for StatusSource {
    fn usage(&mut self) -> Vec<(BusId, DeviceUsage)> {
        self.managed.usage(self.look)
    }

    fn job(&mut self) -> Option<JobStatus> {
        let mut job = JobStatus::default();
        job.pid = std::process::id();
        job.life = self.life;
        job.name.clone_from(&self.name);
        job.priority = self.priority;
        job.perf_control = self.perf.perf().percent().into();
        job.control_version = self.version;
        job.ended = self.ended;
        job.sleep = Some(self.sleep.status());
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        job.written_at_unix_ms = now.map_or(0, |now| now.as_millis() as u64);
        let wanted = self.want.get();
        for (gpu, limit) in self.managed.limits() {
            let sum = u64::saturating_add;
            let here = job.gpus.entry(gpu).or_default();
            here.limit_bytes = sum(here.limit_bytes, limit.limit_bytes);
            here.held_bytes = sum(here.held_bytes, limit.held_bytes);
            here.deferred_bytes = sum(here.deferred_bytes, limit.deferred_bytes);
            here.wanted_bytes = wanted;
            job.limit_bytes = sum(job.limit_bytes, limit.limit_bytes);
            job.held_bytes = sum(job.held_bytes, limit.held_bytes);
            job.deferred_bytes = sum(job.deferred_bytes, limit.deferred_bytes);
        }
        Some(job)
    }
}

/// The status file, if there is one.
struct StatusOutput(Option<StatusPath>);

impl StatusSink for StatusOutput {
    type Error = FileError;

    fn write(&mut self, status: &StatusFile) -> Result<(), FileError> {
        match &mut self.0 {
            Some(path) => path.write(status),
            None => Ok(()),
        }
    }

    fn is_gone(&mut self) -> bool {
        self.0.as_mut().is_some_and(StatusSink::is_gone)
    }
}
