//! `larder replay`: every trace through every contender.

use std::collections::HashSet;
use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use indicatif::ProgressBar;
use larder_cuda::driver::Choice;

use super::{Failure, complain};
use crate::device;
use crate::planned;
use crate::replay::report::Report;
use crate::replay::{CONTENDERS, ContenderSpec, Options, program_number, replay};
use crate::report::page::try_write;
use crate::report::{json_line, print, progress_bar};
use larder_trace::Trace;

/// Replays recorded traces and prints a table of what each allocator needed.
#[derive(Debug, Args)]
pub(super) struct ReplayArgs {
    /// Traces in format v1, plain text or zstd
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Replay only this allocator; may be given more than once
    #[arg(long = "allocator", value_name = "NAME", value_parser = known_names())]
    allocators: Vec<String>,

    #[command(flatten)]
    options: Options,

    /// Also replay on a driver, by the allocators `device` and `device-budget`, and by what programs
    /// use today, `cudarc` and `cuda-async`; the driver's calls are listed by name
    #[arg(long, value_name = "WHICH", value_parser = drivers())]
    driver: Option<Choice>,

    /// Plans to begin with, as --save-plans wrote them, for allocators that plan; one trace only
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,

    /// Where to write the plans that were learned; one trace and one allocator only
    #[arg(long, value_name = "FILE")]
    save_plans: Option<PathBuf>,

    /// Print one JSON object a line in place of the table
    #[arg(long)]
    json: bool,

    /// Also write one page with the table and a chart for each trace
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// The stand-in needs no GPU; auto is NVIDIA's driver if there is a device, else the stand-in.
fn drivers() -> impl TypedValueParser<Value = Choice> {
    let names = PossibleValuesParser::new(["stand-in", "real", "auto"]);
    names.map(|name| match name.as_str() {
        "stand-in" => Choice::StandIn,
        "real" => Choice::Real,
        _ => Choice::Auto,
    })
}

fn known_names() -> PossibleValuesParser {
    let known = CONTENDERS
        .iter()
        .chain(device::CONTENDERS)
        .map(|spec| PossibleValue::new(spec.name).help(spec.about));
    PossibleValuesParser::new(known)
}

/// Damaged traces are reported and left out; the others are still replayed.
pub(super) fn run(args: &ReplayArgs) -> Result<(), Failure> {
    each_once(&args.files)?;
    if let Some(page) = &args.html {
        spare_the_traces(page, &args.files)?;
        try_write(page).map_err(|error| no_page(page, &error))?;
    }
    if let Some(choice) = args.driver {
        let driver = device::use_driver(choice);
        let driver = driver.map_err(|error| Failure::Failed(error.to_string()))?;
        eprintln!("{driver}");
    }
    let chosen = chosen(args)?;
    let options = Options {
        plans: read_plans(args, &chosen)?,
        ..args.options
    };
    let progress = progress_bar();
    progress.set_length((args.files.len() * chosen.len()) as u64);
    let mut report = Report::new(options);
    let mut damaged = false;
    for file in &args.files {
        match Trace::load(file) {
            Ok(trace) => replay_all(&trace, &chosen, args, &options, &progress, &mut report)?,
            Err(error) => {
                damaged = true;
                progress.suspend(|| complain(&error));
                progress.inc(chosen.len() as u64);
            }
        }
    }
    progress.finish_and_clear();
    if !report.rows.is_empty() {
        if !args.json {
            print(&report.text())?;
        }
        if let Some(path) = &args.html {
            let page = report.page();
            let page = page.map_err(|error| no_page(path, error.as_ref()))?;
            fs::write(path, page).map_err(|error| no_page(path, &error))?;
        }
    }
    if damaged {
        Err(Failure::Reported)
    } else {
        Ok(())
    }
}

fn replay_all(
    trace: &Trace,
    chosen: &[&ContenderSpec],
    args: &ReplayArgs,
    options: &Options,
    progress: &ProgressBar,
    report: &mut Report,
) -> Result<(), Failure> {
    for spec in chosen {
        progress.set_message(format!("{} {}", trace.name(), spec.name));
        let mut outcome = replay(spec, trace, options)?;
        if let (Some(path), Some(plans)) = (&args.save_plans, outcome.plans.take()) {
            let written = fs::write(path, plans);
            written.map_err(|error| unusable("write", path, &error))?;
        }
        let row = report.add(trace.name(), spec.name, outcome);
        if args.json {
            let line = json_line(row)?;
            progress.suspend(|| print(&line))?;
        }
        progress.inc(1);
    }
    Ok(())
}

/// The plans of `--plan`, found to be whole.
fn read_plans(
    args: &ReplayArgs,
    chosen: &[&ContenderSpec],
) -> Result<Option<&'static [u8]>, Failure> {
    let planners: Vec<_> = chosen
        .iter()
        .filter(|spec| (spec.build)(None).planner().is_some())
        .collect();
    let uses_plans = args.plan.is_some() || args.save_plans.is_some();
    if uses_plans && (planners.is_empty() || args.files.len() > 1) {
        return Err(Failure::Arguments(
            "plans are of one trace and need an allocator that plans: give one FILE and --allocator planned".to_owned(),
        ));
    }
    if args.save_plans.is_some() && planners.len() > 1 {
        return Err(Failure::Arguments(
            "--save-plans writes what one allocator learned: give --allocator planned".to_owned(),
        ));
    }
    let Some(path) = &args.plan else {
        return Ok(None);
    };
    let program = program_number(&Trace::name_of(&args.files[0]));
    let plans = fs::read(path).map_err(|error| unusable("read", path, &error))?;
    for spec in planners {
        if let Some(steps) = (spec.build)(None).planner() {
            let loaded = planned::load(steps, program, &plans);
            loaded.map_err(|error| unusable("use the plans of", path, &error))?;
        }
    }
    // Read once, and used until the program ends.
    Ok(Some(plans.leak()))
}

