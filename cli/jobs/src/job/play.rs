//! Plays traces as a job: with memory of the device first and of the host second, one run for each
//! step, and every block checked.
//!
//! The device's allocator begins with the given limit, which is 0 if a coordinator will set one. So
//! a job never holds more than it was promised, not even at first.

use std::error::Error;
use std::iter;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use larder_cuda::job::{Job, JobConfig};
use larder_cuda::{
    Context, CudaStream, DeviceAllocator, DeviceConfig, HostSide, VmemAllocator, VmemConfig,
};
use larder_trace::Event;
use serde::Serialize;

use super::blocks::JobBlocks;
use super::cache::JobCache;
use super::script::JobScript;
use super::{Host, JobArgs, status};
use crate::complain;

/// A job's figures, printed as a line of JSON at its end.
#[derive(Debug, Default, Serialize)]
pub(super) struct Figures {
    pub(super) name: String,
    /// Number of complete passes over a trace.
    pub(super) passes: u64,
    /// Number of steps in all passes.
    pub(super) runs: u64,
    /// Number of blocks allocated, and of those that were allocated on the device and on the host.
    pub(super) allocations: u64,
    pub(super) on_device: u64,
    pub(super) on_host: u64,
    /// Bytes that moved from the host to the device between steps.
    pub(super) moved_bytes: u64,
    /// Bytes at the ends of blocks that differed from those written.
    pub(super) wrong_bytes: u64,
    /// Number of runs at whose end the limit differed from that at the previous end.
    pub(super) limit_changes: u64,
    /// Number of runs at whose end the job held more than the limit.
    pub(super) deferred_runs: u64,
    /// Maximum bytes held from the device, and maximum limit, at the end of a run.
    pub(super) peak_held_bytes: u64,
    pub(super) peak_limit_bytes: u64,
    /// Maximum bytes of the cache at the end of a run, and bytes of it released when they were recalled.
    pub(super) peak_cache_bytes: u64,
    pub(super) cache_returned_bytes: u64,
    /// The hash of all bytes that were read, in the order of the frees.
    pub(super) digest: String,
    pub(super) seconds: f64,
}

/// Plays traces as a job. Returns an error if neither device nor host had memory, or if the driver
/// refused a call; the status then says that the job ended.
pub(super) fn play(
    args: &JobArgs,
    config: JobConfig,
    scripts: &[JobScript],
) -> Result<Figures, Box<dyn Error>> {
    let start = Instant::now();
    let unlimited = if config.files.control.is_some() {
        0
    } else {
        u64::MAX
    };
    let peak_bytes = scripts.iter().map(|script| script.peak_bytes).max();
    let limit_bytes = args.limit.unwrap_or(unlimited);
    let (memory, stream) = memory(limit_bytes, args.host, peak_bytes.unwrap_or(0))?;
    let name = config.name.clone();
    let job = Arc::new(Job::new(config)?);
    if let Some(first) = scripts.first() {
        job.want(first.wanted_bytes().saturating_add(args.cache));
    }
    job.manage_vmem(&memory)?;
    let (end, ended) = mpsc::channel();
    let signalled = Arc::downgrade(&job);
    let handler = ctrlc::set_handler(move || {
        let _ = end.send(());
        // Ends pauses of the job immediately.
        if let Some(job) = signalled.upgrade() {
            job.cancel();
        }
    });
    if let Err(error) = handler {
        complain(&format_args!(
            "cannot handle signals, which end the job at once: {error}"
        ));
    }
    let blocks = JobBlocks::new(&memory, &stream, job.pacer());
    let (device, cache_bytes) = (memory.device(), args.cache);
    let cache = JobCache::new(device, &stream, cache_bytes, args.guaranteed)?;
    let figures = status::watched(&job, || {
        play_all(args, scripts, &job, blocks, cache, &ended)
    });
    end_here(job);
    Ok(Figures {
        name,
        seconds: start.elapsed().as_secs_f64(),
        ..figures??
    })
}

