//! The trace of a process heap, played by real heaps.
//!
//! Each run is a process of its own, which allocates and frees the trace's blocks on one thread and
//! writes to each page of a new block. The parent passes the events through a pipe, so that the
//! process has little memory besides the heap's. Peers that are installed as libraries replace
//! `malloc` in their processes.

mod child;
#[expect(unsafe_code, reason = "calls `GlobalAlloc`")]
mod player;
mod report;

use std::io::{self, BufWriter, Write};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

pub(crate) use child::{PlayHeapArgs, play_heap};
pub(crate) use report::HeapReport;

use super::RecordedTape;
use super::tape::TapeAction;
use crate::interrupt;

/// Runs for each heap. The heaps take turns, and medians are reported.
const ROUNDS: usize = 3;

/// A heap that plays traces.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeapSpec {
    /// The name in tables and for the child process.
    pub(crate) name: &'static str,
    /// The library that replaces `malloc`, if the heap is not in this program or in the C library.
    pub(crate) library: Option<&'static str>,
}

/// The heaps, in the order of the table.
pub(crate) const HEAPS: [HeapSpec; 6] = [
    HeapSpec {
        name: "larder",
        library: None,
    },
    HeapSpec {
        name: "larder-speed",
        library: None,
    },
    HeapSpec {
        name: "larder-memory",
        library: None,
    },
    HeapSpec {
        name: SYSTEM,
        library: None,
    },
    HeapSpec {
        name: "jemalloc",
        library: Some("libjemalloc.so.2"),
    },
    HeapSpec {
        name: "mimalloc",
        library: Some("libmimalloc.so.2"),
    },
];

/// Number of runs for each trace.
pub(crate) const HEAP_RUNS: u64 = (ROUNDS * HEAPS.len()) as u64;

/// The `malloc` of the C library, or of a library that replaces it.
const SYSTEM: &str = "system";

/// The measurements of one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct HeapRun {
    pub(crate) operations: u64,
    pub(crate) nanoseconds: u64,
    /// Peak resident bytes beyond those before the first event; `None` if the system does not report
    /// them.
    pub(crate) peak_resident_bytes: Option<u64>,
    /// Resident bytes over time: the number of events played, and the bytes.
    pub(crate) resident: Vec<(u64, u64)>,
}

/// The reason why a heap has no figures.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HeapFault {
    #[error("{library} is not installed")]
    NotInstalled { library: &'static str },
    #[error("the process failed: {0}")]
    Failed(String),
    #[error("the trace cannot be played: {0}")]
    NotPlayed(#[from] io::Error),
    /// The user pressed Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

/// The runs of one heap, or the reason why there is none.
type HeapRuns = Result<Vec<HeapRun>, HeapFault>;

/// Plays a trace on all heaps, and reports each run's end to `ended`. Returns the runs of each heap.
pub(crate) fn play_all(
    tape: &mut RecordedTape,
    ended: &dyn Fn(&HeapSpec),
) -> Result<Vec<(HeapSpec, HeapRuns)>, HeapFault> {
    let mut heaps: Vec<_> = HEAPS.map(|spec| (spec, Ok(Vec::new()))).into();
    for _ in 0..ROUNDS {
        for (spec, runs) in &mut heaps {
            if let Ok(all) = runs {
                match play(spec, tape) {
                    _ if interrupt::asked() => return Err(HeapFault::Interrupted),
                    Ok(run) => all.push(run),
                    Err(fault @ HeapFault::NotPlayed(_)) => return Err(fault),
                    Err(fault) => *runs = Err(fault),
                }
            }
            ended(spec);
        }
    }
    Ok(heaps)
}

/// Plays a trace once, in a process of its own.
fn play(spec: &HeapSpec, tape: &mut RecordedTape) -> Result<HeapRun, HeapFault> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["play-heap", spec.name])
        .args(["--places", &tape.places.to_string()])
        .args(["--events", &tape.tape.events().to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.env_remove("LD_PRELOAD");
    if let Some(library) = spec.library {
        command
            .args(["--library", library])
            .env("LD_PRELOAD", library);
    }
    let mut child = command.spawn()?;
    let written = child.stdin.take().map_or(Ok(()), |pipe| send(tape, pipe));
    let output = child.wait_with_output()?;
    if output.status.code() == Some(NOT_INSTALLED.into())
        && let Some(library) = spec.library
    {
        return Err(HeapFault::NotInstalled { library });
    }
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(HeapFault::Failed(format!(
            "{}: {}",
            output.status,
            said.trim()
        )));
    }
    written?;
    serde_json::from_slice(&output.stdout).map_err(|error| HeapFault::Failed(error.to_string()))
}

/// The exit code of a process without the library that it should have.
const NOT_INSTALLED: u8 = 9;

/// Sends all allocations and frees of a trace, each as two numbers: the block's place, and its bytes,
/// which are 0 for a free.
fn send(tape: &mut RecordedTape, pipe: impl Write) -> io::Result<()> {
    let mut pipe = BufWriter::with_capacity(1 << 16, pipe);
    let mut batches = tape.tape.batches()?;
    loop {
        let batch = batches.next()?;
        if batch.is_empty() {
            return pipe.flush();
        }
        for event in batch {
            let (place, bytes) = match event.act {
                TapeAction::Alloc { place, bytes, .. } => (place, bytes),
                TapeAction::Free { place } => (place, 0),
                TapeAction::Step { .. } | TapeAction::StartOver => continue,
            };
            pipe.write_all(&(place as u64).to_le_bytes())?;
            pipe.write_all(&bytes.to_le_bytes())?;
        }
    }
}
