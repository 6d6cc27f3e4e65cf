//! `larder coordinate`: divides a device's memory among jobs, by priority.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use clap::Args;
use larder_control::{BusId, PerfControl};
use serde::Serialize;

use super::control::parse_perf;
use super::top::parse_interval;
use super::{Failure, complain};
use crate::share::coordinate::{
    Coordination, CoordinationEvent, CoordinationSettings, unix_ms_now,
};
use crate::share::files::default_folder;
use crate::share::plain::bytes;
use crate::units::parse_bytes;

/// Moves memory between the jobs on one GPU by priority, so that together they never hold more than a
/// total.
///
/// Reads the jobs' status files, writes their control files, and says what it moved and why. Jobs have to
/// begin with a limit of 0 (`larder job` does). It may be ended at any moment, by ctrl-c: the jobs keep their
/// limits.
#[derive(Debug, Args)]
pub(super) struct CoordinateArgs {
    /// Folders with files of jobs; without any, `antman` in the temporary directory
    #[arg(value_name = "FOLDER")]
    places: Vec<PathBuf>,

    /// What all jobs together may hold
    #[arg(long, value_name = "N", value_parser = parse_bytes, allow_hyphen_values = true)]
    total: u64,

    /// The GPU whose memory it is; not needed where all jobs have one and the same
    #[arg(long, value_name = "ID")]
    gpu: Option<BusId>,

    /// Limits change in steps of this
    #[arg(long, value_name = "N", default_value = "64MiB", value_parser = parse_bytes)]
    step: u64,

    /// No job's limit drops below this once it has reached it
    #[arg(long, value_name = "N", value_parser = parse_bytes)]
    floor: Option<u64>,

    /// A job's limit drops after it has wanted less for this many seconds
    #[arg(long, value_name = "S", default_value = "10", value_parser = parse_interval)]
    calm: Duration,

    /// Share of the time, in percent, of a job while one of higher priority wants memory
    #[arg(long, value_name = "P", default_value = "100", value_parser = parse_perf)]
    perf_beside: PerfControl,

    /// Decide once and end
    #[arg(long)]
    once: bool,

    /// How often to look, in seconds
    #[arg(long, value_name = "S", default_value = "1", value_parser = parse_interval)]
    interval: Duration,

    /// Print one JSON object for each thing that happened, with all figures that changed
    #[arg(long)]
    json: bool,
}

/// A line of JSON.
#[derive(Serialize)]
struct Event<'a> {
    unix_ms: u64,
    #[serde(flatten)]
    said: &'a CoordinationEvent,
}

pub(super) fn run(args: &CoordinateArgs) -> Result<(), Failure> {
    let places = if args.places.is_empty() {
        vec![default_folder()]
    } else {
        args.places.clone()
    };
    let mut coordination = Coordination::new(CoordinationSettings {
        total_bytes: args.total,
        step_bytes: args.step,
        calm: args.calm,
        floor_bytes: args.floor.unwrap_or(0),
        perf_beside: args.perf_beside,
        gpu: args.gpu,
    });
    let (end, ended) = mpsc::channel();
    ctrlc::set_handler(move || {
        let _ = end.send(());
    })
    .map_err(|error| Failure::Failed(format!("cannot take signals: {error}")))?;
    let start = Instant::now();
    let mut first = true;
    loop {
        match coordination.round(&places, start.elapsed()) {
            Ok(said) => print(&said, args.json)?,
            // The folder may come back later; at the beginning its absence is a mistake.
            Err(error) if first => return Err(Failure::Arguments(error.to_string())),
            Err(error) => complain(&error),
        }
        first = false;
        if args.once {
            return Ok(());
        }
        match ended.recv_timeout(args.interval) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

fn print(said: &[CoordinationEvent], json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let unix_ms = unix_ms_now();
    for said in said {
        if json {
            serde_json::to_writer(&mut out, &Event { unix_ms, said })?;
            out.write_all(b"\n")?;
        } else if let Some(text) = in_words(said) {
            writeln!(out, "{text}")?;
        }
    }
    out.flush()
}

/// The line of text for an event; `None` for an event that only has figures.
fn in_words(said: &CoordinationEvent) -> Option<String> {
    Some(match said {
        CoordinationEvent::Joined {
            job,
            priority,
            limit_bytes,
        } => format!(
            "{job}: counted, priority {priority}, may hold {}",
            bytes(*limit_bytes)
        ),
        CoordinationEvent::Gone { job, why } => format!("{job}: gone, {why}"),
        CoordinationEvent::Limit {
            job,
            from_bytes,
            to_bytes,
            why,
        } => format!(
            "{job}: limit {} -> {}, {why}",
            bytes(*from_bytes),
            bytes(*to_bytes)
        ),
        CoordinationEvent::Perf { job, percent } => format!("{job}: {percent} % of the time"),
        CoordinationEvent::State(_) => return None,
        CoordinationEvent::Problem { job, problem } => format!("{job}: {problem}"),
    })
}
