//! `larder coordinate`: divides a device's memory among jobs, by priority.

mod folders;
mod joined;
mod members;
mod reading;
#[cfg(test)]
mod restarts;
mod rounds;

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use larder_control::{BusId, PerfControl};
use serde::Serialize;

use crate::arguments::{parse_bytes, parse_interval, parse_limit, parse_perf, show_bytes};
use crate::files::default_folder;
use crate::layout::{width, wrapped};
use crate::view::unix_ms;
use crate::visible::visible;
use crate::{Failure, complain, print_json};
use folders::FolderLocks;
pub(crate) use folders::{FolderError, running_coordinator};
pub(crate) use rounds::{Coordination, CoordinationEvent};

/// Moves memory between the jobs on one GPU by priority, so that together they never hold more than
/// a total.
///
/// Reads the jobs' status files, writes their control files, and reports what it moves and why.
/// Jobs have to begin with a limit of 0 (`larder job` does). Only one coordinator at a time can run
/// for a folder and a GPU. It can be ended at any moment with ctrl-c: the jobs keep their limits.
#[derive(Debug, Args)]
// A narrow terminal would break a single line.
#[command(override_usage = "larder coordinate [OPTIONS]\n       --total <N> [FOLDER]...")]
pub struct CoordinateArgs {
    /// Folders with files of jobs
    #[arg(value_name = "FOLDER", default_values_os_t = [default_folder()])]
    places: Vec<PathBuf>,

    #[command(flatten)]
    settings: CoordinationSettings,

    /// Decide once and exit
    #[arg(long)]
    once: bool,

    /// Time between two readings of the files, in seconds
    #[arg(long, value_name = "S", default_value = "1", value_parser = parse_interval)]
    interval: Duration,

    /// Print one JSON object for each event, with all figures that changed
    #[arg(long)]
    json: bool,
}

/// The memory to divide, and the policy.
#[derive(Clone, Debug, Args)]
pub(crate) struct CoordinationSettings {
    /// Memory that all jobs together may hold on a GPU
    #[arg(long = "total", value_name = "N", value_parser = parse_bytes, allow_hyphen_values = true)]
    pub(crate) total_bytes: u64,

    /// The GPU whose memory is divided; by default, the memory of each GPU is divided separately,
    /// and jobs on several GPUs are left out
    #[arg(long, value_name = "ID")]
    pub(crate) gpu: Option<BusId>,

    /// Limits change in steps of this size
    #[arg(long = "step", value_name = "N", default_value = "64MiB", value_parser = parse_bytes)]
    pub(crate) step_bytes: u64,

    /// No job's limit drops below this once it has reached it
    #[arg(long = "floor", value_name = "N", default_value = "0", value_parser = parse_limit)]
    pub(crate) floor_bytes: u64,

    /// A job's limit drops after it has wanted less for this many seconds
    #[arg(long, value_name = "S", default_value = "10", value_parser = parse_interval)]
    pub(crate) calm: Duration,

    /// Share of the time, in percent, that a job gets while one of higher priority wants memory
    #[arg(long, value_name = "P", default_value = "100", value_parser = parse_perf)]
    pub(crate) perf_beside: PerfControl,

    /// Jobs that together want more than the total take turns: each gets all that it wants while
    /// others sleep, copied to the host. A turn lasts at least this many seconds, multiplied by the
    /// job's priority (1 to 10), and should be long compared with the time of the copies. A job
    /// that sleeps when this program ends keeps sleeping until another coordinator, or `control
    /// wake`, wakes it
    #[arg(long = "turns", value_name = "S", num_args = 0..=1, require_equals = true, default_missing_value = "30", value_parser = parse_interval)]
    pub(crate) turn: Option<Duration>,
}

/// An event and its time, serialized as a line of JSON.
#[derive(Serialize)]
struct TimedEvent<'a> {
    unix_ms: u64,
    #[serde(flatten)]
    said: &'a CoordinationEvent,
}

/// Message when the output is closed: unlike a program that only shows figures, a coordinator must
/// not stop silently.
const UNREAD: &str =
    "the output is no longer read, so the coordination has ended; the jobs keep their limits";

pub(crate) fn run(args: CoordinateArgs) -> Result<(), Failure> {
    let gpu = args.settings.gpu;
    let mut coordination = Coordination::new(args.settings.clone());
    let mut locks = FolderLocks::default();
    let (end, ended) = mpsc::channel();
    ctrlc::set_handler(move || {
        let _ = end.send(());
    })
    .map_err(|error| Failure::Failed(format!("cannot take signals: {error}")))?;
    let start = Instant::now();
    let (mut first, mut complained) = (true, None);
    loop {
        let held = locks.hold(&args.places, gpu).map_err(Failure::from);
        let round = held.and_then(|is_new| {
            if is_new {
                // Another coordinator may have changed the files in the meantime.
                coordination = Coordination::new(args.settings.clone());
            }
            Ok(coordination.round(&args.places, start.elapsed())?)
        });
        match round {
            Ok(said) => match print(&said, args.json) {
                Err(error) if !args.once && error.kind() == io::ErrorKind::BrokenPipe => {
                    return Err(Failure::Failed(UNREAD.to_owned()));
                }
                printed => printed?,
            },
            // The folder may disappear and return later, but its absence at the start is a mistake.
            Err(error) if first => return Err(error),
            Err(Failure::Arguments(error) | Failure::Failed(error)) => {
                // An error is reported once, however long it lasts.
                if complained.replace(error.clone()) != Some(error.clone()) {
                    complain(&error);
                }
            }
            Err(error) => return Err(error),
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
    if json {
        let unix_ms = unix_ms(SystemTime::now());
        return print_json(said.iter().map(|said| TimedEvent { unix_ms, said }));
    }
    let mut out = io::stdout().lock();
    for text in said.iter().filter_map(in_words) {
        let line = format!("{}\n", visible(&text));
        out.write_all(wrapped(&line, width()).as_bytes())?;
    }
    out.flush()
}

/// Returns the line of text for an event; `None` for an event that has only figures.
fn in_words(said: &CoordinationEvent) -> Option<String> {
    Some(match said {
        CoordinationEvent::Joined {
            job,
            priority,
            limit_bytes,
        } => {
            let limit = show_bytes(*limit_bytes);
            format!("{job}: counted, priority {priority}, may hold {limit}")
        }
        CoordinationEvent::Gone { job, why } => format!("{job}: gone, {why}"),
        CoordinationEvent::Limit {
            job,
            from_bytes,
            to_bytes,
            why,
        } => {
            let (from, to) = (show_bytes(*from_bytes), show_bytes(*to_bytes));
            format!("{job}: limit {from} -> {to}, {why}")
        }
        CoordinationEvent::Perf { job, percent } => format!("{job}: {percent} % of the time"),
        CoordinationEvent::Turn { job, asleep: true } => {
            format!("{job}: to sleep, it is another's turn")
        }
        CoordinationEvent::Turn { job, asleep: false } => format!("{job}: to be awake"),
        CoordinationEvent::State(_) => return None,
        CoordinationEvent::Problem { job, problem } => format!("{job}: {problem}"),
    })
}
