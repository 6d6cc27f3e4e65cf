//! `larder versus`: compares larder with other global allocators.

mod list;
mod workers;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use indicatif::ProgressBar;
use serde::Serialize;

use super::replay::{cannot_write, try_page};
use super::{Failure, complain};
use crate::interrupt;
use crate::report::{ANY_WIDTH, json_line, layout, print, print_wrapped, progress_bar};
use crate::versus::html::html;
use crate::versus::instructions::{self, Count};
use crate::versus::page::{self, ResultOrigin, Results};
use crate::versus::rounds::{Runs, takes_part};
use crate::versus::tail::{TailRow, tails};
use crate::versus::{
    ALLOCATORS, Allocator, Kind, Package, Profile, Settings, VersusRow, WORKLOADS, Worker,
    Workload, machine, markdown, measure, rows,
};
use workers::BuiltWorkers;

/// Builds one program for each allocator and measures them in turns.
#[derive(Debug, Args)]
pub(super) struct VersusArgs {
    /// Run only this workload; may be given more than once
    #[arg(long = "workload", value_name = "W", value_parser = workload_names(), hide_possible_values = true)]
    workloads: Vec<String>,

    /// Measure only this allocator; may be given more than once
    #[arg(long = "allocator", value_name = "A", value_parser = allocator_names(), hide_possible_values = true)]
    allocators: Vec<String>,

    /// How the programs are compiled: fat (fat LTO, one codegen unit), plain (`--release`) or both
    #[arg(long, value_name = "P", default_value = "fat", value_parser = profiles())]
    profile: &'static [Profile],

    #[command(flatten)]
    settings: Settings,

    /// Count instructions of an operation with valgrind, in place of times; of the pairs, boxes and bare workloads
    /// unless others are named
    #[arg(long)]
    instructions: bool,

    /// Time every single call and print percentiles and the causes of the longest ones, in place of times; the programs
    /// are built plain
    #[arg(long, conflicts_with_all = ["profile", "instructions", "all", "html"])]
    tail: bool,

    /// Times and instructions, one after the other
    #[arg(long)]
    all: bool,

    /// Print one JSON object a line in place of the tables
    #[arg(long)]
    json: bool,

    /// Print each table in one piece, however wide it becomes
    #[arg(long)]
    wide: bool,

    /// Also write a page and the JSON lines into this folder, such as benches/results
    #[arg(long, value_name = "DIR")]
    results: Option<PathBuf>,

    /// Also write one page in which each figure is a bar
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Take programs built earlier, such as target/versus/workers, and build nothing
    #[arg(long, value_name = "DIR")]
    workers: Option<PathBuf>,

    /// Only print the summary of kept JSON lines, in Markdown, and with --html write their page; may be given more than
    /// once, and rows of a later file replace the same rows of earlier ones
    #[arg(long, value_name = "FILE", conflicts_with_all = ["workloads", "allocators", "profile", "rounds", "scale",
        "limit", "instructions", "tail", "all", "json", "wide", "results", "workers", "list"])]
    summary: Vec<PathBuf>,

    /// Only name the workloads and allocators
    #[arg(long)]
    list: bool,
}

impl VersusArgs {
    const fn wants_times(&self) -> bool {
        self.all || !(self.instructions || self.tail)
    }

    const fn wants_instructions(&self) -> bool {
        self.all || self.instructions
    }

    /// Returns the requested builds.
    const fn profiles(&self) -> &'static [Profile] {
        if self.tail {
            &[Profile::Tail]
        } else {
            self.profile
        }
    }

    /// Returns the workloads to run: the named ones, by default the timed ones, and with `--tail` also those meant for
    /// it.
    fn chosen_workloads(&self) -> Vec<&'static Workload> {
        if !self.workloads.is_empty() {
            return workloads_named(&self.workloads);
        }
        let usual = |known: &&Workload| match known.kind {
            Kind::Timed | Kind::Frames => true,
            Kind::Cliff => self.tail,
            Kind::Bare | Kind::Memory => false,
        };
        WORKLOADS.iter().filter(usual).collect()
    }

    /// Returns the workloads whose instructions are counted. Workloads of frames or memory are excluded, since their
    /// duration is fixed.
    fn counted_workloads(&self) -> Vec<&'static Workload> {
        if self.workloads.is_empty() {
            return workloads_named(&instructions::USUAL.map(str::to_owned));
        }
        let mut chosen = workloads_named(&self.workloads);
        chosen.retain(|workload| !matches!(workload.kind, Kind::Frames | Kind::Memory));
        chosen
    }
}

