//! Measures how long a driver's calls take, and describes its device. Each probe runs in a process of its own,
//! since it may break its context. The conformance tests check Larder's other assumptions, which are not about time.
//!
//! ```text
//! cargo bench -p larder-cuda --bench driver_calls                     all probes
//! cargo bench -p larder-cuda --bench driver_calls -- unmap. sleep.    probes whose names begin with these
//! cargo bench -p larder-cuda --bench driver_calls -- --list           their names
//! cargo bench -p larder-cuda --bench driver_calls -- --probe times.0  one, in this process
//! ```
//!
//! A probe prints one line for each question, `answer: question | answer | number | assumption`. A refuted
//! assumption is an answer like any other: the exit code says only whether the probe ran to its end.
//!
//! Times on the stand-in say nothing about a GPU. Answers from GPUs are kept in `benches/results/`, with the
//! machine and the commit.

mod answers;
mod budget;
mod host;
mod kernels;
mod machine;
mod sleep;
mod times;
mod unmap;

use std::error::Error;
use std::process::{Command, ExitCode};

use larder_cuda::Context;
use larder_cuda::driver::load_from_env;
use unmap::Act;

type Outcome = Result<(), Box<dyn Error>>;

/// A probe's name and function.
type Probe = (&'static str, fn(&Context) -> Outcome);

const PROBES: [Probe; 18] = [
    ("machine", machine::attributes),
    ("unmap.own", |context| unmap::probe(context, Act::Unmap)),
    ("unmap.second", |context| {
        unmap::probe(context, Act::UnmapSecond)
    }),
    ("unmap.map-second", |context| {
        unmap::probe(context, Act::MapSecond)
    }),
    ("unmap.set-access", |context| {
        unmap::probe(context, Act::SetAccess)
    }),
    ("unmap.release", |context| {
        unmap::probe(context, Act::Release)
    }),
    ("times.0", |context| times::probe(context, 0)),
    ("times.1000", |context| times::probe(context, 1_000)),
    ("times.10000", |context| times::probe(context, 10_000)),
    ("times.60000", |context| times::probe(context, 60_000)),
    ("times.allocations", times::allocations),
    ("times.sizes", times::sizes),
    ("times.pinning", times::pinning),
    ("sleep.1", |context| sleep::probe(context, 1)),
    ("sleep.8", |context| sleep::probe(context, 8)),
    ("sleep.40", |context| sleep::probe(context, 40)),
    ("budget.limit", budget::limit),
    ("budget.pace", budget::pace),
];

fn main() -> ExitCode {
    // Drops the argument that `cargo bench` passes to every program.
    let args: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| arg != "--bench")
        .collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match args[..] {
        ["--list"] => {
            PROBES.iter().for_each(|(name, _)| println!("{name}"));
            Ok(())
        }
        ["--probe", name] => probe(name),
        ref some if some.iter().any(|arg| arg.starts_with('-')) => {
            eprintln!("expected --list, --probe NAME, or the beginnings of probe names");
            return ExitCode::from(2);
        }
        ref some => all(some),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("driver_calls: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs one probe in this process.
fn probe(name: &str) -> Outcome {
    load_from_env()?;
    let known = PROBES.iter().find(|(known, _)| *known == name);
    let (_, run) = known.ok_or_else(|| format!("no probe is named {name:?}: see --list"))?;
    run(&Context::new(0)?)
}

/// Runs each selected probe in a child process, and continues if one fails. Probes that need a preloaded library
/// are left out unless they are named.
fn all(beginnings: &[&str]) -> Outcome {
    let program = std::env::current_exe()?;
    let mut failed = Vec::new();
    for (name, _) in PROBES {
        let is_meant = match beginnings {
            [] => !name.starts_with("budget."),
            some => some.iter().any(|beginning| name.starts_with(beginning)),
        };
        if is_meant
            && !Command::new(&program)
                .args(["--probe", name])
                .status()?
                .success()
        {
            failed.push(name);
        }
    }
    match failed[..] {
        [] => Ok(()),
        _ => Err(format!("did not come to an end: {}", failed.join(", ")).into()),
    }
}
