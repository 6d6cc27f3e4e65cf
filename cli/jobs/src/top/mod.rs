//! `larder top`: the jobs on a machine, live.

pub(crate) mod screen;
pub(crate) mod table;

mod connections;
mod draw;
mod keys;
mod metrics;
mod serve;

use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::arguments::{parse_bytes, parse_interval};
use crate::files::default_folder;
use crate::layout::{self, ANY_WIDTH};
use crate::{Failure, print_json};

/// Shows the jobs that share a machine's GPUs, and changes their limits and shares.
///
/// In a terminal, the table is updated and accepts keys; elsewhere it is printed once. Do not change
/// limits by hand while `larder coordinate` sets them.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Folders that hold jobs' files, or single files (`NAME.status.json` and `NAME.control.json`,
    /// or AntMan's `NAME_pai2sche.json` and `NAME_sche2pai.json`)
    #[arg(value_name = "PLACE", default_values_os_t = [default_folder()])]
    places: Vec<PathBuf>,

    /// Print the table once and exit
    #[arg(long)]
    once: bool,

    /// Print all columns, however wide the table becomes
    #[arg(long)]
    wide: bool,

    /// Print these columns, such as used,limit; the error for a wrong name lists the valid ones
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        conflicts_with = "wide"
    )]
    columns: Vec<String>,

    /// Print one JSON object for each job in place of the table, and exit
    #[arg(long)]
    json: bool,

    /// Serve the jobs' metrics to Prometheus, as OpenMetrics text at `GET /metrics`, until ctrl-c.
    /// ADDRESS is a port on 127.0.0.1, or an address with a port such as 0.0.0.0:9835; port 0 means
    /// any free port
    #[arg(long, value_name = "ADDRESS", value_parser = serve::parse_address, conflicts_with_all = ["once", "wide", "columns", "json"])]
    serve: Option<SocketAddr>,

    /// Time between two readings of the files, in seconds
    #[arg(long, value_name = "S", default_value = "1", value_parser = parse_interval)]
    interval: Duration,

    /// Bytes by which the keys + and - change a limit
    #[arg(long, value_name = "N", default_value = "256MiB", value_parser = parse_bytes)]
    step: u64,
}

pub(crate) fn run(args: &TopArgs) -> Result<(), Failure> {
    if let Some(address) = args.serve {
        return serve::run(&args.places, address);
    }
    if !args.once && !args.json && io::stdout().is_terminal() {
        return screen::run(&args.places, args.interval, args.step);
    }
    let jobs = screen::look(&args.places)?;
    if args.json {
        return Ok(print_json(&jobs)?);
    }
    let width = if args.wide {
        ANY_WIDTH
    } else {
        layout::width()
    };
    let text = table::table(&jobs, &args.columns, args.wide, width);
    let text = text.map_err(Failure::Arguments)?;
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}