fn profiles() -> impl TypedValueParser<Value = &'static [Profile]> {
    let names = PossibleValuesParser::new(["fat", "plain", "both"]);
    names.map(|name| -> &'static [Profile] {
        match name.as_str() {
            "fat" => &[Profile::Fat],
            "plain" => &[Profile::Plain],
            _ => &[Profile::Fat, Profile::Plain],
        }
    })
}

fn workload_names() -> PossibleValuesParser {
    PossibleValuesParser::new(WORKLOADS.iter().map(|w| PossibleValue::new(w.name)))
}

fn allocator_names() -> PossibleValuesParser {
    PossibleValuesParser::new(ALLOCATORS.iter().map(|a| PossibleValue::new(a.name)))
}

pub(super) fn run(args: &VersusArgs) -> Result<(), Failure> {
    if args.list {
        return Ok(print(&list::list())?);
    }
    if let Some(page) = &args.html {
        try_page("--html", page, &args.summary)?;
    }
    if !args.summary.is_empty() {
        return summarise(args);
    }
    if !args.wants_times() && args.wants_instructions() && args.counted_workloads().is_empty() {
        let message =
            "instructions of workloads of frames and memory are not counted; name another one";
        return Err(Failure::Arguments(message.to_owned()));
    }
    if args.wants_instructions() {
        instructions::find_valgrind().map_err(Failure::Failed)?;
    }
    let progress = progress_bar();
    let built = BuiltWorkers::build_all(args, &progress)?;
    let measuring = Measuring {
        args,
        workers: &built.workers,
        progress: &progress,
    };
    interrupt::listen();
    let mut results = Results::default();
    if args.wants_times() {
        results.rows = measuring.times()?;
    }
    if args.wants_instructions() {
        results.counts = measuring.instructions()?;
    }
    if args.tail {
        results.tails = measuring.tails()?;
    }
    progress.finish_and_clear();
    if !args.json {
        let width = if args.wide {
            ANY_WIDTH
        } else {
            layout::width()
        };
        print_wrapped(&results.text(width), width)?;
    }
    let origin = || origin(&results, &built.skipped);
    if let Some(folder) = &args.results {
        keep(folder, &results, &args.settings, &origin())?;
    }
    if let Some(path) = &args.html {
        write_page(path, &results, &origin().lines(&args.settings))?;
    }
    match results.failed() {
        _ if interrupt::asked() => Err(Failure::Interrupted),
        (0, _) => built.complete(),
        (failed, of) => Err(Failure::Failed(format!("{failed} of {of} rows failed"))),
    }
}

fn summarise(args: &VersusArgs) -> Result<(), Failure> {
    let mut results = Results::default();
    let mut about = Vec::new();
    for file in &args.summary {
        let more = markdown::read(file).map_err(Failure::Arguments)?;
        results.rows = markdown::join(results.rows, more);
        about.push(format!("The times and peaks in {}", file.display()));
    }
    if let Some(path) = &args.html {
        write_page(path, &results, &about)?;
    }
    Ok(print(&markdown::summary(&results.rows))?)
}

fn write_page(path: &Path, results: &Results, about: &[String]) -> Result<(), Failure> {
    fs::write(path, html(results, about)).map_err(|error| cannot_write(path, &error))
}

/// A running measurement: the workers and the progress bar.
struct Measuring<'m> {
    args: &'m VersusArgs,
    workers: &'m [Worker],
    progress: &'m ProgressBar,
}

