//! `larder replay`: replays every trace on every contender.

use std::collections::HashSet;
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use indicatif::ProgressBar;
use larder_cuda::driver::Choice;

use super::{Failure, complain, warn, warn_of_cut};
use crate::device;
use crate::families::{self, Family};
use crate::input::{self, Tapes};
use crate::interrupt;
use crate::peers::{self, PytorchConfig};
use crate::replay::heaps::{HEAP_RUNS, HeapFault, HeapReport, HeapSpec, play_all};
use crate::replay::report::ReplayReport;
use crate::replay::{
    CONTENDERS, ContenderSpec, OF_STEPS, Options, PYTORCH_SET, RecordedTape, ReplayError,
    ReplayScript, SHOWN, TapeWriter, program_number, record, replay_watched,
};
use crate::report::page::try_write;
use crate::report::{Shown, json_line, print, print_wrapped, progress_bar};
use crate::{plan, planned};
use larder_core::Align;
use larder_trace::Trace;

/// Replays recorded traces and prints a table of what each allocator needed.
#[derive(Debug, Args)]
pub(super) struct ReplayArgs {
    /// Traces, PyTorch snapshots, RMM logs, lifetimes; `-` is stdin
    ///
    /// Traces in format v1, what torch.cuda.memory's _dump_snapshot writes, and the CSV of RMM's logging adaptor, each
    /// plain, gzip, xz or zstd; the format is detected by content. Another CSV file has lifetimes, as `larder plan` reads
    /// them, and is replayed as a step that allocates and frees them.
    #[arg(required_unless_present = "families", value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Also replay random programs, those with FILTER in their name
    ///
    /// Each is named after its sizes, lifetimes, live bytes, streams and seed, such as uniform-tail-3GiB-8s-7.
    #[arg(
        long,
        value_name = "FILTER",
        num_args = 0..=1,
        default_missing_value = "",
        conflicts_with_all = ["plan", "save_plans", "snapshot"]
    )]
    families: Option<String>,

    /// Operations of each such program
    #[arg(
        long,
        value_name = "N",
        requires = "families",
        default_value_t = families::OPERATIONS,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    operations: u32,

    /// Play on process heaps, not on a simulated device
    ///
    /// Larder in three configurations, the C library's heap, and jemalloc and mimalloc where they are installed. What
    /// `larder::Recorder` recorded is played so unless an option of devices is given.
    #[arg(long)]
    heaps: bool,

    /// Replay only this allocator; may be given more than once
    #[arg(long = "allocator", value_name = "NAME", value_parser = known_names())]
    allocators: Vec<String>,

    /// Replay every allocator, other models and yardsticks too
    ///
    /// By default: PyTorch's, with and without segments that can grow, and ours, also with plans if the
    /// trace marks steps.
    #[arg(long, conflicts_with = "allocators")]
    all: bool,

    /// Also replay PyTorch's allocator with these settings, as `pytorch-set`
    ///
    /// They are written as in PYTORCH_CUDA_ALLOC_CONF, joined by commas, such as expandable_segments:True or
    /// max_split_size_mb:128.
    #[arg(long, value_name = "SETTINGS", value_parser = PytorchConfig::parse)]
    pytorch: Option<PytorchConfig>,

    #[command(flatten)]
    options: Options,

    /// Also replay on a driver
    ///
    /// With the allocators `device` and `device-budget`, and those that programs use today, `cudarc` and `cuda-async`;
    /// the driver's calls are listed by name.
    #[arg(long, value_name = "WHICH", value_parser = drivers())]
    driver: Option<Choice>,

    /// Plans to begin with, as --save-plans wrote them
    ///
    /// For allocators that plan; one trace only.
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,

    /// Where to write the plans that were learned
    ///
    /// One trace and one allocator only.
    #[arg(long, value_name = "FILE")]
    save_plans: Option<PathBuf>,

    /// Also write a memory snapshot for PyTorch's viewer
    ///
    /// The history of the replay and the memory held at its end, for docs.pytorch.org/memory_viz; one trace and one allocator
    /// only.
    #[arg(long, value_name = "FILE")]
    snapshot: Option<PathBuf>,

    /// Print one JSON object a line in place of the table
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    shown: Shown,

    /// Also write one page with the table and pictures
    ///
    /// The pictures of each trace are memory, addresses and driver calls over time.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Parses the choice of a driver. The stand-in needs no GPU; auto is NVIDIA's driver if there is a
