//! One process of `larder versus`: runs one workload on the allocator of its build, and prints one line of JSON.
//!
//! `worker WORKLOAD [--scale N] [--check] [--pin]`, or `worker --list`. In place of a workload, `ready`
//! prepares the machine's memory for the next run and prints nothing. Exit codes: 0 for success; 101 or a
//! signal for a failure; 2 for wrong arguments.

mod allocator;
mod arguments;
mod block;
mod clock;
#[cfg(feature = "tail")]
mod histogram;
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
#[cfg(feature = "tail")]
mod tail;
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
        return refuse(&format!(
            "no workload is named `{name}`; try --list, or build this program again if the workload is newer than it"
        ));
    };
    if let Some(why) = workloads::refused(name) {
        let line = json!({"workload": name, "allocator": allocator::NAME, "skipped": why});
        println!("{line}");
        return ExitCode::SUCCESS;
    }
    if pin && let Err(error) = pin::to_one_core() {
        eprintln!("warning: not pinned to one core: {error}");
    }
    #[cfg(feature = "tail")]
    tail::calibrate();
    let outcome = workload(scale);
    // The memory is read before the printing allocates.
    let end = memory::read();
    #[cfg(feature = "tail")]
    let tails = Some(tail::tails().map(tail_json));
    #[cfg(not(feature = "tail"))]
    let tails: Option<()> = None;
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
        "tail": tails,
    });
    println!("{line}");
    ExitCode::SUCCESS
}

/// Formats the figures of one kind of calls.
#[cfg(feature = "tail")]
fn tail_json(tail: tail::CallTail) -> serde_json::Value {
    let longest = tail.longest.iter().filter(|call| call.wall > 0);
    let longest = longest.map(|call| {
        json!({
            "wall_ns": call.wall,
            "processor_ns": call.processor,
            "minor_faults": call.minor_faults,
            "major_faults": call.major_faults,
            "voluntary_switches": call.voluntary_switches,
            "involuntary_switches": call.involuntary_switches,
        })
    });
    json!({
        "count": tail.count,
        "p999_ns": tail.p999,
        "p9999_ns": tail.p9999,
        "processor_ns": tail.processor,
        "clean_ns": tail.clean,
        "longest": longest.collect::<Vec<_>>(),
    })
}

fn refuse(message: &str) -> ExitCode {
    eprintln!("error: {message}\n{USAGE}");
    ExitCode::from(2)
}
