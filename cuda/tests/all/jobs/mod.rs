//! Jobs on the stand-in: real allocators and launches obey control files, and statuses report them.
#![cfg(feature = "job")]

use crate::common;

mod endings;
mod files;
mod foreign;
mod limits;
mod lives;
mod pacing;
mod queued;
mod sleeping;
mod status;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::CudaStream;
use larder_cuda::job::larder_control::{
    BusId, ControlFile, JobReport, JobStatus, ListenerConfig, ManualClock, StatusFile, WatchMode,
};
use larder_cuda::job::{Job, JobConfig, JobFiles, RunEnd};
use larder_cuda::{ArenaPolicy, Context, DeviceAllocator, DeviceConfig};

use common::{MIB, alone_and_clean, driver};

/// The stand-in's first device.
fn gpu() -> BusId {
    "01:00.0".parse().unwrap()
}

struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("larder-jobs-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn files(&self) -> JobFiles {
        JobFiles {
            control: Some(self.0.join("control.json")),
            status: Some(self.0.join("status.json")),
        }
    }

    fn say(&self, text: &str) {
        std::fs::write(self.0.join("control.json"), text).unwrap();
    }

    fn tell(&self, change: impl FnOnce(&mut ControlFile)) {
        let mut file = ControlFile::default();
        change(&mut file);
        self.say(&file.to_text());
    }

    /// Writes a control file with a limit in MiB, its version, and a share of the time.
    fn order(
        &self,
        mebibytes: impl Into<Option<u64>>,
        version: impl Into<Option<u64>>,
        perf: impl Into<Option<i32>>,
    ) {
        self.tell(|file| {
            if let Some(mebibytes) = mebibytes.into() {
                file.limit(gpu(), mebibytes * MIB);
            }
            file.control_version = version.into();
            file.perf_control = perf.into();
        });
    }

    fn status(&self) -> StatusFile {
        StatusFile::parse(std::fs::read(self.0.join("status.json")).unwrap()).unwrap()
    }

    fn larder(&self) -> JobStatus {
        self.status().larder.unwrap()
    }

    fn report(&self) -> JobReport {
        self.status().report(gpu()).unwrap()
    }

    fn has_status(&self) -> bool {
        Path::exists(&self.0.join("status.json"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns a configuration with which a job polls only in runs and when the test calls `poll`.
fn by_hand(folder: &Folder) -> JobConfig {
    let mut config = JobConfig::new("test", folder.files());
    config.listener = looking(WatchMode::Manual);
    config
}

fn with_thread(folder: &Folder) -> JobConfig {
    let mut config = JobConfig::new("test", folder.files());
    config.listener = looking(WatchMode::Poll);
    config.listener.interval = Duration::from_millis(1);
    config
}

fn looking(looking: WatchMode) -> ListenerConfig {
    let mut config = ListenerConfig::default();
    config.watch_mode = looking;
    config
}

fn job(config: JobConfig) -> (Arc<ManualClock>, Job) {
    let clock = Arc::new(ManualClock::new());
    let job = Job::with_clock(config, clock.clone()).unwrap();
    (clock, job)
}

/// Waits until another thread makes `holds` true. Fails after a time that no machine needs.
#[track_caller]
fn until(mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(20), "never came true");
        thread::yield_now();
    }
}

/// Returns settings without stream arenas, so that a test knows the exact number of bytes held.
fn plain(limit_bytes: u64) -> DeviceConfig {
    DeviceConfig {
        limit_bytes,
        arenas: ArenaPolicy::Never,
        check_captures: false,
        ..DeviceConfig::new()
    }
}

fn setup(limit_bytes: u64) -> (Context, DeviceAllocator, Arc<CudaStream>) {
    let context = Context::new(0).unwrap();
    let memory = DeviceAllocator::with_config(&context, plain(limit_bytes)).unwrap();
    let stream = context.cudarc().new_stream().unwrap();
    (context, memory, stream)
}

/// Returns the bytes of the first device that the driver has allocated.
fn used() -> u64 {
    driver().stand_in().unwrap().used(0)
}

/// A job that polls by hand, and the memory that it manages.
struct Rig {
    job: Job,
    memory: DeviceAllocator,
    stream: Arc<CudaStream>,
    context: Context,
    clock: Arc<ManualClock>,
    folder: Folder,
}

impl Rig {
    /// Makes the job before its allocator, so that the job has already read its control file.
    fn new(memory: DeviceConfig, folder: Folder, config: JobConfig) -> Arc<Self> {
        let (clock, job) = job(config);
        let context = Context::new(0).unwrap();
        let memory = DeviceAllocator::with_config(&context, memory).unwrap();
        job.manage(&memory).unwrap();
        Arc::new(Self {
            job,
            memory,
            stream: context.cudarc().new_stream().unwrap(),
            context,
            clock,
            folder,
        })
    }

    /// Writes a control file and polls it.
    fn tell(&self, change: impl FnOnce(&mut ControlFile)) {
        self.folder.tell(change);
        self.job.poll();
    }

    fn order(
        &self,
        mebibytes: impl Into<Option<u64>>,
        version: impl Into<Option<u64>>,
        perf: impl Into<Option<i32>>,
    ) {
        self.folder.order(mebibytes, version, perf);
        self.job.poll();
    }

    fn limit(&self) -> u64 {
        self.memory.limit_bytes() / MIB
    }

    fn larder(&self) -> JobStatus {
        self.folder.larder()
    }

    fn report(&self) -> JobReport {
        self.folder.report()
    }

    fn run(&self, work: impl FnOnce()) -> RunEnd {
        self.job.run(0, work).unwrap().1
    }

    /// Calls `act` at a time of the job's clock, on the thread that is then waiting.
    fn at(self: &Arc<Self>, time: Duration, act: impl FnOnce(&Self) + Send + 'static) {
        let rig = Arc::clone(self);
        self.clock.at(time, move || act(&rig));
    }
}

/// Runs a test with a job and 64 MiB of memory, and checks that nothing is left.
#[track_caller]
fn with_job(test: impl FnOnce(&Arc<Rig>)) {
    with_config(|_, _| (), test);
}

/// Does the same with other settings.
#[track_caller]
fn with_config(
    change: impl FnOnce(&mut DeviceConfig, &mut JobConfig),
    test: impl FnOnce(&Arc<Rig>),
) {
    alone_and_clean(|_| {
        let folder = Folder::new();
        let (mut memory, mut config) = (plain(64 * MIB), by_hand(&folder));
        change(&mut memory, &mut config);
        test(&Rig::new(memory, folder, config));
    });
}
