//! `larder versus`: larder beside other global allocators.

mod list;
mod workers;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use indicatif::ProgressBar;
use serde::Serialize;

use super::{Failure, complain};
use crate::report::{json_line, print, progress_bar};
use crate::versus::idle::{self, Idle};
use crate::versus::instructions::{self, Count};
use crate::versus::page::{self, Origin, Results};
use crate::versus::rounds::takes_part;
use crate::versus::{
    ALLOCATORS, Allocator, Package, Profile, Settings, VersusRow, WORKLOADS, Worker, Workload,
    machine, markdown, measure, rows,
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

    /// Count instructions of an operation with valgrind, in place of times; of pairs-1, pairs-64,
    /// pairs-4096 and boxes unless others are named
    #[arg(long)]
    instructions: bool,

    /// Look at processes that do nothing after a peak of 1 GiB, in place of times
    #[arg(long, conflicts_with = "workloads")]
    idle: bool,

    /// Times, instructions and idle processes, one after the other
    #[arg(long)]
    all: bool,

    /// Print one JSON object a line in place of the tables
    #[arg(long)]
    json: bool,

    /// Also write a page and the JSON lines into this folder, such as benches/results
    #[arg(long, value_name = "DIR")]
    results: Option<PathBuf>,

    /// Take programs built earlier, such as target/versus/workers, and build nothing
    #[arg(long, value_name = "DIR")]
    workers: Option<PathBuf>,

    /// Only print the summary of kept JSON lines, in Markdown; may be given more than once, and what
    /// was measured again counts as the later file has it
    #[arg(long, value_name = "FILE", exclusive = true)]
    summary: Vec<PathBuf>,

    /// Only name the workloads and allocators
    #[arg(long)]
    list: bool,
}

/// What is to be measured.
#[derive(Debug, Clone, Copy)]
struct Asked {
    times: bool,
    instructions: bool,
    idle: bool,
}

impl VersusArgs {
    const fn asked(&self) -> Asked {
        Asked {
            times: self.all || !(self.instructions || self.idle),
            instructions: self.all || self.instructions,
            idle: self.all || self.idle,
        }
    }

    /// The workloads whose instructions are counted; none with frames, since a schedule has as many of them
    /// at any speed.
    fn counted_workloads(&self) -> Vec<&'static Workload> {
        if self.workloads.is_empty() {
            return chosen_workloads(&instructions::USUAL.map(str::to_owned));
        }
        let mut chosen = chosen_workloads(&self.workloads);
        chosen.retain(|workload| !workload.frames);
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
    if !args.summary.is_empty() {
        return summarise(&args.summary);
    }
    let asked = args.asked();
    if !asked.times && asked.instructions && args.counted_workloads().is_empty() {
        let message = "instructions of workloads with frames are not counted; name another one";
        return Err(Failure::Arguments(message.to_owned()));
    }
    if asked.instructions {
        let found = instructions::find_valgrind();
        found.map_err(|error| Failure::Failed(error.to_string()))?;
    }
    let settings = args.settings;
    let progress = progress_bar();
    let built = BuiltWorkers::build_all(args, &progress)?;
    let mut results = Results::default();
    if asked.times {
        results.rows = measure_all(args, &built.workers, &settings, &progress)?;
    }
    if asked.instructions {
        results.counts = count_all(args, &built.workers, &settings, &progress)?;
    }
    if asked.idle {
        results.idles = watch_all(args, &built.workers, &settings, &progress)?;
    }
    progress.finish_and_clear();
    if !args.json {
        print(&results.text())?;
    }
    if let Some(folder) = &args.results {
        keep(folder, &results, &settings, &built.skipped)?;
    }
    match results.failed() {
        (0, _) => built.complete(),
        (failed, of) => Err(Failure::Failed(format!("{failed} of {of} rows failed"))),
    }
}

fn summarise(files: &[PathBuf]) -> Result<(), Failure> {
    let mut rows = Vec::new();
    for file in files {
        let more = markdown::read(file).map_err(Failure::Arguments)?;
        rows = markdown::join(rows, more);
    }
    Ok(print(&markdown::summary(&rows))?)
}

