//! [`Job`]: this program as one of several jobs on a GPU, on the model of AntMan.
//!
//! A job obeys its control file, which sets the memory that the job may hold on each GPU and its share of the
//! time, and writes a status file. A coordinator, or a person with an editor, writes the control file and
//! reads the status file. The formats, the arithmetic, the listener and the pacer are in [`larder_control`];
//! this module connects them to allocators and launches.
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
//! With `GPU_CONFIG_FILE` and `GPU_STATUS_FILE` set, `{"gpuConfigInfo": {"01:00.0": {"maxDeviceMem":
//! 1073741824}}, "perfControl": 50}` in the control file gives the job 1 GiB and half of the time, and the
//! status file reports the memory that the job holds. Without these variables the job costs a few nanoseconds
//! for each launch, and two events for each run.
//!
//! # Events
//! * **A file is read**: the job obeys its share of the time at once, even during a pause. Its limits wait
//!   for the end of the run under way, unless the job is suspended or configured with [`Apply::AtOnce`].
//!   Invalid parts of a file change nothing; [`Job::state`] has the last problem.
//! * **A run ends**: the program's actions and the job's own run in phases. In phase 1 the job writes the
//!   status if a check is due. In phase 2 it sets the waiting limits and pauses, as in AntMan.
//! * **A limit is lowered**: [`DeviceAllocator::set_limit`] returns immediately. Bytes of blocks above the
//!   limit are *deferred*: they are released as the blocks are freed. The status has their number, and is
//!   written again when all of them have been released.
//! * **The share is 0**: the next launch through the pacer, and the end of the run, wait until the share is
//!   raised.
//! * **The file has `"asleep": true`**: after the last run under way has ended, and before the next one
//!   begins, all managed allocators [sleep](DeviceAllocator::sleep), and the runs of all threads wait. With
//!   `false` the allocators wake as soon as there is memory; until then the status has the number of missing
//!   bytes. A job that cannot sleep (memory was exported, a stream is being captured) stays awake, reports
//!   the reason in its status, and retries at the ends of later runs. A job that its share of the time holds
//!   back sleeps when the share lets it go on; a job without runs does not sleep. No thread waits for another
//!   thread's run, since that run may be waiting for this thread, so a job whose threads have overlapping
//!   runs without a gap never sleeps. An allocator that becomes managed while others sleep is awake.
//!
//! # Time
//! Work is queued, and a loop that does not wait for it spends almost no time on the host. So [`Job::run_on`]
//! times the run on the device, with two events on its stream, and lets the device finish before a pause.
//! [`Job::run`] counts the host's time without the pauses, as AntMan does, which is correct if the program
//! waits for each launch.
//!
//! # Threads and locks
//! CTRL1 One thread at a time has the job's statistics. That thread sets limits, reads allocators and writes
//! the status, and holds no lock while it does so.
//! CTRL2 The listener's callback and the job's own thread never wait for the statistics: they leave, and the
//! thread that has the statistics checks again (COMB2). So a job may be dropped anywhere, even in a callback
//! of its own allocators.
//! CTRL3 Locks protect only lists (the managed allocators and the limits ordered for them) and the report. No
//! lock is taken under another.
//!
//! The job's thread, if it has one, writes the status after events outside of runs: when an order was obeyed,
//! or deferred bytes have been released. Frees do not write files.

mod combiner;
mod config;
mod device_time;
mod error;
mod launch;
mod limits;
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
    BusId, Clock, FileLock, Listener, PerfControl, Registration, RunActions, SystemClock, WatchMode,
};
use larder_core::sync::Ordering;

use shared::JobShared;

use crate::driver::locked;
use crate::limits::LimitedPool;
use crate::{Context, DeviceAllocator, ForeignMemory, PinnedAllocator, VmemAllocator};

/// This program as one of several jobs on a GPU. See the [module](self).
///
/// Dropping the job ends its thread and every pause, and writes a last status marked as ended. Limits stay in
/// force, and deferred bytes are still released, since both belong to the allocators.
pub struct Job {
    shared: Arc<JobShared>,
    /// The listener's registration, which ends in `drop`.
    handle: Option<Registration>,
    listener: Option<Listener>,
    thread: Option<JoinHandle<()>>,
    /// Locks on the names of the job's files, released after its last status.
    _locks: Vec<FileLock>,
}

/// The state of a job at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct JobState {
    /// The share of the time that is in force.
    pub perf: PerfControl,
    /// The `controlVersion` of the newest control file whose limits are set.
    pub control_version: Option<u64>,
    /// Number of control files that were read and obeyed.
    pub files: u64,
    /// Number of control files that were ignored entirely because they were not complete JSON.
    pub refused_files: u64,
    /// Number of failed writes of the status.
    pub unwritten: u64,
    /// The newest problem with a file, as text.
    pub problem: Option<String>,
}