/// device, otherwise the stand-in.
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
        .chain([&PYTORCH_SET])
        .chain(device::CONTENDERS)
        .map(|spec| PossibleValue::new(spec.name).help(spec.about));
    PossibleValuesParser::new(known)
}

/// Replays all traces. Damaged traces are reported and skipped.
pub(super) fn run(args: &ReplayArgs) -> Result<(), Failure> {
    check_arguments(args)?;
    if let Some(choice) = args.driver {
        let driver = device::use_driver(choice);
        let driver = driver.map_err(|error| Failure::Failed(error.to_string()))?;
        eprintln!("{driver}");
    }
    if let Some(config) = args.pytorch {
        if config.collect_above > 0.0 && args.options.device_bytes.is_none() {
            warn(
                &"garbage_collection_threshold is a part of the device: without --device-bytes it does nothing",
            );
        }
        peers::configure(config);
    }
    let families = wanted_families(args)?;
    let chosen = chosen(args)?;
    check_snapshot(args, &chosen)?;
    let options = Options {
        plans: read_plans(args, &chosen)?,
        history: args.html.is_some(),
        ..args.options
    };
    interrupt::listen();
    let progress = progress_bar();
    let mut report = ReplayReport::new(options);
    let mut heaps = HeapReport::default();
    let mut damaged = false;
    for file in args.files.iter().take_while(|_| !interrupt::asked()) {
        match progress.suspend(|| read_file(file)) {
            Ok(traces) => {
                check_only(args, file, traces.len())?;
                for tape in traces {
                    if on_heaps(args, &tape.0) {
                        play_on_heaps(tape, args, &progress, &mut heaps)?;
                    } else {
                        replay_all(tape, &chosen, args, &options, &progress, &mut report)?;
                    }
                }
            }
            Err(_) if interrupt::asked() => {}
            Err(error) => {
                damaged = true;
                progress.suspend(|| complain(&error));
            }
        }
    }
    for family in families.iter().take_while(|_| !interrupt::asked()) {
        let tape = family.tape(args.operations);
        let tape = tape.map_err(|error| Failure::Failed(error.to_string()))?;
        replay_all(tape, &chosen, args, &options, &progress, &mut report)?;
    }
    progress.finish_and_clear();
    write_reports(args, &heaps, &report)?;
    let of = report.rows.len();
    match report.refused() {
        _ if interrupt::asked() => Err(Failure::Interrupted),
        _ if damaged => Err(Failure::Reported),
        _ if heaps.failed.is_some() => Err(Failure::Failed(heaps.failed.unwrap_or_default())),
        0 => Ok(()),
        replays => Err(Failure::TooSmall { replays, of }),
    }
}

/// Returns an error if a file is given twice, options contradict each other, or an output cannot be
/// written.
fn check_arguments(args: &ReplayArgs) -> Result<(), Failure> {
    each_once(&args.files)?;
    if args.heaps && is_of_devices(args) {
        return Err(Failure::Arguments(
            "--heaps plays on process heaps: leave out the options of devices and their allocators"
                .to_owned(),
        ));
    }
    for (option, output) in [("--html", &args.html), ("--snapshot", &args.snapshot)] {
        if let Some(output) = output {
            try_page(option, output, &args.files)?;
        }
    }
    Ok(())
}

/// Writes the reports that have rows, as text unless lines of JSON were written, and as a page.
fn write_reports(
    args: &ReplayArgs,
    heaps: &HeapReport,
    report: &ReplayReport,
) -> Result<(), Failure> {
    let (shown, width) = (&args.shown, args.shown.width());
    if !args.json && !heaps.rows.is_empty() {
        let text = heaps.text(shown).map_err(Failure::Arguments)?;
        print_wrapped(&text, width)?;
    }
    if report.rows.is_empty() {
        return Ok(());
    }
    if !args.json {
        let text = report.text(shown).map_err(Failure::Arguments)?;
        print_wrapped(&text, width)?;
    }
    if let Some(path) = &args.html {
        let page = report.page();
        let page = page.map_err(|error| cannot_write(path, &error))?;
        fs::write(path, page).map_err(|error| cannot_write(path, &error))?;
    }
    Ok(())
}

