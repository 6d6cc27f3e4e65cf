//! `larder top`: the jobs on a machine, live.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::Failure;
use crate::share::files::default_folder;
use crate::share::{plain, screen};
use crate::units::parse_bytes;

/// Shows the jobs that share a machine's GPUs, and changes their limits and shares.
///
/// In a terminal the table lives and takes keys; elsewhere it is printed once. Changing limits by hand
/// and letting `larder coordinate` do it exclude each other.
#[derive(Debug, Args)]
pub(super) struct TopArgs {
    /// Folders with files of jobs, or such files (`NAME.status.json` and `NAME.control.json`, or AntMan's
    /// `NAME_pai2sche.json` and `NAME_sche2pai.json`); without any, `antman` in the temporary directory
    #[arg(value_name = "PLACE")]
    places: Vec<PathBuf>,

    /// Print the table once and end
    #[arg(long)]
    once: bool,

    /// Print one JSON object a job in place of the table, once
    #[arg(long)]
    json: bool,

    /// How often to look, in seconds
    #[arg(long, value_name = "S", default_value = "1", value_parser = parse_interval)]
    interval: Duration,

    /// By how much the keys + and - change a limit
    #[arg(long, value_name = "N", default_value = "256MiB", value_parser = parse_bytes)]
    step: u64,
}

/// Seconds, at least a hundredth.
pub(super) fn parse_interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    let interval = Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())?;
    if interval < Duration::from_millis(10) {
        return Err("give at least 0.01 seconds".to_owned());
    }
    Ok(interval)
}

pub(super) fn run(args: &TopArgs) -> Result<(), Failure> {
    let places = if args.places.is_empty() {
        vec![default_folder()]
    } else {
        args.places.clone()
    };
    let wrong = |error: &dyn std::fmt::Display| Failure::Arguments(error.to_string());
    if !args.once && !args.json && io::stdout().is_terminal() {
        return match screen::run(&places, args.interval, args.step) {
            Ok(()) => Ok(()),
            Err(screen::ScreenError::Files(error)) => Err(wrong(&error)),
            Err(error) => Err(Failure::Failed(error.to_string())),
        };
    }
    let jobs = screen::look(&places).map_err(|error| wrong(&error))?;
    let mut out = io::stdout().lock();
    if args.json {
        for job in &jobs {
            serde_json::to_writer(&mut out, job).map_err(io::Error::from)?;
            out.write_all(b"\n")?;
        }
    } else {
        writeln!(out, "{}", plain::table(&jobs))?;
    }
    out.flush()?;
    Ok(())
}