/// Ends a job in this thread. The signal handler holds the job for a moment: if it dropped the job
/// last, the process might end before the job's last status is written.
fn end_here(mut job: Arc<Job>) {
    while let Err(held) = Arc::try_unwrap(job) {
        job = held;
        thread::sleep(Duration::from_millis(1));
    }
}

fn play_all(
    args: &JobArgs,
    scripts: &[JobScript],
    job: &Job,
    mut blocks: JobBlocks<'_>,
    mut cache: JobCache<'_>,
    ended: &Receiver<()>,
) -> Result<Figures, Box<dyn Error>> {
    let start = Instant::now();
    let passes = args.passes.get() as usize;
    let turns: Box<dyn Iterator<Item = &JobScript>> = match args.seconds {
        Some(time) => {
            let in_turn = scripts.iter().cycle();
            Box::new(in_turn.take_while(move |_| start.elapsed() < time))
        }
        None => Box::new(
            scripts
                .iter()
                .flat_map(|script| iter::repeat_n(script, passes)),
        ),
    };
    for (turn, script) in (0..).zip(turns) {
        if ended.try_recv().is_ok() {
            break;
        }
        job.want(script.wanted_bytes().saturating_add(args.cache));
        if args.host == Host::None && blocks.wait_for(script.wanted_bytes(), job, ended) {
            break;
        }
        blocks.begin_pass(turn);
        for segment in &script.segments {
            let graph = turn % scripts.len() as u64;
            let ran = job.run(graph, || play_segment(segment, &mut blocks));
            let (played, _) = ran.map_err(|error| format!("the end of a run failed: {error}"))?;
            played?;
            blocks.end_run();
            cache.end_run(&mut blocks.figures)?;
        }
        blocks.free_all()?;
        blocks.figures.passes += 1;
    }
    cache.end(&mut blocks.figures)?;
    Ok(blocks.into_figures())
}

fn play_segment(segment: &[Event], blocks: &mut JobBlocks<'_>) -> Result<(), Box<dyn Error>> {
    for event in segment {
        match *event {
            Event::Alloc { id, bytes } => blocks.alloc(id, bytes)?,
            Event::Free { id } => blocks.free(id)?,
            Event::Step { .. } => {}
        }
    }
    Ok(())
}

/// Creates the memory of a job, and its stream.
fn memory(
    limit_bytes: u64,
    host: Host,
    peak_bytes: u64,
) -> Result<(VmemAllocator, Arc<CudaStream>), Box<dyn Error>> {
    let context = Context::new(0)?;
    let device = DeviceAllocator::with_config(&context, DeviceConfig::new())?;
    let answer = device.set_limit(limit_bytes);
    debug_assert_eq!(answer, larder_core::limits::LimitAnswer::Applied);
    let host = match host {
        // All of the memory may be on the host, with gaps between blocks.
        Host::Pinned => HostSide::Pinned(peak_bytes.saturating_mul(2).saturating_add(64 << 20)),
        Host::None => HostSide::None,
    };
    let config = VmemConfig {
        // The device is shared, so its total says nothing about this job.
        planned_percent: u32::MAX,
        ..VmemConfig::new(host)
    };
    let memory = VmemAllocator::new(&device, config)?;
    Ok((memory, context.cudarc().new_stream()?))
}

#[cfg(test)]
mod tests {
    use larder_cuda::job::JobFiles;

    use super::*;

    #[test]
    fn a_job_ends_where_it_was_made_whoever_else_has_it_just_then() {
        let files = JobFiles {
            control: None,
            status: None,
        };
        let job = Arc::new(Job::new(JobConfig::new("a", files)).unwrap());
        let seen = Arc::downgrade(&job);
        let handler = seen.upgrade().unwrap();
        let stopping = thread::spawn(move || {
            thread::sleep(Duration::from_millis(100));
            drop(handler);
        });
        end_here(job);
        assert!(seen.upgrade().is_none(), "it has ended");
        stopping.join().unwrap();
    }
}
