//! One run of a worker in a process, and the worker's line of output.

use std::io::{self, Read};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

use super::frames::Frames;
use super::rounds::Settings;
use super::tail::{CallTail, SHARE_OF_TAIL};
use super::workers::{Profile, Worker};
use super::workloads::{Kind, SERVER_SECONDS, Workload};

/// The interval at which a running worker is polled. It is long because the worker may run on the same core.
const GLANCE: Duration = Duration::from_millis(5);

/// The worker's command that prepares the machine's memory. Without it, the time of a run in a virtual machine depends
/// on earlier runs.
const READY_MEMORY: &str = "ready";

/// Maximum number of characters kept of a failed process's stderr.
const MAX_SAID: usize = 300;

/// The measurements of one run. A figure is `None` if the workload or the operating system does not report it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Sample {
    /// Seconds from the first to the last operation.
    pub(crate) seconds: f64,
    pub(crate) operations: u64,
    /// The workload's checksum, which is the same for every allocator that works.
    pub(crate) answer: u64,
    /// Minor page faults during the operations.
    pub(crate) faults: Option<u64>,
    pub(crate) peak_rss_bytes: Option<u64>,
    /// Resident bytes after everything has been freed.
    pub(crate) end_rss_bytes: Option<u64>,
    /// Live bytes and resident bytes at the time when the workload measures its memory.
    pub(crate) live_bytes: Option<u64>,
    pub(crate) live_rss_bytes: Option<u64>,
    /// Times of single frames.
    pub(crate) frames: Option<Frames>,
    /// The calls of malloc, of realloc and of free.
    pub(crate) tail: Option<[CallTail; 3]>,
}

/// The reason for which the figures of a run are missing or do not count.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum RunFault {
    /// The process could not be started, or its end could not be waited for.
    #[error("cannot be run: {0}")]
    NotRun(String),
    /// The process crashed, or reported an error in one line.
    #[error("{status}{}{said}", if said.is_empty() { "" } else { ": " })]
    Ended { status: String, said: String },
    #[error("did not end within {seconds} s")]
    TimedOut { seconds: u64 },
    #[error("printed no measurement of this run: {0}")]
    NoSample(String),
    /// The operating system does not allow the workload. Nothing has failed.
    #[error("{0}")]
    Skipped(String),
    /// The process's answer differs from the others'.
    #[error("answer {answer} where {expected} is right")]
    WrongAnswer { answer: u64, expected: u64 },
}

impl From<io::Error> for RunFault {
    fn from(error: io::Error) -> Self {
        Self::NotRun(error.to_string())
    }
}

/// Prepares the machine's memory, and runs a workload once.
pub(crate) fn run(
    worker: &Worker,
    workload: &Workload,
    settings: &Settings,
) -> Result<Sample, RunFault> {
    // If this fails for lack of memory, the run may still succeed.
    let _ = printed(
        Command::new(&worker.program).arg(READY_MEMORY),
        settings.limit,
    );
    let share = match worker.profile {
        Profile::Tail if workload.kind != Kind::Cliff => SHARE_OF_TAIL,
        _ => 1.0,
    };
    let mut command = Command::new(&worker.program);
    command
        .arg(workload.name)
        .args(["--scale", &(settings.scale * share).to_string()]);
    if workload.threads == 1 {
        command.arg("--pin");
    }
    // `server` has a fixed duration, and the limit is for the rest of its work.
    let told = match workload.kind {
        Kind::Memory => settings.scale * f64::from(SERVER_SECONDS),
        _ => 0.0,
    };
    let limit = settings.limit.saturating_add(Duration::from_secs_f64(told));
    let printed = printed(&mut command, limit)?;
    parse(&printed.out, worker.allocator.name, workload.name)
}

/// The output of a process that succeeded.
#[derive(Debug)]
pub(super) struct Printed {
    /// The output on stdout.
    pub(super) out: String,
    /// The output on stderr.
    pub(super) said: String,
}

/// Runs a process to its end.
pub(super) fn printed(command: &mut Command, limit: Duration) -> Result<Printed, RunFault> {
    command
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let Some(status) = wait(&mut child, limit)? else {
        let seconds = limit.as_secs();
        return Err(RunFault::TimedOut { seconds });
    };
    // The output must fit into the pipes; a process with more output blocks until it is stopped.
    let (mut out, mut said) = (Vec::new(), Vec::new());
    if let Some(mut pipe) = child.stdout.take() {
        pipe.read_to_end(&mut out)?;
    }
    if let Some(mut pipe) = child.stderr.take() {
        pipe.read_to_end(&mut said)?;
    }
    let [out, said] = [out, said].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    if !status.success() {
        return Err(RunFault::Ended {
            status: status.to_string(),
            said: in_one_line(&said),
        });
    }
    Ok(Printed { out, said })
}

/// Returns the beginning of a process's message in one line, without Valgrind's lines.
fn in_one_line(said: &str) -> String {
    let own = said.lines().filter(|line| !line.starts_with("=="));
    let lines: Vec<&str> = own.map(str::trim).collect();
    lines.join(" ").trim().chars().take(MAX_SAID).collect()
}

/// Waits for a process. Returns `None` if the process reached the limit and was stopped.
fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<std::process::ExitStatus>> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if started.elapsed() >= limit {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(GLANCE);
    }
}

/// Parses the sample in a worker's output. Returns an error if there is no valid sample or it belongs to another run.
pub(crate) fn parse(printed: &str, allocator: &str, workload: &str) -> Result<Sample, RunFault> {
    let no_sample = |error: serde_json::Error| RunFault::NoSample(error.to_string());
    let line: Value = serde_json::from_str(printed.trim()).map_err(no_sample)?;
    if line["workload"] != workload || line["allocator"] != allocator {
        let (of, on) = (&line["workload"], &line["allocator"]);
        return Err(RunFault::NoSample(format!("it is about {of} on {on}")));
    }
    if let Some(why) = line["skipped"].as_str() {
        return Err(RunFault::Skipped(why.to_owned()));
    }
    let sample: Sample = serde_json::from_value(line).map_err(no_sample)?;
    // Ratios need figures above zero.
    if !(sample.seconds.is_finite() && sample.seconds > 0.0 && sample.operations > 0) {
        let (seconds, operations) = (sample.seconds, sample.operations);
        return Err(RunFault::NoSample(format!(
            "{operations} operations in {seconds} s"
        )));
    }
    Ok(sample)
}
