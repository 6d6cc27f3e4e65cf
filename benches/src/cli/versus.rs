//! `larder versus`: larder beside other global allocators.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};

use super::{Failure, complain};
use crate::versus::allocators::LARDER;
use crate::versus::page::{self, Origin};
use crate::versus::rounds::takes_part;
use crate::versus::workers::built_earlier;
use crate::versus::{
    ALLOCATORS, Allocator, BuildError, Package, Profile, Row, Settings, WORKLOADS, Worker,
    Workload, machine, measure, rows, table,
};

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
    #[arg(long, value_name = "P", default_value = "fat")]
    profile: Profiles,

    /// Runs of each program; the median counts
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,

    /// Do so many times the work, such as 0.1 for a first look
    #[arg(long, value_name = "N", default_value_t = 1.0, value_parser = parse_scale)]
    scale: f64,

    /// Stop a run after so many seconds and call it failed
    #[arg(long, value_name = "S", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,

    /// Print one JSON object a line in place of the tables
    #[arg(long)]
    json: bool,

    /// Also write a page and the JSON lines into this folder, such as benches/results
    #[arg(long, value_name = "DIR")]
    results: Option<PathBuf>,

    /// Take programs built earlier, such as target/versus/workers, and build nothing
    #[arg(long, value_name = "DIR")]
    workers: Option<PathBuf>,

    /// Only name the workloads and allocators
    #[arg(long)]
    list: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Profiles {
    Fat,
    Plain,
    Both,
}

impl Profiles {
    const fn each(self) -> &'static [Profile] {
        match self {
            Self::Fat => &[Profile::Fat],
            Self::Plain => &[Profile::Plain],
            Self::Both => &[Profile::Fat, Profile::Plain],
        }
    }
}

fn workload_names() -> PossibleValuesParser {
    PossibleValuesParser::new(WORKLOADS.iter().map(|w| PossibleValue::new(w.name)))
}

fn allocator_names() -> PossibleValuesParser {
    PossibleValuesParser::new(ALLOCATORS.iter().map(|a| PossibleValue::new(a.name)))
}

/// Above this, counts of the workers are not exact.
const MOST_SCALE: f64 = 1e6;

fn parse_scale(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(scale) if scale > 0.0 && scale <= MOST_SCALE => Ok(scale),
        _ => Err(format!("give a number above 0 and up to {MOST_SCALE}")),
    }
}

/// Allocators that do not build are told and left out.
pub(super) fn run(args: &VersusArgs) -> Result<(), Failure> {
    if args.list {
        return Ok(print(&list())?);
    }
    let settings = Settings {
        rounds: args.rounds,
        scale: args.scale,
        limit: Duration::from_secs(args.limit),
    };
    let progress = progress_bar();
    let crew = Crew::assemble(args, &progress)?;
    let rows = measure_all(args, &crew.workers, &settings, &progress)?;
    progress.finish_and_clear();
    if !args.json {
        print(&table::table(&rows))?;
    }
    if let Some(folder) = &args.results {
        keep(folder, &rows, &settings, &crew.skipped)?;
    }
    let failed = rows.iter().filter(|row| row.failed.is_some()).count();
    if failed > 0 {
        let of = rows.len();
        return Err(Failure::Failed(format!("{failed} of {of} rows failed")));
    }
    crew.complete()
}

/// The workers, and the allocators without one.
#[derive(Default)]
struct Crew {
    workers: Vec<Worker>,
    skipped: Vec<String>,
    /// Those among them that somebody wants for certain.
    missed: Vec<&'static str>,
}

impl Crew {
    fn assemble(args: &VersusArgs, progress: &ProgressBar) -> Result<Self, Failure> {
        let package = match args.workers {
            Some(_) => None,
            None => Some(Package::beside_this().map_err(not_built)?),
        };
        let chosen = chosen_allocators(&args.allocators);
        let profiles = args.profile.each();
        progress.set_length((chosen.len() * profiles.len()) as u64);
        let mut crew = Self::default();
        for profile in profiles {
            for allocator in &chosen {
                progress.set_message(format!("building {} ({profile})", allocator.name));
                let worker = match (&args.workers, &package) {
                    (Some(folder), _) => built_earlier(folder, allocator, *profile),
                    (None, Some(package)) => package.build(allocator, *profile),
                    (None, None) => continue,
                };
                progress.inc(1);
                match worker {
                    Ok(worker) => crew.workers.push(worker),
                    Err(error) => {
                        progress.suspend(|| crew.skip(allocator, *profile, &error, args));
                    }
                }
            }
        }
        if crew.workers.is_empty() {
            let message = "there is no program to run".to_owned();
            return Err(Failure::Failed(message));
        }
        Ok(crew)
    }