/// Reads the traces of a file, or the lifetimes of a CSV file as a program. Warns if the file is cut
/// short, or if a part of it is left out.
fn read_file(file: &Path) -> Result<Tapes, String> {
    let Some(problem) = plan::lifetimes(file)? else {
        let (traces, cut) = input::tapes(file).map_err(|error| error.to_string())?;
        cut.iter().for_each(warn_of_cut);
        return Ok(traces);
    };
    let trace = plan::trace(&problem).map_err(|error| error.to_string())?;
    let mut writer = TapeWriter::new();
    for event in trace.events() {
        writer.write(*event, 0);
    }
    let mut lifetimes = problem.lifetimes.iter();
    let bound = lifetimes.any(|life| life.align != Align::ONE || life.pinned.is_some());
    if bound {
        let file = file.display();
        warn(&format_args!(
            "{file}: alignments and fixed offsets are left out of the replay"
        ));
    }
    Ok(vec![(trace, writer.finish())])
}

/// Returns whether an option is given that is about devices and their allocators.
fn is_of_devices(args: &ReplayArgs) -> bool {
    let options = &args.options;
    args.all
        || args.families.is_some()
        || !args.allocators.is_empty()
        || args.pytorch.is_some()
        || args.driver.is_some()
        || args.plan.is_some()
        || args.save_plans.is_some()
        || args.snapshot.is_some()
        || args.html.is_some()
        || options.device_bytes.is_some()
        || options.passes.get() > 1
        || options.smallest_device
}

/// Returns whether a trace is played on process heaps: if the option says so, or if a process heap was
/// recorded and no option is about devices.
fn on_heaps(args: &ReplayArgs, trace: &Trace) -> bool {
    let mut header = trace.header().iter();
    let of_a_heap = header.any(|(key, by)| key == "recorded" && by.starts_with("larder "));
    args.heaps || of_a_heap && !is_of_devices(args)
}

/// Plays one trace on all process heaps.
fn play_on_heaps(
    (trace, written): (Trace, io::Result<RecordedTape>),
    args: &ReplayArgs,
    progress: &ProgressBar,
    report: &mut HeapReport,
) -> Result<(), Failure> {
    let mut tape = written.map_err(ReplayError::NoTape)?;
    let events = tape.tape.events();
    progress.inc_length(events * HEAP_RUNS);
    let ended = |heap: &HeapSpec| {
        progress.set_message(format!("{} {}", trace.name(), heap.name));
        progress.inc(events);
    };
    match play_all(&mut tape, &ended) {
        Err(HeapFault::Interrupted) => return Ok(()),
        Err(fault) => return Err(Failure::Failed(format!("{}: {fault}", trace.name()))),
        Ok(heaps) => {
            for (spec, runs) in heaps {
                let row = report.add(trace.name(), tape.peak_live_bytes, &spec, runs);
                if args.json {
                    let line = json_line(row)?;
                    progress.suspend(|| print(&line))?;
                }
            }
        }
    }
    Ok(())
}

/// The note on a trace without step marks.
const NO_STEPS: &str =
    "no steps are marked, so nothing can be planned: allocators that plan steps are left out";

