//! Replays a recorded trace as a job under control: memory of the device and of the host behind it, each step
//! a run, and every block checked.
//!
//! The device's allocator begins with the given limit, 0 if a coordinator will set one. So jobs never hold
//! more than was promised to them, from their first byte on.

#[allow(
    unsafe_code,
    reason = "a buffer that is not filled is unsafe to make; its ends are written before they are read"
)]
mod blocks;
mod script;

use std::num::NonZeroU32;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use larder_control::Ceiling;
use larder_cuda::control::{Apply, Job, JobConfig, JobError, JobFiles, RunEnd};
use larder_cuda::driver::{Choice, LoadError};
use larder_cuda::{
    Context, CudaStream, DeviceAllocError, DeviceAllocator, DeviceConfig, DriverError, HostSide,
    VmemAllocator, VmemConfig,
};
use serde::Serialize;

use crate::device::use_driver;
use blocks::Blocks;
use larder_trace::Event;
pub use script::JobScript;

/// The memory that serves when the device's limit is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Host {
    /// Pinned memory of the host
    Pinned,
    /// Nothing: the job waits before each pass until its limit is what it wants
    None,
}

/// When a job ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// After playing each trace this many times, one trace after the other.
    Passes(NonZeroU32),
    /// After this time, playing all traces in turn, in whole passes.
    Time(Duration),
}

/// The settings of a job.
#[derive(Clone, PartialEq, Debug)]
pub struct Play {
    /// The job's name, for the status.
    pub name: String,
    /// The job's priority, for the coordinator.
    pub priority: i64,
    /// The control file; without one the limit stays.
    pub control: Option<PathBuf>,
    /// The status file.
    pub status: Option<PathBuf>,
    /// The limit that the job begins with.
    pub limit_bytes: u64,
    /// The memory that serves when the device's limit is reached.
    pub host: Host,
    /// When the job ends.
    pub until: Until,
    /// The driver to use.
    pub driver: Choice,
}

/// The figures of a job that ended.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Figures {
    /// Whole passes over a trace.
    pub passes: u64,
    /// Steps of all passes.
    pub runs: u64,
    /// Blocks allocated.
    pub allocations: u64,
    /// Blocks that were on the device when they were allocated.
    pub on_device: u64,
    /// Blocks that were on the host when they were allocated.
    pub on_host: u64,
    /// Bytes that moved from the host to the device between steps.
    pub moved_bytes: u64,
    /// Bytes at the ends of blocks that were not as they had been written.
    pub wrong_bytes: u64,
    /// Ends of runs at which the limit differed from that at the end before.
    pub limit_changes: u64,
    /// Ends of runs at which the job held more than the limit.
    pub deferred_runs: u64,
    /// The most bytes that were held from the device at the end of a run.
    pub peak_held_bytes: u64,
    /// The highest limit at the end of a run, in bytes.
    pub peak_limit_bytes: u64,
    /// The hash of all bytes that were read, in the order of the frees.
    pub digest: String,
}