impl Job {
    /// Makes a job, which begins to obey its control file. Orders already in the file are obeyed before the
    /// first run, unless they are for another process. The names of both files belong to the job as long as
    /// it lives; if they cannot be locked because their folder is not writable, [`state`](Self::state)
    /// reports that.
    ///
    /// # Errors
    /// If another job has one of the files, the path is invalid, or a thread cannot be started.
    pub fn new(config: JobConfig) -> Result<Self, JobError> {
        Self::with_clock(config, Arc::new(SystemClock::new()))
    }

    /// Makes a job with a given clock, which times runs and pauses.
    ///
    /// # Errors
    /// If another job has one of the files, the path is invalid, or a thread cannot be started.
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
            // Orders that are already in the file apply from the beginning.
            listener.poll_now();
            job.listener = Some(listener);
        }
        Ok(job)
    }

    /// Manages an allocator: the control file's limit applies to it, and the status includes its numbers. If
    /// a limit is already in force for its GPU, the allocator has it when this returns. Several allocators on
    /// one GPU share its limit. A second call with the same allocator changes nothing. The job does not keep
    /// the allocator alive.
    ///
    /// # Errors
    /// If the driver does not report the device's PCI bus id.
    pub fn manage(&self, memory: &DeviceAllocator) -> Result<(), JobError> {
        self.add(memory, None)
    }

    /// Manages the device's side of an allocator that also has a host's side. The limit applies to the
    /// device's side alone: the host's side serves the requests that the device's side refuses.
    ///
    /// # Errors
    /// If the driver does not report the device's PCI bus id.
    pub fn manage_vmem(&self, memory: &VmemAllocator) -> Result<(), JobError> {
        self.add(memory.device(), memory.host_pool())
    }

    /// Reports pinned memory as host memory of its GPU. A control file cannot limit pinned memory; the
    /// program does, with [`PinnedAllocator::set_limit`].
    ///
    /// # Errors
    /// If the driver does not report the device's PCI bus id.
    pub fn manage_pinned(&self, memory: &PinnedAllocator) -> Result<(), JobError> {
        let gpu = bus_id(memory.context())?;
        self.shared.managed.add_pinned(gpu, memory.as_pool());
        Ok(())
    }

    /// Manages memory of a GPU that the program gets directly from the driver. Such memory never sleeps: a
    /// job that holds any stays awake, and its status has the reason.
    pub fn manage_foreign(&self, gpu: BusId, memory: &ForeignMemory) {
        let pool: Arc<dyn LimitedPool> = memory.0.clone();
        self.shared.add(gpu, &pool, None, None);
    }

    /// Sets the number of bytes that the job would like to hold on each GPU. The next status reports it to
    /// the coordinator; without a call, the job would like as much as it can get.
    pub fn want(&self, bytes: u64) {
        // Relaxed: no other memory is published through the number.
        self.shared.wanted_bytes.store(bytes, Ordering::Relaxed);
        self.shared.bell.ring();
    }

    /// Returns a pacer, with which launches and copies keep to the job's share of the time.
    pub fn pacer(&self) -> LaunchPacer {
        LaunchPacer::new(&self.shared)
    }

    /// Returns the actions before and after each run. The job's own actions are `statistics` in phase 1 and
    /// `management` in phase 2, both after the run.
    pub fn actions(&self) -> &RunActions<Run> {
        &self.shared.actions
    }

    /// Polls the control file, and writes the status if it has changed, on this thread. For a job with a
    /// manual [`WatchMode`] nothing else does this outside of runs.
    pub fn poll(&self) {
        if let Some(listener) = &self.listener {
            listener.poll_now();
        }
        // Does nothing in a callback of the thread that has the statistics, since that thread settles again
        // later.
        let _ = self
            .shared
            .with_statistics(|statistics| self.shared.settle(statistics));
    }

    /// Ends every pause and suspension, now and later, so that launches are no longer delayed. Limits stay in
    /// force.
    ///
    /// A sleeping job tries once to wake, even if another job has the device. If that is refused, its runs go
    /// on while the allocators are asleep and refuse requests, until the program calls
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
        // First, so that no thread stays in a pause during the rest.
        self.shared.cancel();
        drop(self.handle.take());
        let shared = &*self.shared;
        shared.record_queued();
        // Relaxed: the combiner orders this before the loads.
        shared.ends.store(1, Ordering::Relaxed);
        let _ = shared.with_statistics(|statistics| shared.settle(statistics));
        if let Some(thread) = self.thread.take() {
            thread::end(shared, thread);
        }
    }
}

/// Returns the PCI bus id of a context's device.
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
