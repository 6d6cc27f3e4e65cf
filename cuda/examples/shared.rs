//! One job of several on a GPU: fills and copies memory in steps, and obeys its control file meanwhile.
//!
//! ```text
//! export GPU_CONFIG_FILE=/tmp/a_control.json GPU_STATUS_FILE=/tmp/a_status.json
//! LARDER_CUDA_DRIVER=stand-in cargo run --release -p larder-cuda --example shared -- 60
//! # meanwhile, in another terminal; the name is the GPU's, as in the status:
//! echo '{"gpuConfigInfo": {"01:00.0": {"maxDeviceMem": 33554432}}, "perfControl": 25}' > /tmp/a_control.json
//! ```
//!
//! It keeps as many buffers as its limit allows, up to 64 MiB, and drops some when an order lowers it. The
//! argument is the number of seconds to run, 5 by default.

use std::error::Error;
use std::time::{Duration, Instant};

use larder_cuda::driver::load_from_env;
use larder_cuda::job::{Job, JobConfig, JobFiles};
use larder_cuda::{Context, DeviceAllocator, DeviceBuffer};

/// Bytes of one buffer.
const BYTES: usize = 4 << 20;
/// Maximum number of buffers.
const BUFFERS: usize = 16;

/// Result of the steps.
#[derive(Default, Debug)]
struct Done {
    steps: u64,
    /// Buffers that the limit refused.
    refused: u64,
    max_buffers: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    let seconds = std::env::args().nth(1).map_or(Ok(5), |text| text.parse())?;
    println!("{}", load_from_env()?);
    let job = Job::new(JobConfig::new("shared", JobFiles::from_env()))?;
    let start = Instant::now();
    let time = Duration::from_secs(seconds);
    let done = work(&job, || start.elapsed() < time)?;
    println!("{done:?} {:?}", job.state());
    Ok(())
}

/// Runs steps for as long as `goes_on` returns true.
fn work(job: &Job, mut goes_on: impl FnMut() -> bool) -> Result<Done, Box<dyn Error>> {
    let context = Context::new(0)?;
    let memory = DeviceAllocator::new(&context)?;
    job.manage(&memory)?;
    job.want((BUFFERS * BYTES) as u64);
    let (stream, pacer) = (context.cudarc().new_stream()?, job.pacer());
    let mut buffers: Vec<DeviceBuffer<u8>> = Vec::new();
    let mut done = Done::default();
    while goes_on() {
        let (step, end) = job.run_on(&stream, 0, || -> Result<(), Box<dyn Error>> {
            if buffers.len() < BUFFERS {
                match memory.zeros(&stream, BYTES) {
                    Ok(buffer) => buffers.push(buffer),
                    Err(_) => done.refused += 1,
                }
            }
            for buffer in &mut buffers {
                pacer.launch();
                stream.memset_zeros(buffer)?;
            }
            stream.synchronize()?;
            Ok(())
        })?;
        step?;
        for warning in end.warnings {
            eprintln!("{warning}");
        }
        done.steps += 1;
        done.max_buffers = done.max_buffers.max(buffers.len());
        // Memory held above a lowered limit is ours to drop.
        let excess = memory
            .pool_stats()
            .pool_bytes
            .saturating_sub(memory.limit_bytes());
        let dropped = excess.div_ceil(BYTES as u64) as usize;
        buffers.truncate(buffers.len().saturating_sub(dropped));
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lowered_limit_is_met_by_dropping_buffers() -> Result<(), Box<dyn Error>> {
        if load_from_env()?.stand_in().is_none() {
            println!("skipped: the order names the stand-in's device");
            return Ok(());
        }
        let folder = std::env::temp_dir().join(format!("larder-shared-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let control = folder.join("control.json");
        let files = JobFiles {
            control: Some(control.clone()),
            status: Some(folder.join("status.json")),
        };
        let job = Job::new(JobConfig::new("shared", files))?;
        let mut steps = 0;
        let done = work(&job, || {
            steps += 1;
            if steps == 10 {
                let order = r#"{"gpuConfigInfo": {"01:00.0": {"maxDeviceMem": 16777216}}}"#;
                let _ = std::fs::write(&control, order);
                job.poll();
            }
            steps < 20
        })?;
        assert_eq!((done.steps, done.max_buffers), (19, 9));
        assert!(done.refused > 0);
        let status = std::fs::read_to_string(folder.join("status.json"))?;
        assert!(status.contains(r#""limitBytes": 16777216"#), "{status}");
        assert!(status.contains(r#""deferredBytes": 0"#), "{status}");
        std::fs::remove_dir_all(&folder)?;
        Ok(())
    }
}
