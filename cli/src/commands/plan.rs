//! `larder plan`: packs lifetimes from files and reports the heights of the packings.

use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use larder_jobs::units::parse_bytes;

use super::replay::{cannot_write, try_page};
use super::{Failure, complain, warn_of_cut};
use crate::interrupt;
use crate::numbers::{Unit, thousands};
use crate::plan::{self, Effort, PlanFormat, PlanRow, Problem};
use crate::report::page::page;
use crate::report::picture::{Drawn, DrawnBlocks, Picture, Words, pictures};
use crate::report::{Shown, Table, decimals, json_line, print, print_wrapped};

/// Finds offsets for blocks whose lifetimes are known, as low as it can.
#[derive(Debug, Args)]
pub(super) struct PlanArgs {
    /// CSV files (`id,lower,upper,size`), or traces, each step of which is a problem; plain, gzip, xz or zstd, and `-`
    /// for a trace on standard input
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

    #[command(flatten)]
    shown: Shown,

    /// Where to write the offset of each buffer
    ///
    /// A name that ends in .csv, with the columns of the files that are read, or in .json, which may have several plans.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    /// Also write one page with the table and a picture of each packing
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// The columns printed by default.
const USUAL: [&str; 5] = ["buffers", "height", "height/live", "s", "proven"];

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

/// Packs the problems of all files. Damaged files and impossible problems are reported and skipped.
pub(super) fn run(args: &PlanArgs) -> Result<(), Failure> {
    for (option, output) in [("--html", &args.html), ("--out", &args.out)] {
        if let Some(output) = output {
            try_page(option, output, &args.files)?;
        }
    }
    interrupt::listen();
    let (problems, mut refused) = load_all(&args.files);
    let out = args
        .out
        .as_deref()
        .map(|path| out_file(path, problems.len()));
    let out = out.transpose()?;
    let mut solved = Vec::new();
    for problem in problems {
        if interrupt::asked() {
            break;
        }
        match plan_one(&problem, args)? {
            Some(row) => solved.push((problem, row)),
            None => refused = true,
        }
    }
    if !solved.is_empty() {
        if !args.json {
            let mut chosen = table(solved.iter().map(|(_, row)| row));
            args.shown
                .choose(&mut chosen, 1, &USUAL)
                .map_err(Failure::Arguments)?;
            let width = args.shown.width();
            print_wrapped(&chosen.text(width), width)?;
        }
        if let Some(path) = &args.html {
            let page = html(&solved).map_err(|error| cannot_write(path, &error))?;
            fs::write(path, page).map_err(|error| cannot_write(path, &error))?;
        }
    }
    if let Some((_, row)) = solved.iter().find(|(_, row)| !row.valid) {
        return Err(Failure::Failed(format!(
            "the packing of {} is not valid; this is a bug of ours",
            row.problem
        )));
    }
    if let Some((path, format)) = out {
        let written = File::create(path)
            .map_err(Into::into)
            .and_then(|file| plan::write(format, &solved, BufWriter::new(file)));
        written.map_err(|error| cannot_write(path, &error))?;
    }
    if interrupt::asked() {
        Err(Failure::Interrupted)
    } else if refused {
        Err(Failure::Reported)
    } else {
        Ok(())
    }
}

/// Returns the problems of all files, and whether a file was damaged, which is reported.
fn load_all(files: &[PathBuf]) -> (Vec<Problem>, bool) {
    let mut problems = Vec::new();
    let mut damaged = false;
    for file in files {
        match plan::load(file) {
            Ok((loaded, cut)) => {
                cut.iter().for_each(warn_of_cut);
                problems.extend(loaded);
            }
            Err(_) if interrupt::asked() => break,
            Err(error) => {
                damaged = true;
                complain(&error);
            }
        }
    }
    (problems, damaged)
}

/// Returns the file for the offsets of so many problems, and its format.
fn out_file(path: &Path, problems: usize) -> Result<(&Path, PlanFormat), Failure> {
    let why = match PlanFormat::of(path) {
        None => "ends neither in .csv nor in .json: name a file that does".to_owned(),
        Some(PlanFormat::Csv) if problems > 1 => {
            format!("has room for one plan, and there are {problems}: name a .json file")
        }
        Some(format) => return Ok((path, format)),
    };
    let path = path.display();
    Err(Failure::Arguments(format!("--out {path} {why}")))
}

/// Packs one problem. Returns `None` if there is no packing, which is reported.
fn plan_one(problem: &Problem, args: &PlanArgs) -> Result<Option<PlanRow>, Failure> {
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
            Ok(Some(row))
        }
        Err(error) => {
            complain(&format_args!("{}: {error}", problem.name));
            Ok(None)
        }
    }
}

