//! [`JobShared`]: what a job is for its thread, its listener and its actions.

use std::io;
use std::sync::{Arc, Mutex, Weak};

use larder_control::{
    BusId, Clock, ControlFile, FileError, FileLock, Life, Pacer, PerfControl, ResourceManagement,
    RunActions, Sharing, sweep,
};
use larder_core::limits::LimitEventKind;
use larder_core::sync::{AtomicU8, AtomicU64, Ordering};

use super::combiner::Combiner;
use super::device_time::QueuedRuns;
use super::file_state::{FileState, Inbox};
use super::managed::ManagedPools;
use super::sleep::JobSleep;
use super::{Apply, JobConfig, JobError, Run, runs, thread};
use crate::DeviceAllocator;
use crate::driver::locked;
use crate::limits::{Budget, LimitedPool};

/// What a job is, for its thread, its listener and its actions.
pub(super) struct JobShared {
    pub(super) config: JobConfig,
    /// Whom orders are for.
    pub(super) life: Option<Life>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) management: ResourceManagement<Arc<dyn Clock>>,
    pub(super) pacer: Arc<Pacer<Arc<dyn Clock>>>,
    pub(super) actions: RunActions<Run>,
    pub(super) managed: Arc<ManagedPools>,
    pub(super) want: Arc<Want>,
    pub(super) sleep: Arc<JobSleep>,
    inbox: Mutex<Inbox>,
    pub(super) combiner: Combiner<FileState>,
    pub(super) report: Mutex<FileReport>,
    pub(super) progress: runs::Progress,
    pub(super) queued: Arc<QueuedRuns>,
    pub(super) bell: thread::Bell,
    /// The job ends.
    pub(super) ends: AtomicU8,
}

/// What the job would like to hold on each GPU.
pub(super) struct Want(pub(super) AtomicU64);

impl Want {
    /// Nothing was said.
    const UNKNOWN: u64 = u64::MAX;

    pub(super) fn get(&self) -> Option<u64> {
        // Relaxed: a number by itself.
        let bytes = self.0.load(Ordering::Relaxed);
        (bytes != Self::UNKNOWN).then_some(bytes)
    }
}

/// How many control files were read, and what went wrong; for people.
#[derive(Default)]
pub(super) struct FileReport {
    pub(super) files: u64,
    pub(super) refused_files: u64,
    pub(super) unwritten: u64,
    pub(super) problem: Option<String>,
    pub(super) version: Option<u64>,
}

impl JobShared {
    pub(super) fn new(config: JobConfig, clock: Arc<dyn Clock>) -> Arc<Self> {
        let management = ResourceManagement::new(Arc::clone(&clock));
        let (pacing, reader) = (config.pacer, management.reader());
        let pacer = Pacer::with_config(Arc::clone(&clock), reader, pacing);
        let managed = Arc::<ManagedPools>::default();
        let want = Arc::new(Want(AtomicU64::new(Want::UNKNOWN)));
        let sleep = Arc::<JobSleep>::default();
        let life = Life::this();
        let state = FileState::new(
            &config,
            life,
            Arc::clone(&clock),
            Arc::clone(&managed),
            management.reader(),
            Arc::clone(&want),
            Arc::clone(&sleep),
        );
        Arc::new(Self {
            actions: RunActions::new(Arc::clone(&clock)),
            pacer: Arc::new(pacer),
            inbox: Mutex::default(),
            combiner: Combiner::new(state),
            report: Mutex::default(),
            progress: runs::Progress::default(),
            queued: Arc::default(),
            bell: thread::Bell::default(),
            ends: AtomicU8::new(0),
            config,
            life,
            clock,
            management,
            managed,
            want,
            sleep,
        })
    }

    /// Locks the names of both files, and notes which could not be.
    pub(super) fn lock_files(&self) -> Result<Vec<FileLock>, JobError> {
        let files = &self.config.files;
        let mut locks = Vec::new();
        for path in [&files.control, &files.status].into_iter().flatten() {
            match FileLock::take(path, Sharing::Nobody) {
                Ok(lock) => locks.push(lock),
                Err(error) if error.source.kind() == io::ErrorKind::WouldBlock => {
                    return Err(JobError::Taken(error));
                }
                // Limits are safe all the same: a coordinator's orders are for one life.
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
        let device = Arc::downgrade(device);
        if let Some(pool) = self.managed.add(gpu, device, memory, host, watch) {
            locked(&self.inbox).pools.push(pool);
            // A new allocator must not grow past what was said, whatever run is under way.
            self.combiner
                .work(|state| self.obey(state), |state| self.settle(state));
            self.bell.ring();
        }
    }

    /// A control file was read: in the listener's thread.
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
            let words = "the control file's orders are for an earlier run of this job, or another: new ones are waited for";
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
        let (perf, asleep) = (parsed.file.perf_control, parsed.file.asleep);
        locked(&self.inbox).files.push(parsed.file);
        if let Some(perf) = perf {
            self.management.set_perf(PerfControl::of_file(perf));
        }
        self.bell.ring();
        self.combiner.work_or_leave(|state| self.settle(state));
        // Whoever wakes does so under the limits of this file.
        if asleep.is_some_and(|asleep| self.sleep.tell(asleep)) {
            self.bell.ring();
            self.combiner.work_or_leave(|state| self.settle(state));
        }
    }

    /// Done by the thread that has the state when others left: takes what they left, does of it what may be
    /// done now, and writes the status if the bell rang.
    pub(super) fn settle(&self, state: &mut FileState) {
        state.take(core::mem::take(&mut *locked(&self.inbox)));
        if self.may_obey() {
            self.obey(state);
        }
        // Relaxed: the thread that set it has left or has the state, and the combiner orders both.
        let ends = self.ends.load(Ordering::Relaxed) != 0;
        if self.bell.take() || ends {
            let written = if ends { state.end() } else { state.check() };
            self.note_written(written.err());
        }
        if ends {
            // From here on no callback about completed shrinks runs.
            self.managed.end();
        }
    }

    /// Whether limits may be put in force now. A suspended job may stand still inside of a run for long,
    /// and the coordinator waits.
    fn may_obey(&self) -> bool {
        self.config.apply == Apply::AtOnce
            || self.progress.is_between_runs()
            || self.management.perf().is_suspended()
            || !self.sleep.is_awake()
    }

    /// Takes what was left and puts limits in force; what became of them.
    pub(super) fn obey(&self, state: &mut FileState) -> Vec<runs::Adjusted> {
        state.take(core::mem::take(&mut *locked(&self.inbox)));
        let mut adjusted = Vec::new();
        if state.apply(&mut adjusted) {
            self.bell.ring();
        }
        locked(&self.report).version = state.version();
        adjusted
    }

    pub(super) fn note_written(&self, error: Option<FileError>) {
        if let Some(error) = error {
            self.note_unwritten(&error);
        }
    }

    pub(super) fn note_unwritten(&self, error: &FileError) {
        let mut report = locked(&self.report);
        report.unwritten += 1;
        report.problem = Some(error.to_string());
    }
}