/// Replays one trace with all chosen contenders, until the user presses Ctrl-C.
fn replay_all(
    (trace, written): (Trace, io::Result<RecordedTape>),
    chosen: &[&ContenderSpec],
    args: &ReplayArgs,
    options: &Options,
    progress: &ProgressBar,
    report: &mut ReplayReport,
) -> Result<(), Failure> {
    let written = written.map_err(ReplayError::NoTape)?;
    let wanted = chosen.len();
    let chosen = with_steps(args, chosen, written.has_steps);
    let is_left_out = chosen.len() < wanted;
    progress.inc_length(written.tape.events() * chosen.len() as u64);
    let script = ReplayScript::new(trace, written, options.passes, options.repeat);
    let script = &mut script.map_err(ReplayError::NoTape)?;
    let trace = script.trace().name().to_owned();
    for spec in &chosen {
        progress.set_message(format!("{trace} {}", spec.name));
        let (before, events) = (progress.position(), script.trace_events());
        let watch = |part: f64| progress.set_position(before + (part * events as f64) as u64);
        let mut outcome = match replay_watched(spec, script, options, &watch) {
            Err(ReplayError::Interrupted) => return Ok(()),
            outcome => outcome?,
        };
        if let (Some(path), Some(plans)) = (&args.save_plans, outcome.plans.take()) {
            let written = fs::write(path, plans);
            written.map_err(|error| unusable("write", path, &error))?;
        }
        if let Some(path) = &args.snapshot {
            write_snapshot(path, spec, script, options)?;
        }
        if is_left_out {
            outcome.notes.push(NO_STEPS.to_owned());
        }
        let row = report.add(&trace, spec.name, outcome);
        if args.json {
            let line = json_line(row)?;
            progress.suspend(|| print(&line))?;
        }
        progress.set_position(before + events);
    }
    Ok(())
}

/// Returns the contenders for a trace. Those that only plan steps are left out if the trace marks no
/// steps, since they would repeat another row, unless they are named.
fn with_steps<'s>(
    args: &ReplayArgs,
    chosen: &[&'s ContenderSpec],
    has_steps: bool,
) -> Vec<&'s ContenderSpec> {
    let uses_plans = args.plan.is_some() || args.save_plans.is_some();
    let keeps_all = has_steps || uses_plans || !args.allocators.is_empty();
    let mut chosen = chosen.to_vec();
    chosen.retain(|spec| keeps_all || !OF_STEPS.contains(&spec.name));
    chosen
}

/// Returns the families that match `--families`, or an error if none does.
pub(super) fn wanted_families(args: &ReplayArgs) -> Result<Vec<Family>, Failure> {
    let Some(filter) = &args.families else {
        return Ok(Vec::new());
    };
    let mut families = families::all();
    families.retain(|family| family.to_string().contains(filter.as_str()));
    if families.is_empty() {
        return Err(Failure::Arguments(format!(
            "no family has `{filter}` in its name: names look like uniform-tail-3GiB-8s-7; files go in front of \
             --families"
        )));
    }
    Ok(families)
}

/// Returns an error if `--snapshot` is given, unless there are one trace and one allocator, which
/// reports where it holds memory.
fn check_snapshot(args: &ReplayArgs, chosen: &[&ContenderSpec]) -> Result<(), Failure> {
    if args.snapshot.is_none() {
        return Ok(());
    }
    let &[spec] = chosen else {
        return Err(Failure::Arguments(
            "a snapshot is of one trace and one allocator: give one FILE and one --allocator"
                .to_owned(),
        ));
    };
    if args.files.len() > 1 {
        return Err(Failure::Arguments(
            "a snapshot is of one trace: give one FILE".to_owned(),
        ));
    }
    if (spec.build)(None).held().is_none() {
        return Err(Failure::Arguments(format!(
            "{} does not say where it holds memory: give another --allocator for --snapshot",
            spec.name
        )));
    }
    Ok(())
}

/// Returns an error if a file has several traces and an option needs a single one.
fn check_only(args: &ReplayArgs, file: &Path, traces: usize) -> Result<(), Failure> {
    let of_one = args.snapshot.is_some() || args.plan.is_some() || args.save_plans.is_some();
    if of_one && traces > 1 {
        let file = file.display();
        return Err(Failure::Arguments(format!(
            "{file} has {traces} traces, one for each device, and --snapshot, --plan and --save-plans need a single one: record one device"
        )));
    }
    Ok(())
}

/// Replays once more, to write a snapshot for PyTorch's viewer.
fn write_snapshot(
    path: &Path,
    spec: &ContenderSpec,
    script: &mut ReplayScript,
    options: &Options,
) -> Result<(), Failure> {
    let snapshot = record(spec, script, options).map_err(Failure::Failed)?;
    let written = File::create(path)
        .and_then(|file| snapshot.write(script.trace().name(), spec.name, BufWriter::new(file)));
    written.map_err(|error| cannot_write(path, &error))
}

