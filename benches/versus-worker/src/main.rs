//! One process of `larder versus`: runs one workload on the allocator of its build, and prints one line of JSON.
//!
//! `worker WORKLOAD [--scale N] [--check] [--pin]`, or `worker --list`. In place of a workload, `ready`
//! prepares the machine's memory for the next run and prints nothing. Exit codes: 0 for success; 101 or a
//! signal for a failure; 2 for wrong arguments.

mod allocator;
mod arguments;
mod block;
#[cfg(feature = "calls")]
mod calls;
mod clock;
#[allow(dead_code)] // the command uses more of the list than a worker does
#[path = "../../../cli/src/versus/workloads.rs"]
mod list;
mod memory;
mod pin;
mod priority;
mod random;
mod ready;
mod scale;
mod schedule;
mod tally;
mod workloads;

use std::process::ExitCode;

use arguments::{Arguments, USAGE};
use serde_json::json;

fn main() -> ExitCode {
    match Arguments::parse(std::env::args().skip(1)) {
        Ok(Arguments::List) => {
            for workload in list::WORKLOADS {
                println!("{:16} {}", workload.name, workload.about);
            }
            println!("{:16} no workload: readies the machine", ready::NAME);
            ExitCode::SUCCESS
        }
        Ok(Arguments::Run { name, .. }) if name == ready::NAME => {
            ready::ready_memory();
            ExitCode::SUCCESS
        }
        Ok(Arguments::Run { name, scale, pin }) => run(&name, scale, pin),
        Err(message) => refuse(&message),
    }
}

fn run(name: &str, scale: scale::Scale, pin: bool) -> ExitCode {
    let Some(workload) = workloads::find(name) else {
        return refuse(&format!("no workload is named `{name}`; try --list"));
    };
    if let Some(why) = workloads::refused(name) {
        let line = json!({"workload": name, "allocator": allocator::NAME, "skipped": why});
        println!("{line}");
        return ExitCode::SUCCESS;
    }
    if pin && let Err(error) = pin::to_one_core() {
        eprintln!("warning: not pinned to one core: {error}");
    }
    let outcome = workload(scale);
    // The memory is read before the printing allocates.
    let end = memory::read();
    let calls = calls();
    let line = json!({
        "workload": name,
        "allocator": allocator::NAME,
        "seconds": outcome.seconds,
        "operations": outcome.operations,
        "answer": outcome.answer,
        "faults": outcome.faults,
        "peak_rss_bytes": end.map(|memory| memory.peak_rss_bytes),
        "end_rss_bytes": end.map(|memory| memory.rss_bytes),
        "live_bytes": outcome.live.map(|live| live.bytes),
        "live_rss_bytes": outcome.live.and_then(|live| live.rss_bytes),
        "frames": outcome.frames.map(|frames| json!({
            "planned": frames.planned,
            "done": frames.done,
            "p50_us": frames.p50_us,
            "p99_us": frames.p99_us,
            "max_us": frames.max_us,
        })),
        "calls": calls,
    });
    println!("{line}");
    ExitCode::SUCCESS
}

/// Returns the longest calls of each kind, as pairs of wall and processor time in microseconds.
#[cfg(feature = "calls")]
fn calls() -> Option<[[f64; 2]; 3]> {
    Some([&calls::ALLOC, &calls::REALLOC, &calls::FREE].map(calls::Longest::micros))
}

/// Returns `None`, since only builds with the feature `calls` time them.
#[cfg(not(feature = "calls"))]
const fn calls() -> Option<[[f64; 2]; 3]> {
    None
}

fn refuse(message: &str) -> ExitCode {
    eprintln!("error: {message}\n{USAGE}");
    ExitCode::from(2)
}