impl Measuring<'_> {
    /// Runs each workload on all workers, in rounds, and passes each workload's runs to `told`.
    fn rounds(
        &self,
        mut told: impl FnMut(&'static Workload, &[Runs]) -> io::Result<()>,
    ) -> io::Result<()> {
        let settings = &self.args.settings;
        let workloads = self.args.chosen_workloads();
        let taking_part = workloads.iter().flat_map(|workload| {
            let allocators = self.workers.iter().map(|worker| worker.allocator);
            allocators.filter(|allocator| takes_part(allocator, workload))
        });
        self.start(taking_part.count() * settings.rounds as usize);
        for workload in workloads {
            let about_to_run = |worker: &Worker| self.step(workload.name, worker);
            let measured = measure(workload, self.workers, settings, about_to_run);
            // Ctrl-C also interrupts the running workers.
            if interrupt::asked() {
                break;
            }
            told(workload, &measured)?;
        }
        Ok(())
    }

    fn tails(&self) -> io::Result<Vec<TailRow>> {
        let mut all = Vec::new();
        self.rounds(|workload, measured| {
            for row in tails(workload, measured) {
                self.tell(&row)?;
                all.push(row);
            }
            Ok(())
        })?;
        Ok(all)
    }

    fn times(&self) -> io::Result<Vec<VersusRow>> {
        let mut all = Vec::new();
        self.rounds(|workload, measured| {
            for row in rows(workload, measured) {
                self.tell(&row)?;
                if let (false, Some(why)) = (self.args.json, &row.failed) {
                    let (workload, allocator) = (row.workload, row.allocator);
                    let message = format!("{workload} on {allocator} failed: {why}");
                    self.progress.suspend(|| complain(&message));
                }
                all.push(row);
            }
            Ok(())
        })?;
        Ok(all)
    }

    fn instructions(&self) -> io::Result<Vec<Count>> {
        let mut counts = Vec::new();
        let workloads = self.args.counted_workloads();
        self.start(workloads.len() * self.workers.len());
        for workload in workloads {
            for worker in self.workers {
                self.step(workload.name, worker);
                if takes_part(worker.allocator, workload) {
                    let count = instructions::count(worker, workload, &self.args.settings);
                    if interrupt::asked() {
                        return Ok(counts);
                    }
                    self.tell(&count)?;
                    counts.push(count);
                }
            }
        }
        Ok(counts)
    }

    /// Resets the progress bar for this number of runs.
    fn start(&self, runs: usize) {
        self.progress.reset();
        self.progress.set_length(runs as u64);
    }

    /// Shows the next run on the progress bar.
    fn step(&self, what: &str, worker: &Worker) {
        let message = format!("{what} on {}", worker.allocator.name);
        self.progress.set_message(message);
        self.progress.inc(1);
    }

    /// Prints a row as a line of JSON, with `--json`.
    fn tell(&self, row: &impl Serialize) -> io::Result<()> {
        if !self.args.json {
            return Ok(());
        }
        let line = json_line(row)?;
        self.progress.suspend(|| print(&line))
    }
}

/// Returns the origin of the results.
fn origin(results: &Results, skipped: &[String]) -> ResultOrigin {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR"));
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    ResultOrigin {
        command: format!(
            "cargo run --release -p larder-cli -- {}",
            arguments.join(" ")
        ),
        commit: machine::commit(checkout),
        date: machine::today(),
        machine: machine::machine(),
        versions: versions(results),
        skipped: skipped.to_vec(),
    }
}

fn keep(
    folder: &Path,
    results: &Results,
    settings: &Settings,
    origin: &ResultOrigin,
) -> Result<(), Failure> {
    let written = page::write(folder, results, settings, origin).map_err(|error| {
        let folder = folder.display();
        Failure::Failed(format!("cannot write results to {folder}: {error}"))
    })?;
    for path in written {
        let _ = writeln!(io::stderr(), "written: {}", path.display());
    }
    Ok(())
}

/// Returns the versions of the measured peers.
fn versions(results: &Results) -> String {
    let Ok(package) = Package::beside_this() else {
        return "unknown".to_owned();
    };
    let measured = |allocator: &&Allocator| results.names().any(|name| name == allocator.name);
    let mut crates: Vec<&str> = ALLOCATORS
        .iter()
        .filter(measured)
        .filter_map(|allocator| allocator.package)
        .collect();
    crates.dedup();
    let named = crates.iter().map(|name| {
        let version = package.version(name);
        format!("{name} {}", version.as_deref().unwrap_or("unknown"))
    });
    named.collect::<Vec<_>>().join(", ")
}

/// Returns the workloads with these names, in the order of the list.
fn workloads_named(names: &[String]) -> Vec<&'static Workload> {
    let named = |known: &&Workload| names.iter().any(|name| name == known.name);
    WORKLOADS.iter().filter(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: VersusArgs,
    }

    fn names(line: &str) -> Vec<&'static str> {
        let words = std::iter::once("versus").chain(line.split_whitespace());
        let args = Line::try_parse_from(words).unwrap().args;
        args.chosen_workloads().iter().map(|w| w.name).collect()
    }

    #[test]
    fn loops_for_counting_cliffs_and_memory_are_run_only_if_they_are_named() {
        let all = names("");
        assert!(all.contains(&"boxes") && all.contains(&"steps-one"));
        assert!(!all.iter().any(|name| name.starts_with("bare")));
        assert!(!all.contains(&"survivors") && !all.contains(&"idle-1"));
        assert_eq!(names("--workload bare-boxes"), ["bare-boxes"]);
        assert_eq!(names("--workload survivors"), ["survivors"]);
        assert_eq!(names("--workload idle-1"), ["idle-1"]);
    }

    #[test]
    fn single_calls_are_timed_on_all_workloads_and_on_cliffs() {
        let all = names("--tail");
        assert!(all.contains(&"boxes") && all.contains(&"survivors"));
        assert!(!all.contains(&"bare-boxes") && !all.contains(&"idle-1"));
        assert!(Line::try_parse_from(["versus", "--tail", "--instructions"]).is_err());
    }
}