    /// A peer that does not build on this machine is no reason to stop.
    fn skip(
        &mut self,
        allocator: &Allocator,
        profile: Profile,
        error: &BuildError,
        args: &VersusArgs,
    ) {
        let name = allocator.name;
        complain(&format!("{name} ({profile}) is left out: {error}"));
        let message = error.to_string();
        let first = message.lines().next().unwrap_or("");
        self.skipped.push(format!("{name} ({profile}): {first}"));
        if allocator.name == LARDER || args.allocators.iter().any(|asked| asked == name) {
            let known = ALLOCATORS.iter().find(|known| known.name == name);
            self.missed.extend(known.map(|known| known.name));
        }
    }

    fn complete(&self) -> Result<(), Failure> {
        if self.missed.is_empty() {
            return Ok(());
        }
        let names = self.missed.join(", ");
        Err(Failure::Failed(format!("{names} could not take part")))
    }
}

fn not_built(error: BuildError) -> Failure {
    Failure::Failed(error.to_string())
}

fn measure_all(
    args: &VersusArgs,
    workers: &[Worker],
    settings: &Settings,
    progress: &ProgressBar,
) -> Result<Vec<Row>, Failure> {
    let workloads = chosen_workloads(&args.workloads);
    let runs: usize = workloads
        .iter()
        .map(|workload| {
            let taking_part = workers.iter().filter(|worker| takes_part(worker, workload));
            taking_part.count()
        })
        .sum();
    progress.reset();
    progress.set_length(runs as u64 * u64::from(settings.rounds));
    let mut all = Vec::new();
    for workload in workloads {
        let measured = measure(workload, workers, settings, |worker| {
            progress.set_message(format!("{} on {}", workload.name, worker.allocator.name));
            progress.inc(1);
        });
        let rows = rows(workload, &measured);
        for row in &rows {
            if args.json {
                progress.suspend(|| print_json(row))?;
            } else if let Some(why) = &row.failed {
                let (workload, allocator) = (row.workload, row.allocator);
                progress.suspend(|| complain(&format!("{workload} on {allocator} failed: {why}")));
            }
        }
        all.extend(rows);
    }
    Ok(all)
}

fn keep(
    folder: &Path,
    rows: &[Row],
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
        versions: versions(rows),
        skipped: skipped.to_vec(),
    };
    let written = page::write(folder, rows, settings, &origin).map_err(|error| {
        let folder = folder.display();
        Failure::Failed(format!("cannot write results to {folder}: {error}"))
    })?;
    for path in written {
        let _ = writeln!(io::stderr(), "written: {}", path.display());
    }
    Ok(())
}

/// Of the peers that were measured.
fn versions(rows: &[Row]) -> String {
    let Ok(package) = Package::beside_this() else {
        return "unknown".to_owned();
    };
    let measured = |allocator: &&Allocator| rows.iter().any(|row| row.allocator == allocator.name);
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

/// One line at once, so that whoever reads along need not wait.
fn print_json(row: &Row) -> io::Result<()> {
    let mut line = serde_json::to_string(row)?;
    line.push('\n');
    print(&line)
}

fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

fn list() -> String {
    let mut text = String::from("workloads\n");
    for workload in WORKLOADS {
        let Workload {
            name,
            threads,
            about,
            ..
        } = workload;
        let threads = format!(
            "{threads} {}",
            if *threads == 1 { "thread" } else { "threads" }
        );
        text.push_str(&format!("  {name:16} {threads:10}  {about}\n"));
    }
    text.push_str("\nallocators\n");
    for allocator in ALLOCATORS {
        let only = match *allocator {
            Allocator { one_lock: true, .. } => "; one thread only",
            Allocator {
                steps_only: true, ..
            } => "; steps only",
            _ => "",
        };
        text.push_str(&format!(
            "  {:16} {}{only}\n",
            allocator.name, allocator.about
        ));
    }
    text
}

/// All, or the named ones in the order of the list.
fn chosen_workloads(names: &[String]) -> Vec<&'static Workload> {
    let wanted = |known: &&Workload| names.is_empty() || names.iter().any(|n| n == known.name);
    WORKLOADS.iter().filter(wanted).collect()
}

/// All, or the named ones in the order of the list.
fn chosen_allocators(names: &[String]) -> Vec<&'static Allocator> {
    let wanted = |known: &&Allocator| names.is_empty() || names.iter().any(|n| n == known.name);
    ALLOCATORS.iter().filter(wanted).collect()
}

/// On stderr, and only if someone watches.
fn progress_bar() -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {msg}") {
        bar.set_style(style);
    }
    bar
}
