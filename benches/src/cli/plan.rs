//! `larder plan`: packs lifetimes from files and says how low they came.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{Failure, complain};
use crate::plan::{self, Effort, PlanRow, Problem};
use crate::report::{Table, decimals, json_line, print};
use crate::units::parse_bytes;

/// Finds offsets for blocks whose lifetimes are known, as low as it can.
#[derive(Debug, Args)]
pub(super) struct PlanArgs {
    /// CSV files (`id,lower,upper,size`), or traces, each step of which is a problem
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Time for each problem
    #[arg(long, value_name = "S", default_value = "10", value_parser = parse_seconds)]
    seconds: Duration,

    /// A height that is good enough, such as 1048576, 512MiB or 8GiB; without it, the lowest
    #[arg(long, value_name = "N", value_parser = parse_bytes)]
    stop_at: Option<u64>,

    /// Print one JSON object a line in place of the table
    #[arg(long)]
    json: bool,
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

/// Damaged files and impossible problems are reported and left out.
pub(super) fn run(args: &PlanArgs) -> Result<(), Failure> {
    let mut rows = Vec::new();
    let mut refused = false;
    for file in &args.files {
        match plan::load(file) {
            Ok(problems) => {
                for problem in problems {
                    refused |= !plan_one(&problem, args, &mut rows)?;
                }
            }
            Err(error) => {
                refused = true;
                complain(&error);
            }
        }
    }
    if !args.json && !rows.is_empty() {
        print(&table(&rows))?;
    }
    if let Some(row) = rows.iter().find(|row| !row.valid) {
        return Err(Failure::Failed(format!(
            "the packing of {} is not valid; this is a bug of ours",
            row.problem
        )));
    }
    if refused {
        Err(Failure::Reported)
    } else {
        Ok(())
    }
}

/// Whether there was a packing.
fn plan_one(problem: &Problem, args: &PlanArgs, rows: &mut Vec<PlanRow>) -> Result<bool, Failure> {
    let effort = Effort {
        time: args.seconds,
        steps: u64::MAX,
        stop_at: args.stop_at.unwrap_or(0),
    };
    match plan::solve(problem, &effort) {
        Ok(row) => {
            if args.json {
                print(&json_line(&row)?)?;
            }
            rows.push(row);
            Ok(true)
        }
        Err(error) => {
            complain(&format_args!("{}: {error}", problem.name));
            Ok(false)
        }
    }
}

fn table(rows: &[PlanRow]) -> String {
    let mut table = Table::new([
        "problem",
        "buffers",
        "max live",
        "lower bound",
        "height",
        "height/live",
        "first height",
        "first s",
        "s",
        "proven",
        "valid",
    ]);
    let word = |is: bool| if is { "yes" } else { "no" }.to_owned();
    for row in rows {
        table.row([
            row.problem.clone(),
            row.buffers.to_string(),
            row.max_live.to_string(),
            row.lower_bound.to_string(),
            row.height.to_string(),
            decimals(row.height_over_live, 4),
            row.first_height.to_string(),
            format!("{:.3}", row.first_seconds),
            format!("{:.3}", row.seconds),
            word(row.proven),
            word(row.valid),
        ]);
    }
    table.text()
}