fn measure_all(
    args: &VersusArgs,
    workers: &[Worker],
    settings: &Settings,
    progress: &ProgressBar,
) -> Result<Vec<VersusRow>, Failure> {
    let workloads = chosen_workloads(&args.workloads);
    let taking_part = workloads.iter().flat_map(|workload| {
        let allocators = workers.iter().map(|worker| worker.allocator);
        allocators.filter(|allocator| takes_part(allocator, workload))
    });
    let runs = taking_part.count();
    start(progress, runs * settings.rounds as usize);
    let mut all = Vec::new();
    for workload in workloads {
        let measured = measure(workload, workers, settings, |worker| {
            progress.set_message(format!("{} on {}", workload.name, worker.allocator.name));
            progress.inc(1);
        });
        let rows = rows(workload, &measured);
        for row in &rows {
            tell(args, progress, row)?;
            if let (false, Some(why)) = (args.json, &row.failed) {
                let (workload, allocator) = (row.workload, row.allocator);
                progress.suspend(|| complain(&format!("{workload} on {allocator} failed: {why}")));
            }
        }
        all.extend(rows);
    }
    Ok(all)
}

fn count_all(
    args: &VersusArgs,
    workers: &[Worker],
    settings: &Settings,
    progress: &ProgressBar,
) -> Result<Vec<Count>, Failure> {
    let mut counts = Vec::new();
    let workloads = args.counted_workloads();
    start(progress, workloads.len() * workers.len());
    for workload in workloads {
        for worker in workers {
            progress.inc(1);
            if !takes_part(worker.allocator, workload) {
                continue;
            }
            progress.set_message(format!("{} on {}", workload.name, worker.allocator.name));
            let count = instructions::count(worker, workload, settings);
            tell(args, progress, &count)?;
            counts.push(count);
        }
    }
    Ok(counts)
}

fn watch_all(
    args: &VersusArgs,
    workers: &[Worker],
    settings: &Settings,
    progress: &ProgressBar,
) -> Result<Vec<Idle>, Failure> {
    let mut idles = Vec::new();
    start(progress, workers.len());
    for worker in workers {
        progress.inc(1);
        if worker.allocator.steps_only {
            continue;
        }
        progress.set_message(format!("idle on {}", worker.allocator.name));
        let idle = idle::watch(worker, settings);
        tell(args, progress, &idle)?;
        idles.push(idle);
    }
    Ok(idles)
}

fn keep(
    folder: &Path,
    results: &Results,
    settings: &Settings,
    skipped: &[String],
) -> Result<(), Failure> {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR"));
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let origin = Origin {
        command: format!(
            "cargo run --release -p larder-bench -- {}",
            arguments.join(" ")
        ),
        commit: machine::commit(checkout),
        date: machine::today(),
        machine: machine::machine(),
        versions: versions(results),
        skipped: skipped.to_vec(),
    };
    let written = page::write(folder, results, settings, &origin).map_err(|error| {
        let folder = folder.display();
        Failure::Failed(format!("cannot write results to {folder}: {error}"))
    })?;
    for path in written {
        let _ = writeln!(io::stderr(), "written: {}", path.display());
    }
    Ok(())
}

/// The versions of the peers that were measured.
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

/// Prints a row as a line of JSON, if that is asked for.
fn tell(args: &VersusArgs, progress: &ProgressBar, row: &impl Serialize) -> io::Result<()> {
    if !args.json {
        return Ok(());
    }
    let line = json_line(row)?;
    progress.suspend(|| print(&line))
}

/// Begins to count runs.
fn start(progress: &ProgressBar, length: usize) {
    progress.reset();
    progress.set_length(length as u64);
}

/// The workloads to time: all timed ones, or the named ones, in the order of the list.
fn chosen_workloads(names: &[String]) -> Vec<&'static Workload> {
    let wanted = |known: &&Workload| match names {
        [] => !known.bare,
        _ => names.iter().any(|n| n == known.name),
    };
    WORKLOADS.iter().filter(wanted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_for_counting_are_timed_only_if_they_are_named() {
        let names = |chosen: Vec<&Workload>| chosen.iter().map(|w| w.name).collect::<Vec<_>>();
        let all = names(chosen_workloads(&[]));
        assert!(all.contains(&"boxes") && all.contains(&"steps-one"));
        assert!(!all.iter().any(|name| name.starts_with("bare")));
        let named = names(chosen_workloads(&["bare-boxes".to_owned()]));
        assert_eq!(named, ["bare-boxes"]);
    }
}
