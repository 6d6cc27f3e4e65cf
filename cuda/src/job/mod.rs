//! [`Job`]: this program's part of a GPU that it shares with others, after AntMan.
//!
//! A job obeys its control file, which says how much of each GPU's memory it may hold and how much
//! of the time it may use, and writes a status file. A coordinator, or a person with an editor,
//! writes the one and reads the other. Formats, arithmetic, the listener and the pacer are
//! [`larder_control`]'s; this module joins them to allocators and launches.
//!
//! # A shared GPU in ten lines
//! ```no_run
//! use larder_cuda::job::{Job, JobConfig, JobFiles};
//! use larder_cuda::{Context, DeviceAllocator};
//!
//! let context = Context::new(0)?;
//! let (memory, stream) = (DeviceAllocator::new(&context)?, context.cudarc().new_stream()?);
//! let job = Job::new(JobConfig::new("train", JobFiles::from_env()))?;
//! job.manage(&memory)?;
//! let pacer = job.pacer();
//! for _step in 0..1000 {
//!     job.run_on(&stream, 0, || {
//!         pacer.launch(); // before each kernel or copy, or `LaunchPaced::launch_paced`
//!         // … the step
//!     })?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! With `GPU_CONFIG_FILE` and `GPU_STATUS_FILE` set, `{"gpuConfigInfo": {"01:00.0":
//! {"maxDeviceMem": 1073741824}}, "perfControl": 50}` in the one gives the job 1 GiB and half of
//! the time, and the other says what it holds. Without them all of this costs a few nanoseconds a
//! launch, and two events a run.
//!
//! # What happens when
//! * **A file is read**: the job obeys its share of the time from that moment on, inside a pause
//!   too. Its limits wait for the end of the run that is under way, unless the job is suspended or
//!   [`Apply::AtOnce`] says otherwise. What is wrong with a file changes nothing; [`Job::state`]
//!   has the last problem.
//! * **A run ends**: actions run by phases, the user's and the job's own. Phase 1 writes the status
//!   if that is due, phase 2 sets the limits that wait and pauses, as upstream.
//! * **A limit is lowered**: [`DeviceAllocator::set_limit`] answers at once. What blocks hold above
//!   it is *deferred*, and goes back as they are freed. The status says how much that is, and is
//!   written again when all has gone back.
//! * **The share is 0**: the next launch through the pacer, and the end of the run, wait until it
//!   is not.
//! * **The file says `"asleep": true`**: when the last run under way has ended, and before the next
//!   one begins, all managed allocators [sleep](DeviceAllocator::sleep), and the runs of all
//!   threads wait. With `false` they wake, as soon as there is memory; until then the status says
//!   how much is missed. A job that cannot sleep (memory was exported, a stream captures) stays
//!   awake, says why in its status, and tries again at the ends of later runs. A job that its share
//!   of the time holds back sleeps when that lets it go; one without runs does not sleep. Nobody
//!   waits for another thread's run, which may wait for this one, so threads whose runs overlap
//!   without a gap never sleep. An allocator that is managed while others sleep is awake.
//!
//! # Time
//! Work is queued, and a loop that does not wait for it spends no time of its own. So
//! [`Job::run_on`] has the device time the run, by two events on its stream, and lets it finish
//! before a pause. The busy time of [`Job::run`] is the host's, less the pauses, as upstream: right
//! if each launch is waited for.
//!
//! # Threads and locks
//! CTRL1 One thread at a time has the job's statistics. That thread sets limits, asks allocators
//! and writes the status, and holds no lock meanwhile.
//! CTRL2 The listener's callback and the job's own thread never wait for the statistics; they
//! leave, and the thread that has them looks again (COMB2). So a job may be dropped anywhere, in a
//! callback of its own allocators too.
//! CTRL3 Locks are held for lists only: managed allocators with the limits ordered for them, the
//! report. None is taken under another.
//!
//! The job's thread, if it has one, writes the status when something happened outside of runs: an
//! order was obeyed, or what was deferred has gone back. Frees do not write files.

mod combiner;
mod config;
mod device_time;
mod error;
mod launch;
mod limits;
mod managed;
mod runs;
mod shared;
mod sleep;
mod status;
mod thread;