fn unusable(act: &str, path: &Path, error: &dyn Display) -> Failure {
    Failure::Arguments(format!("cannot {act} {}: {error}", path.display()))
}

fn no_page(path: &Path, error: &(impl Display + ?Sized)) -> Failure {
    let path = path.display();
    Failure::Failed(format!("{path}: cannot write the page: {error}"))
}

/// All contenders, or the named ones in the order of the registry; those on a driver only with one.
fn chosen(args: &ReplayArgs) -> Result<Vec<&'static ContenderSpec>, Failure> {
    let names = &args.allocators;
    let named = |spec: &&ContenderSpec| names.iter().any(|name| name == spec.name);
    let wanted = |spec: &&ContenderSpec| names.is_empty() || named(spec);
    let mut chosen: Vec<_> = CONTENDERS.iter().filter(wanted).collect();
    if args.driver.is_some() {
        chosen.extend(device::CONTENDERS.iter().filter(wanted));
    } else if let Some(spec) = device::CONTENDERS.iter().find(named) {
        return Err(Failure::Arguments(format!(
            "{} runs on a driver: give --driver stand-in, real or auto",
            spec.name
        )));
    }
    Ok(chosen)
}

/// An error if a trace is given twice, since it would count twice in the means. A path that is no file is
/// reported when it is opened.
fn each_once(files: &[PathBuf]) -> Result<(), Failure> {
    let mut seen = HashSet::new();
    let mut paths = files.iter().filter_map(|file| {
        let path = file.canonicalize().ok().filter(|path| path.is_file())?;
        Some((file, path))
    });
    match paths.find(|(_, path)| !seen.insert(path.clone())) {
        Some((file, _)) => Err(Failure::Arguments(format!(
            "{} is given twice; give each trace once",
            file.display()
        ))),
        None => Ok(()),
    }
}

/// A slip such as `--html bert.trace` must not cost a trace.
fn spare_the_traces(page: &Path, files: &[PathBuf]) -> Result<(), Failure> {
    let Ok(existing) = page.canonicalize() else {
        return Ok(());
    };
    let is_trace = |file: &PathBuf| file.canonicalize().is_ok_and(|path| path == existing);
    if files.iter().any(is_trace) {
        let page = page.display();
        return Err(Failure::Arguments(format!(
            "--html {page} names one of the traces and would overwrite it; give another file"
        )));
    }
    Ok(())
}
