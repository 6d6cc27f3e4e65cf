//! `larder job`: replays recorded traces as a job that obeys its control file.

#[allow(
    unsafe_code,
    reason = "a buffer that is not filled is unsafe to make; its ends are written before they are read"
)]
mod blocks;
mod cache;
mod play;
mod script;
mod status;

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use larder_control::Ceiling;
use larder_cuda::driver::Choice;
use larder_cuda::job::{self as config, Apply, JobConfig};
use larder_trace::Trace;

use crate::arguments::{driver, parse_interval, parse_limit};
use crate::embedded_stand_in::load;
use crate::files::JobPaths;
use crate::{Failure, note, print_json};
use script::JobScript;

/// Replays traces as one of several jobs on a GPU: it obeys its control file, writes its status,
/// and checks what it wrote.
///
/// Exits with 1 if a byte was not as it had been written, or if neither device nor host had memory.
#[derive(Debug, Args)]
pub struct JobArgs {
    /// Traces in format v1, memory snapshots of PyTorch of one device, or logs of RMM's logging
    /// adaptor, played one after the other
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,

    /// The folder of both files, `NAME.control.json` and `NAME.status.json`
    #[arg(long = "in", value_name = "FOLDER", conflicts_with_all = ["control", "status"])]
    folder: Option<PathBuf>,

    /// The control file
    #[arg(long, value_name = "FILE")]
    control: Option<PathBuf>,

    /// The status file
    #[arg(long, value_name = "FILE")]
    status: Option<PathBuf>,

    /// The job's name; by default, that of the first trace
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// The job's priority: higher is more important
    #[arg(long, value_name = "P", default_value = "0", value_parser = clap::value_parser!(i64).range(0..))]
    priority: i64,

    /// How often each trace is played before the next one
    #[arg(
        long,
        value_name = "N",
        default_value = "1",
        conflicts_with = "seconds"
    )]
    passes: NonZeroU32,

    /// Play all traces in turn for this many seconds, and to the end of a pass
    #[arg(long, value_name = "S", value_parser = parse_interval)]
    seconds: Option<Duration>,

    /// The initial limit; by default 0 with a control file, and none without
    #[arg(long, value_name = "N", value_parser = parse_limit)]
    limit: Option<u64>,

    /// Bytes of a cache that the job fills beside the traces while its limit allows
    #[arg(long, value_name = "N", default_value = "0", value_parser = parse_limit)]
    cache: u64,

    /// The part of the cache that the job does not release for the memory of other jobs
    #[arg(long, value_name = "N", default_value = "0", value_parser = parse_limit)]
    guaranteed: u64,

    /// The memory for blocks that do not fit the limit
    #[arg(long, value_name = "WHAT", default_value = "pinned")]
    host: Host,

    /// Divides all sizes
    #[arg(long, value_name = "K", default_value = "1", value_parser = clap::value_parser!(u64).range(1..))]
    scale: u64,

    /// The driver; by default the value of `LARDER_CUDA_DRIVER`, or auto if that is unset
    #[arg(long, value_name = "WHICH", value_parser = driver())]
    driver: Option<Choice>,
}

/// The memory that is used when the device's limit is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Host {
    /// Pinned memory of the host
    Pinned,
    /// None: the job waits before each pass until its limit is what it wants
    None,
}

pub(crate) fn run(args: &JobArgs) -> Result<(), Failure> {
    let wrong = |error: &dyn std::fmt::Display| Failure::Arguments(error.to_string());
    let traces: Result<Vec<_>, _> = args.traces.iter().map(|path| Trace::load(path)).collect();
    let traces = traces.map_err(|error| wrong(&error))?;
    for trace in &traces {
        for said in trace.notes() {
            note(&format_args!("{}: {said}", trace.name()));
        }
    }
    let scripts: Vec<_> = traces
        .iter()
        .map(|trace| JobScript::new(trace, args.scale))
        .collect();
    let config = args.config(traces.first().map_or("job", Trace::name))?;
    let choice = match args.driver {
        Some(choice) => choice,
        None => Choice::from_env()
            .map_err(|error| wrong(&error))?
            .unwrap_or_default(),
    };
    load(choice).map_err(|error| Failure::Failed(error.to_string()))?;
    let figures = play::play(args, config, &scripts)?;
    print_json([&figures])?;
    if figures.wrong_bytes > 0 {
        let error = format!("{} bytes were not as written", figures.wrong_bytes);
        return Err(Failure::Failed(error));
    }
    Ok(())
}

impl JobArgs {
    fn config(&self, trace: &str) -> Result<JobConfig, Failure> {
        let name = self.name.as_deref().unwrap_or(trace);
        let (control, status) = self.files(name)?;
        Ok(JobConfig {
            priority: Some(self.priority),
            // The job may begin with a limit of 0, so its initial limit must not be the ceiling.
            ceiling: Ceiling::None,
            // Limits apply without waiting for the end of a step, which may be suspended.
            apply: Apply::AtOnce,
            ..JobConfig::new(name, config::JobFiles { control, status })
        })
    }

    /// Returns the control file and the status file.
    fn files(&self, name: &str) -> Result<(Option<PathBuf>, Option<PathBuf>), Failure> {
        let Some(folder) = &self.folder else {
            return Ok((self.control.clone(), self.status.clone()));
        };
        if !folder.is_dir() {
            let error = format!("there is no folder {}", folder.display());
            return Err(Failure::Arguments(error));
        }
        if name.is_empty() || name.starts_with('.') || name.contains('/') {
            let error = format!(
                "`{name}` cannot name files: take a name without `/` that does not begin with a point"
            );
            return Err(Failure::Arguments(error));
        }
        let files = JobPaths::ours(folder, name);
        Ok((Some(files.control), Some(files.status)))
    }
}