/// Reads and validates the plans of `--plan`.
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
            "plans are of one trace and need an allocator that plans: give one FILE and --allocator larder-planned".to_owned(),
        ));
    }
    if args.save_plans.is_some() && planners.len() > 1 {
        return Err(Failure::Arguments(
            "--save-plans writes what one allocator learned: give --allocator larder-planned"
                .to_owned(),
        ));
    }
    let Some(path) = &args.plan else {
        return Ok(None);
    };
    let program = program_number(&Trace::name_of(input::name(&args.files[0])));
    let plans = fs::read(path).map_err(|error| unusable("read", path, &error))?;
    for spec in planners {
        if let Some(steps) = (spec.build)(None).planner() {
            let loaded = planned::load(steps, program, &plans);
            loaded.map_err(|error| unusable("use the plans of", path, &error))?;
        }
    }
    // The plans are read once and used until the program ends.
    Ok(Some(plans.leak()))
}

fn unusable(act: &str, path: &Path, error: &dyn Display) -> Failure {
    Failure::Arguments(format!("cannot {act} {}: {error}", path.display()))
}

pub(super) fn cannot_write(path: &Path, error: &dyn Display) -> Failure {
    let path = path.display();
    Failure::Failed(format!("{path}: cannot write: {error}"))
}

/// Returns the named contenders, all of them, or those shown by default, in the order of the
/// registry. A contender that needs an option is included only with that option.
fn chosen(args: &ReplayArgs) -> Result<Vec<&'static ContenderSpec>, Failure> {
    let names = &args.allocators;
    let named = |spec: &&ContenderSpec| names.iter().any(|name| name == spec.name);
    let wanted = |spec: &&ContenderSpec| names.is_empty() || named(spec);
    let shown = |spec: &&ContenderSpec| args.all || SHOWN.contains(&spec.name);
    let shown = |spec: &&ContenderSpec| named(spec) || names.is_empty() && shown(spec);
    let mut chosen: Vec<_> = CONTENDERS.iter().filter(shown).collect();
    let optional: [(bool, &'static [ContenderSpec], &str); 2] = [
        (
            args.pytorch.is_some(),
            &[PYTORCH_SET],
            "as you set it: give --pytorch SETTINGS",
        ),
        (
            args.driver.is_some(),
            device::CONTENDERS,
            "on a driver: give --driver stand-in, real or auto",
        ),
    ];
    for (given, specs, needs) in optional {
        if given {
            chosen.extend(specs.iter().filter(wanted));
        } else if let Some(spec) = specs.iter().find(named) {
            let name = spec.name;
            return Err(Failure::Arguments(format!("{name} runs {needs}")));
        }
    }
    Ok(chosen)
}

/// Returns an error if a trace is given twice, since it would count twice in the means. A path that
/// is not a file is reported when it is opened.
fn each_once(files: &[PathBuf]) -> Result<(), Failure> {
    let mut seen = HashSet::new();
    let mut paths = files.iter().filter_map(|file| {
        if input::is_standard_input(file) {
            return Some((file, file.clone()));
        }
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

/// Returns an error if the output `page` of an option would overwrite a trace or cannot be written.
pub(super) fn try_page(option: &str, page: &Path, files: &[PathBuf]) -> Result<(), Failure> {
    spare_what_is_read(option, page, files)?;
    try_write(page).map_err(|error| cannot_write(page, &error))
}

/// Returns an error if an output is one of the input files, so that a slip such as `--html
/// bert.trace` does not destroy a trace.
fn spare_what_is_read(option: &str, page: &Path, files: &[PathBuf]) -> Result<(), Failure> {
    let Ok(existing) = page.canonicalize() else {
        return Ok(());
    };
    let is_read = |file: &PathBuf| file.canonicalize().is_ok_and(|path| path == existing);
    if files.iter().any(is_read) {
        let page = page.display();
        return Err(Failure::Arguments(format!(
            "{option} {page} names one of the files to read and would overwrite it; give another file"
        )));
    }
    Ok(())
}