/// Draws a packing over its ticks. The reserved bytes are its height at every tick.
fn picture((problem, row): &(Problem, PlanRow)) -> Picture<'_> {
    let mut blocks = DrawnBlocks::default();
    let mut address = Vec::new();
    let lifetimes = (0..).zip(&problem.lifetimes).zip(&row.offsets);
    for ((id, lifetime), offset) in lifetimes {
        // Empty blocks have no address and are left out.
        if lifetime.begin < lifetime.end && lifetime.bytes > 0 {
            blocks.id.push(id);
            blocks.bytes.push(lifetime.bytes);
            blocks.from.push(lifetime.begin.into());
            blocks.to.push(lifetime.end.into());
            address.push(*offset);
        }
    }
    let ticks = blocks.to.iter().copied().max().unwrap_or(0);
    Picture {
        name: &row.problem,
        words: Words {
            tick: "tick",
            reserved: "height",
            planned: "lower bound",
        },
        ticks,
        steps: &[],
        blocks,
        device: None,
        refusals: &[],
        allocators: vec![Drawn {
            name: "height",
            address,
            reserved: vec![(0, row.height)],
            planned: vec![(0, Some(row.lower_bound))],
            calls: Vec::new(),
            held: vec![[0, ticks, 0, row.height, 0]],
            refused: None,
        }],
    }
}

/// Returns the page, with a table and a picture of each packing.
fn html(solved: &[(Problem, PlanRow)]) -> io::Result<String> {
    let rows = || solved.iter().map(|(_, row)| row);
    let unit = Unit::of(rows().map(|row| row.height));
    let name = unit.name;
    let headings = ["height", "max live", "lower bound", "first height"]
        .map(|heading| format!("{heading} {name}"));
    let [height, live, bound, first] = headings.each_ref().map(String::as_str);
    let mut table = Table::new([
        "problem",
        "buffers",
        live,
        bound,
        height,
        "height/live",
        "seconds",
        "proven",
        first,
        "first seconds",
    ]);
    for row in rows() {
        table.row([
            row.problem.clone(),
            thousands(&row.buffers.to_string()),
            unit.show(row.max_live),
            unit.show(row.lower_bound),
            unit.show(row.height),
            decimals(row.height_over_live, 4),
            format!("{:.3}", row.seconds),
            word(row.proven),
            unit.show(row.first_height),
            format!("{:.3}", row.first_seconds),
        ]);
    }
    let pictures: Vec<Picture<'_>> = solved.iter().map(picture).collect();
    let pictures = self::pictures(&pictures, unit)?;
    Ok(page(
        "Packed lifetimes",
        &format!("{ABOUT}{}{pictures}", table.html()),
    ))
}

/// The text above the table on a page.
const ABOUT: &str = "<p><em>Height</em> is the memory that the packing needs, and <em>proven</em> that none can need less. <em>First height</em> is that of the best quick packing; the rest of the time is a search for less.</p>\n";

fn table<'r>(rows: impl Iterator<Item = &'r PlanRow>) -> Table {
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
    table
}

fn word(is: bool) -> String {
    if is { "yes" } else { "no" }.to_owned()
}