/// Why a job ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlayError {
    /// The driver was not found.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The driver refused a call.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The driver refused a call of cudarc.
    #[error("the driver refused: {0}")]
    Cudarc(#[from] cudarc::driver::DriverError),
    /// The allocator could not be made.
    #[error(transparent)]
    Memory(#[from] DeviceAllocError),
    /// The files cannot be used.
    #[error(transparent)]
    Job(#[from] JobError),
    /// Memory was refused on every side.
    #[error("{bytes} bytes were refused: {why}")]
    Refused {
        /// How many.
        bytes: u64,
        /// In words.
        why: String,
    },
    /// A size that this machine cannot address.
    #[error("a block of {bytes} bytes is too large; scale the trace down")]
    TooLarge {
        /// The size.
        bytes: u64,
    },
    /// An action of the job failed.
    #[error("the end of a run failed: {0}")]
    Run(String),
}

/// Ends a job from another thread, between two passes; the job's pauses end at once.
#[derive(Debug)]
pub struct Stopper {
    job: Weak<Job>,
    end: Sender<()>,
}

impl Stopper {
    /// Asks the job to end.
    pub fn stop(&self) {
        let _ = self.end.send(());
        if let Some(job) = self.job.upgrade() {
            job.cancel();
        }
    }
}

/// A job that ends when this is dropped. A [`Stopper`] holds the job for a moment: if it dropped it last, the
/// process might end before the job's last status is written.
struct Owned(Option<Arc<Job>>);

impl Owned {
    fn downgrade(&self) -> Weak<Job> {
        self.0.as_ref().map_or_else(Weak::new, Arc::downgrade)
    }
}

impl Deref for Owned {
    type Target = Job;

    fn deref(&self) -> &Job {
        // Taken by `drop` only.
        match &self.0 {
            Some(job) => job,
            None => unreachable!("used after its end"),
        }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        while let Some(job) = self.0.take() {
            if let Err(job) = Arc::try_unwrap(job) {
                self.0 = Some(job);
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// The memory of a job.
struct Memory {
    vmem: VmemAllocator,
    stream: Arc<CudaStream>,
}

/// Plays traces as a job. `running` is called once it obeys its files.
///
/// # Errors
/// Memory was refused on every side, or the driver refused something; the status says that it ended.
pub fn play(
    play: &Play,
    scripts: &[JobScript],
    running: impl FnOnce(Stopper),
) -> Result<Figures, PlayError> {
    use_driver(play.driver)?;
    let max = scripts.iter().map(|script| script.peak_bytes).max();
    let memory = Memory::new(play, max.unwrap_or(0))?;
    let job = Owned(Some(Arc::new(Job::new(play.config())?)));
    let (end, ended) = mpsc::channel();
    let wants = |script: &JobScript| job.want(script.wanted_bytes());
    if let Some(first) = scripts.first() {
        wants(first);
    }
    job.manage_vmem(&memory.vmem)?;
    running(Stopper {
        job: job.downgrade(),
        end,
    });
    let mut blocks = Blocks::new(&memory.vmem, &memory.stream, job.pacer());
    let mut figures = Figures::default();
    let mut limit = memory.vmem.device().limit_bytes();
    let start = Instant::now();
    for (turn, script) in turns(scripts, play.until) {
        if matches!(play.until, Until::Time(time) if start.elapsed() >= time) {
            break;
        }
        if ended.try_recv().is_ok() {
            break;
        }
        wants(script);
        if play.host == Host::None && memory.wait_for(script.wanted_bytes(), &job, &ended) {
            break;
        }
        blocks.begin_pass(turn);
        for segment in &script.segments {
            let graph = turn % scripts.len().max(1) as u64;
            run(&job, graph, segment, &mut blocks, &mut figures)?;
            blocks.migrate(&mut figures);
            memory.note(&mut figures, &mut limit);
        }
        blocks.free_all(&mut figures)?;
        figures.passes += 1;
    }
    blocks.free_all(&mut figures)?;
    figures.digest = format!("{:016x}", blocks.digest());
    Ok(figures)
}

/// The order in which scripts are played, with the number of the pass; without end if the job ends by time.
fn turns(scripts: &[JobScript], until: Until) -> Box<dyn Iterator<Item = (u64, &JobScript)> + '_> {
    match until {
        Until::Passes(passes) => Box::new(
            (0..).zip(
                scripts
                    .iter()
                    .flat_map(move |script| (0..passes.get()).map(move |_| script)),
            ),
        ),
        Until::Time(_) => Box::new((0..).zip(scripts.iter().cycle())),
    }
}

fn run(
    job: &Job,
    graph: u64,
    segment: &[Event],
    blocks: &mut Blocks<'_>,
    figures: &mut Figures,
) -> Result<(), PlayError> {
    let work = || -> Result<(), PlayError> {
        for event in segment {
            match *event {
                Event::Alloc { id, bytes } => blocks.alloc(id, bytes, figures)?,
                Event::Free { id } => blocks.free(id, figures)?,
                Event::Step { .. } => {}
            }
        }
        Ok(())
    };
    let ran = job.run(graph, work);
    let (worked, _): (_, RunEnd) = ran.map_err(|error| PlayError::Run(error.to_string()))?;
    worked?;
    figures.runs += 1;
    Ok(())
}

impl Play {
    fn config(&self) -> JobConfig {
        let files = JobFiles {
            control: self.control.clone(),
            status: self.status.clone(),
        };
        JobConfig {
            priority: Some(self.priority),
            // The job may begin with a limit of 0, so its initial limit must not be the ceiling.
            ceiling: Ceiling::None,
            // A suspended step ends when the job is resumed; memory need not wait for that.
            apply: Apply::AtOnce,
            ..JobConfig::new(&self.name, files)
        }
    }
}

impl Memory {
    fn new(play: &Play, peak_bytes: u64) -> Result<Self, PlayError> {
        let context = Context::new(0)?;
        let device = DeviceAllocator::with_config(&context, DeviceConfig::new())?;
        let answer = device.set_limit(play.limit_bytes);
        debug_assert_eq!(answer, larder_core::limits::LimitAnswer::Applied);
        let host = match play.host {
            // All of it at once may be on the host, with gaps.
            Host::Pinned => HostSide::Pinned(peak_bytes.saturating_mul(2).saturating_add(64 << 20)),
            Host::None => HostSide::None,
        };
        let config = VmemConfig {
            // The device is shared: what it has in all says nothing of this job.
            planned_percent: u32::MAX,
            ..VmemConfig::new(host)
        };
        Ok(Self {
            vmem: VmemAllocator::new(&device, config)?,
            stream: context.cudarc().new_stream()?,
        })
    }

    /// Waits until the limit allows this many bytes, polling a hundred times a second; true if the job is to
    /// end.
    fn wait_for(&self, bytes: u64, job: &Job, ended: &Receiver<()>) -> bool {
        while self.vmem.device().limit_bytes() < bytes {
            if ended.recv_timeout(Duration::from_millis(10)).is_ok() {
                return true;
            }
            job.poll();
        }
        false
    }

    fn note(&self, figures: &mut Figures, last_limit: &mut u64) {
        let device = self.vmem.device();
        let held = device.stats().reserved_bytes;
        let limit = device.limit_bytes();
        let before = core::mem::replace(last_limit, limit);
        figures.limit_changes += u64::from(before != limit);
        figures.peak_held_bytes = held.max(figures.peak_held_bytes);
        figures.peak_limit_bytes = limit.max(figures.peak_limit_bytes);
        figures.deferred_runs += u64::from(held > limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_ends_where_it_was_made_whoever_else_has_it_just_then() {
        let files = JobFiles {
            control: None,
            status: None,
        };
        let job = Job::new(JobConfig::new("a", files)).unwrap();
        let owned = Owned(Some(Arc::new(job)));
        let seen = owned.downgrade();
        let stopper = seen.upgrade().unwrap();
        let stopping = thread::spawn(move || {
            thread::sleep(Duration::from_millis(100));
            drop(stopper);
        });
        drop(owned);
        assert!(seen.upgrade().is_none(), "it has ended");
        stopping.join().unwrap();
    }
}
