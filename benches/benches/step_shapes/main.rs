//! CPU time and peak memory of programs with steps, compared with the same programs without them.
//!
//! `cargo bench -p larder-benches --bench step_shapes [-- --rounds 5 --shape plain,cache --seeds 8]` prints a markdown
//! table. Each run is a process of its own, and all of it counts, its first steps too. Every buffer is written in each
//! of its pages and read before it is freed; both programs must read the same.
//!
//! Without `--bench`, as under `cargo test --benches`, it runs only a few steps.
//!
//! * `buffer` a buffer, and the sum of the words that were read · `script` the events of a step
//! * `programs` the shapes · `families` random programs

#![deny(unsafe_code)]

mod buffer;
mod families;
mod programs;
mod script;

use std::error::Error;
use std::fs;
use std::process::{Command, ExitCode};
use std::thread::sleep;
use std::time::Duration;

use clap::Parser;
use larder_benches::exit_code;
use larder_benches::rounds::Rounds;
use larder_cli::Table;
use larder_cli::numbers::median;
use larder_model::Random;
use rustix::time::{ClockId, clock_gettime};

use buffer::read_sum;
use families::Family;
use programs::{FAMILIES, Run, SHAPES};

#[global_allocator]
static HEAP: larder::Larder = larder::Larder::new();

/// Longer than the heap's delay, after which it returns idle memory.
const IDLE: Duration = Duration::from_millis(2500);

const HEADINGS: &str = "shape, ms without, ms with, ratio, min, max, peak MiB without, peak MiB with, ratio, hits, \
    known steps, layouts";

/// The line that a child process prints, and the places of its figures.
type Figures = [u64; 9];
const MICROS: usize = 0;
const PEAK_KIB: usize = 1;
/// Resident memory after the pause, with the live blocks; 0 without `--idle`.
const IDLE_KIB: usize = 2;
const SUM: usize = 3;
const HITS: usize = 4;
const MISSES: usize = 5;
const UNPLANNED: usize = 6;
const LAYOUTS: usize = 7;
const KNOWN_STEPS: usize = 8;

/// Compares programs with and without steps.
#[derive(Debug, Parser)]
struct Args {
    /// Rounds; in each, every program runs once with steps and once without
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Only these shapes
    #[arg(long, value_delimiter = ',')]
    shape: Vec<String>,
    /// Number of random programs of the shape `families`
    #[arg(long, default_value_t = 8)]
    seeds: u64,
    /// Also compare the resident memory after a pause at the end
    #[arg(long)]
    idle: bool,
    /// The shape of a child process
    #[arg(long, hide = true)]
    child: Option<String>,
    /// Whether the child process has steps
    #[arg(long, hide = true)]
    with_steps: bool,
    /// The seed of the child process
    #[arg(long, hide = true, default_value_t = 1)]
    seed: u64,
    /// Set by `cargo bench`; without it only a few steps run
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    let mut args = Args::parse();
    if !args.bench {
        (args.rounds, args.seeds) = (1, args.seeds.min(2));
    }
    exit_code(match &args.child {
        None => print_table(&args),
        Some(name) => print_figures(name, &args),
    })
}

fn print_table(args: &Args) -> Result<(), Box<dyn Error>> {
    let known = |name: &String| SHAPES.iter().any(|shape| shape.name == name);
    if let Some(name) = args.shape.iter().find(|name| !known(name)) {
        let names = SHAPES.map(|shape| shape.name).join(", ");
        return Err(format!("no shape {name}; there are {names}").into());
    }
    let mut headings = Vec::from_iter(HEADINGS.split(", "));
    if args.idle {
        headings.extend(["idle MiB without", "idle MiB with"]);
    }
    let mut table = Table::new(headings);
    let asked = |name| args.shape.is_empty() || args.shape.iter().any(|asked| asked == name);
    for shape in SHAPES.iter().filter(|shape| asked(shape.name)) {
        let seeds = if shape.name == FAMILIES {
            args.seeds
        } else {
            1
        };
        for seed in 1..=seeds {
            table.row(row(shape.name, seed, args)?);
        }
    }
    let rounds = args.rounds;
    if asked(FAMILIES) {
        for seed in 1..=args.seeds {
            let family = Family::draw(&mut Random::new(seed));
            println!("{FAMILIES} {seed}: {family:?}");
        }
        println!();
    }
    let table = table.markdown();
    println!("Medians of {rounds} alternated rounds, CPU times.\n\n{table}");
    Ok(())
}

