//! Asks a driver what documents leave open and Larder rests on: a probe a question, each in a process of its
//! own, since a probe may break its context.
//!
//! ```text
//! cargo bench -p larder-cuda --bench driver_calls                     all probes
//! cargo bench -p larder-cuda --bench driver_calls -- alias. reserve   those whose names begin so
//! cargo bench -p larder-cuda --bench driver_calls -- --list           their names
//! cargo bench -p larder-cuda --bench driver_calls -- --probe reserve  one, in this process
//! ```
//!
//! A probe prints a line a question, `answer: question | answer | number | assumption`. An assumption that falls is
//! an answer like any other: the exit code says only whether the probe came to its end.
//!
//! On the stand-in times say nothing about a GPU. Answers of real hardware, with machine and commit, are kept
//! in `benches/results/`.

mod alias;
mod answers;
mod budget;
mod captures;
mod host;
mod kernels;
mod machine;
mod sleep;
mod times;
mod unmap;

use std::error::Error;
use std::process::{Command, ExitCode};

use alias::Way;
use larder_cuda::Context;
use larder_cuda::driver::load_from_env;
use unmap::Act;

type Outcome = Result<(), Box<dyn Error>>;

/// A name, and what it asks.
type Probe = (&'static str, fn(&Context) -> Outcome);

/// All probes but those of captures, which are one for each call.
const PROBES: [Probe; 30] = [
    ("machine", machine::attributes),
    ("health", machine::health),
    ("reserve", machine::reserve),
    ("alias.kernel", |context| alias::probe(context, Way::Kernel)),
    ("alias.read-only", |context| {
        alias::probe(context, Way::ReadOnly)
    }),
    ("alias.fill", |context| alias::probe(context, Way::Fill)),
    ("alias.copy-in", |context| {
        alias::probe(context, Way::CopyIn)
    }),
    ("alias.copy-out", |context| {
        alias::probe(context, Way::CopyOut)
    }),
    ("alias.graph", |context| alias::probe(context, Way::Graph)),
    ("alias.streams", |context| {
        alias::probe(context, Way::Streams)
    }),
    ("alias.waiting", |context| {
        alias::probe(context, Way::Waiting)
    }),
    ("alias.early", |context| alias::probe(context, Way::Early)),
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
    ("returns", unmap::returns),
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

/// What the probes of captures begin with.
const CAPTURE: &str = "capture.";

fn names() -> impl Iterator<Item = String> {
    let probes = PROBES.iter().map(|(name, _)| (*name).to_owned());
    probes.chain(captures::calls().map(|call| format!("{CAPTURE}{call}")))
}

fn main() -> ExitCode {
    // What `cargo bench` says to every program.
    let args: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| arg != "--bench")
        .collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match args[..] {
        ["--list"] => {
            names().for_each(|name| println!("{name}"));
            Ok(())
        }
        ["--probe", name] => probe(name),
        ref some if some.iter().any(|arg| arg.starts_with('-')) => {
            eprintln!("known are --list, --probe NAME, and beginnings of names of probes");
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
    if let Some(call) = name.strip_prefix(CAPTURE) {
        return captures::probe(&Context::new(0)?, call);
    }
    let known = PROBES.iter().find(|(known, _)| *known == name);
    let (_, run) = known.ok_or_else(|| format!("no probe is named {name:?}: see --list"))?;
    run(&Context::new(0)?)
}

/// Runs each probe that is meant in a child, and goes on if it fails. Those of a preloaded program are left
/// out unless they are named.
fn all(beginnings: &[&str]) -> Outcome {
    let program = std::env::current_exe()?;
    let mut failed = Vec::new();
    for name in names() {
        let is_meant = match beginnings {
            [] => !name.starts_with("budget."),
            some => some.iter().any(|beginning| name.starts_with(beginning)),
        };
        if is_meant
            && !Command::new(&program)
                .args(["--probe", &name])
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
