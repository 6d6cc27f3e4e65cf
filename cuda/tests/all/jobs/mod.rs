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

use cudarc::driver::CudaStream;
use larder_cuda::job::larder_control::{
    BusId, ControlFile, ListenerConfig, ManualClock, StatusFile, WatchMode,
};
use larder_cuda::job::{Job, JobConfig, JobFiles};
use larder_cuda::{ArenaPolicy, Context, DeviceAllocator, DeviceConfig};

/// The stand-in's first device.
fn gpu() -> BusId {
    "01:00.0".parse().unwrap()
}

/// A folder of a test's own, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("larder-jobs-{}-{test}", std::process::id()));
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

    /// A limit, its number, and a share.
    fn order(&self, limit_bytes: Option<u64>, version: Option<u64>, perf: Option<i32>) {
        let mut file = ControlFile::default();
        if let Some(bytes) = limit_bytes {
            file.limit(gpu(), bytes);
        }
        file.control_version = version;
        file.perf_control = perf;
        self.say(&file.to_text());
    }

    fn status(&self) -> StatusFile {
        StatusFile::parse(std::fs::read(self.0.join("status.json")).unwrap()).unwrap()
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

/// Looked at by hand: nothing happens but what a test does.
fn by_hand(folder: &Folder) -> JobConfig {
    let mut config = JobConfig::new("test", folder.files());
    config.listener = looking(WatchMode::Manual);
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

/// Pages of the device's own, and no memory set aside for small blocks.
fn plain(limit_bytes: u64) -> DeviceConfig {
    DeviceConfig {
        limit_bytes,
        arenas: ArenaPolicy::Never,
        check_captures: false,
        ..DeviceConfig::new()
    }
}

/// A device, its memory and a stream.
fn setup(limit_bytes: u64) -> (Context, DeviceAllocator, Arc<CudaStream>) {
    let context = Context::new(0).unwrap();
    let memory = DeviceAllocator::with_config(&context, plain(limit_bytes)).unwrap();
    let stream = context.cudarc().new_stream().unwrap();
    (context, memory, stream)
}