use core::fmt;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

pub use config::{Apply, JobConfig, JobFiles, Pauses};
pub use error::JobError;
pub use larder_control;
pub use launch::{LaunchPaced, LaunchPacer};
pub use limits::{Adjustment, LimitPart, NoDevice};
pub use runs::{Run, RunEnd};
pub use status::Recorded;

use larder_control::{
    BusId, Clock, FileLock, Handle, Listener, PerfControl, RunActions, SystemClock, WatchMode,
};
use larder_core::sync::Ordering;

use shared::JobShared;

use crate::driver::locked;
use crate::limits::LimitedPool;
use crate::{Context, DeviceAllocator, ForeignMemory, PinnedAllocator, VmemAllocator};

/// This program as one of several on a GPU. See the [module](self).
///
/// Dropping it ends its thread and every pause, and writes a last status that says so. Limits stay,
/// and what is deferred still goes back: both are the allocators' own.
pub struct Job {
    shared: Arc<JobShared>,
    /// Ends in `drop`.
    handle: Option<Handle>,
    listener: Option<Listener>,
    thread: Option<JoinHandle<()>>,
    /// The names of its files are its own; they are free after its last status.
    _locks: Vec<FileLock>,
}

/// The state of a job at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct JobState {
    /// The share of the time in force.
    pub perf: PerfControl,
    /// The number of the newest order whose limits are set.
    pub control_version: Option<u64>,
    /// Control files that were read and obeyed.
    pub files: u64,
    /// Control files that were not JSON, or only a part of it, of which nothing was taken.
    pub refused_files: u64,
    /// Times that the status could not be written.
    pub unwritten: u64,
    /// The newest problem with a file, in words.
    pub problem: Option<String>,
}

impl Job {
    /// Begins to obey the control file. Orders that stand there are obeyed before the first run,
    /// unless they are for another run of the job. Both files' names are the job's as long as it
    /// lives; where they cannot be locked, because their folder may not be written,
    /// [`state`](Self::state) says so.
    ///
    /// # Errors
    /// If another job has one of the files, the path is none, or a thread cannot be started.
    pub fn new(config: JobConfig) -> Result<Self, JobError> {
        Self::with_clock(config, Arc::new(SystemClock::new()))
    }

    /// Begins to obey the control file, with a given clock: runs are timed and pauses are made by
    /// it.
    ///
    /// # Errors
    /// If another job has one of the files, the path is none, or a thread cannot be started.
    pub fn with_clock(config: JobConfig, clock: Arc<dyn Clock>) -> Result<Self, JobError> {
        let shared = JobShared::new(config, clock);
        let locks = shared.lock_files()?;
        runs::add_actions(&shared);
        let mut job = Self {
            shared,
            handle: None,
            listener: None,
            thread: None,
            _locks: locks,
        };
        let config = &job.shared.config;
        let by_hand = config.listener.watch_mode == WatchMode::Manual;
        if config.files.status.is_some() && !by_hand {
            job.thread = Some(thread::start(&job.shared).map_err(JobError::Thread)?);
        }
        if let Some(path) = &job.shared.config.files.control {
            let listener = Listener::new(job.shared.config.listener);
            let shared = Arc::downgrade(&job.shared);
            let handle = listener.register(path, move |text| {
                if let Some(shared) = shared.upgrade() {
                    shared.read(text);
                }
            });
            job.handle = Some(handle.map_err(JobError::Listen)?);
            // What stands there holds from the beginning.
            listener.poll_now();
            job.listener = Some(listener);
        }
        Ok(job)
    }

    /// Manages an allocator: it has the control file's limit, and the status has its numbers. A
    /// limit that a file has given its GPU already is set before this returns. Several allocators
    /// on one GPU share its limit. An allocator that is managed already stays as it is, and none is
    /// kept alive.
    ///
    /// # Errors
    /// If the driver does not say where the device is.
    pub fn manage(&self, memory: &DeviceAllocator) -> Result<(), JobError> {
        self.add(memory, None)
    }