/// Runs a program with and without steps. Returns its row.
fn row(shape: &str, seed: u64, args: &Args) -> Result<Vec<String>, Box<dyn Error>> {
    let mut runs = [Vec::new(), Vec::new()];
    let times = Rounds::run(&mut [false, true], args.rounds, |with_steps| {
        let figures = figures_of(shape, *with_steps, seed, args)?;
        runs[usize::from(*with_steps)].push(figures);
        Ok::<_, Box<dyn Error>>(figures[MICROS] as f64 / 1e3)
    })?;
    let sum = runs[0][0][SUM];
    if runs.iter().flatten().any(|figures| figures[SUM] != sum) {
        return Err(format!("{shape}, seed {seed}: the programs read different words").into());
    }
    let medians = |figure: usize| {
        let of = |run: &Vec<Figures>| run.iter().map(|figures| figures[figure] as f64).collect();
        runs.each_ref()
            .map(|run| median(of(run)).unwrap_or(f64::NAN))
    };
    let peaks = medians(PEAK_KIB);
    let ratios = times.ratios(1, 0);
    let [hits, misses, unplanned] = [HITS, MISSES, UNPLANNED].map(|figure| medians(figure)[1]);
    let mut cells = vec![match shape {
        FAMILIES => format!("{shape} {seed}"),
        _ => shape.to_owned(),
    }];
    cells.extend([0, 1].map(|with| format!("{:.0}", times.median(with))));
    cells.push(format!("{:.2}", times.median(1) / times.median(0)));
    cells.extend([ratios.min, ratios.max].map(|ratio| format!("{ratio:.2}")));
    cells.extend(peaks.map(|kib| format!("{:.0}", kib / 1024.0)));
    cells.push(format!("{:.2}", peaks[1] / peaks[0]));
    let served = (hits + misses + unplanned).max(1.0);
    cells.push(format!("{:.1} %", 100.0 * hits / served));
    cells.extend([KNOWN_STEPS, LAYOUTS].map(|figure| medians(figure)[1].to_string()));
    if args.idle {
        cells.extend(medians(IDLE_KIB).map(|kib| format!("{:.0}", kib / 1024.0)));
    }
    Ok(cells)
}

/// Starts a child process. Returns its figures.
fn figures_of(
    shape: &str,
    with_steps: bool,
    seed: u64,
    args: &Args,
) -> Result<Figures, Box<dyn Error>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--child", shape, "--seed", &seed.to_string()]);
    command.args(with_steps.then_some("--with-steps"));
    command.args(args.idle.then_some("--idle"));
    command.args(args.bench.then_some("--bench"));
    let output = command.output()?;
    let text = String::from_utf8(output.stdout)?;
    let numbers: Vec<u64> = text.split_whitespace().flat_map(str::parse).collect();
    match Figures::try_from(numbers) {
        Ok(figures) if output.status.success() => Ok(figures),
        _ => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(format!("{shape}, seed {seed}: {}: {text}{said}", output.status).into())
        }
    }
}

/// Runs a program in this process, and prints its figures.
fn print_figures(name: &str, args: &Args) -> Result<(), Box<dyn Error>> {
    let shape = SHAPES
        .iter()
        .find(|shape| shape.name == name)
        .ok_or("no such shape")?;
    let mut run = Run::new(args.with_steps, args.bench, args.seed);
    let begin = cpu_micros();
    let live = (shape.program)(&mut run);
    let micros = cpu_micros() - begin;
    let mut figures = Figures::default();
    if args.idle {
        sleep(IDLE);
        figures[IDLE_KIB] = kib("VmRSS:");
    }
    drop(live);
    let steps = HEAP.stats().steps;
    figures[MICROS] = micros;
    figures[PEAK_KIB] = kib("VmHWM:");
    figures[SUM] = read_sum();
    figures[HITS] = steps.hits;
    figures[MISSES] = steps.misses;
    figures[UNPLANNED] = steps.unplanned;
    figures[LAYOUTS] = steps.layouts;
    figures[KNOWN_STEPS] = steps.known_steps;
    println!("{}", figures.map(|figure| figure.to_string()).join(" "));
    Ok(())
}

/// Returns the CPU time of the process so far, user and system.
fn cpu_micros() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000 + time.tv_nsec.unsigned_abs() / 1000
}

/// Returns a size of the process in KiB, or 0 where the system does not report it.
fn kib(field: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(field));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}