    /// Manages the device's side of an allocator that has the host's side behind it. The limit is
    /// the device side's alone: what it refuses, the host's side serves.
    ///
    /// # Errors
    /// If the driver does not say where the device is.
    pub fn manage_vmem(&self, memory: &VmemAllocator) -> Result<(), JobError> {
        self.add(memory.device(), memory.host_pool())
    }

    /// Counts pinned memory as the host's memory of its GPU. A control file has no limit for it;
    /// the program sets [`PinnedAllocator::set_limit`].
    ///
    /// # Errors
    /// If the driver does not say where the device is.
    pub fn manage_pinned(&self, memory: &PinnedAllocator) -> Result<(), JobError> {
        let gpu = bus_id(memory.context())?;
        self.shared.managed.add_pinned(gpu, memory.as_pool());
        Ok(())
    }

    /// Manages memory of a GPU that the program takes from the driver by itself. It never sleeps: a
    /// job that holds such memory stays awake, and its status says why.
    pub fn manage_foreign(&self, gpu: BusId, memory: &ForeignMemory) {
        let pool: Arc<dyn LimitedPool> = memory.0.clone();
        self.shared.add(gpu, &pool, None, None);
    }

    /// Sets how many bytes the job would like to hold on each GPU. The next status says it to the
    /// coordinator; a job that has not said it would like all that it can have.
    pub fn want(&self, bytes: u64) {
        // Relaxed: a number by itself.
        self.shared.wanted_bytes.store(bytes, Ordering::Relaxed);
        self.shared.bell.ring();
    }

    /// Returns a pacer, for launches and copies that obey the job's share of the time.
    pub fn pacer(&self) -> LaunchPacer {
        LaunchPacer::new(&self.shared)
    }

    /// Returns the actions before and after each run. The job's own are `statistics` in phase 1 and
    /// `management` in phase 2 after it.
    pub fn actions(&self) -> &RunActions<Run> {
        &self.shared.actions
    }

    /// Polls the control file and writes the status if it has changed, in this thread. Nothing else
    /// does it outside of runs for a job whose [`WatchMode`] is manual.
    pub fn poll(&self) {
        if let Some(listener) = &self.listener {
            listener.poll_now();
        }
        // Does nothing in a callback of the thread that has the statistics: that one settles again.
        let _ = self
            .shared
            .with_statistics(|statistics| self.shared.settle(statistics));
    }

    /// Ends every pause and suspension, now and later: nothing is held back any more. Limits go on.
    ///
    /// A job that sleeps tries once to wake, whoever has the device then. If that is refused the
    /// run comes back with the allocators asleep: they refuse, until the program calls
    /// [`DeviceAllocator::wake`].
    pub fn cancel(&self) {
        self.shared.cancel();
    }

    /// Returns the job's state.
    pub fn state(&self) -> JobState {
        let unread = self.listener.as_ref().and_then(Listener::problem);
        let report = locked(&self.shared.report);
        JobState {
            perf: self.shared.management.perf(),
            control_version: report.version,
            files: report.files,
            refused_files: report.refused_files,
            unwritten: report.unwritten,
            problem: unread.or_else(|| report.problem.clone()),
        }
    }

    fn add(
        &self,
        memory: &DeviceAllocator,
        host: Option<Weak<dyn LimitedPool>>,
    ) -> Result<(), JobError> {
        let gpu = bus_id(memory.context())?;
        self.shared.add(gpu, &memory.as_pool(), Some(memory), host);
        Ok(())
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // First of all, so that nobody sleeps through the rest.
        self.shared.cancel();
        drop(self.handle.take());
        let shared = &*self.shared;
        shared.record_queued();
        // Relaxed: whoever reads it is ordered behind this by the combiner.
        shared.ends.store(1, Ordering::Relaxed);
        let _ = shared.with_statistics(|statistics| shared.settle(statistics));
        if let Some(thread) = self.thread.take() {
            thread::end(shared, thread);
        }
    }
}

/// Returns the place of a context's device on the PCI bus.
fn bus_id(context: &Context) -> Result<BusId, JobError> {
    let text = context.driver().device_bus_id(context.device())?;
    text.parse().map_err(|_| JobError::BusId { text })
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("name", &self.shared.config.name)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
