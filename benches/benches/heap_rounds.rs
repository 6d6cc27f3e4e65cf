//! Heaps without an operating system in alternated rounds, and how much of a region they can use.
//!
//! `cargo bench -p larder-benches --bench heap_rounds [-- --regions-mib 1,64 --rounds 15]` prints two
//! markdown tables. One thread, each heap behind its lock; what is asked: `heap/script.rs`. Each
//! contender first runs each script once with all contents checked, and is warm from it.
//!
//! Without `--bench`, as `cargo test --benches` runs it, it tries a few requests only.

#[path = "heap/mod.rs"]
mod heaps;

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use larder_cli::Table;
use larder_cli::numbers::median;

use heaps::contenders::Kind;
use heaps::fault::Fault;
use heaps::mix::Mix;
use heaps::runner::Runner;
use heaps::script::Script;

/// Compares heaps for programs without an operating system.
#[derive(Debug, Parser)]
struct Args {
    /// Regions in MiB, powers of two
    #[arg(long, value_delimiter = ',', default_value = "1,64")]
    regions_mib: Vec<usize>,
    /// Rounds; in each, every contender runs once
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Requests of a script, about
    #[arg(long, default_value_t = 100_000)]
    requests: usize,
    /// Only scripts whose name contains this
    #[arg(long, default_value = "")]
    only: String,
    /// Runs to exhaustion, each with another seed; the mean is shown
    #[arg(long, default_value_t = 5)]
    fills: u64,
    /// Given by `cargo bench`; without it little is tried and that is all
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    match print_tables(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // A closed stderr leaves nobody to tell.
            let _ = writeln!(io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn print_tables(mut args: Args) -> Result<(), Box<dyn Error>> {
    if !args.bench {
        (args.regions_mib, args.rounds, args.requests, args.fills) = (vec![1], 2, 500, 1);
    }
    if args.rounds > 0 {
        println!("{}", times(&args)?);
    }
    if args.fills > 0 {
        println!("{}", shares(&args)?);
    }
    Ok(())
}

fn times(args: &Args) -> Result<String, Box<dyn Error>> {
    let headings = [
        "MiB",
        "script",
        "contender",
        "ns per request",
        "to the best",
        "min",
        "max",
    ];
    let mut table = Table::new(headings);
    for &mib in &args.regions_mib {
        for script in Script::all(mib << 20, args.requests) {
            if !script.name.contains(&args.only) {
                continue;
            }
            for row in rows(&script, mib << 20, args.rounds)? {
                let place = [mib.to_string(), script.name.to_owned()];
                table.row(place.into_iter().chain(row));
            }
        }
    }
    let rounds = args.rounds;
    Ok(format!(
        "Medians of {rounds} alternated rounds.\n\n{}",
        table.markdown()
    ))
}

/// A contender in the rounds.
struct Entry {
    kind: Kind,
    runner: Box<dyn Runner>,
    /// Nanoseconds a request, round by round.
    ns: Vec<f64>,
    fault: Option<Fault>,
}

impl Entry {
    /// A contender that has run the script once with all contents checked; a refusal there is kept.
    fn try_new(kind: Kind, script: &Script, region_bytes: usize) -> Result<Self, Fault> {
        let mut runner = kind.build(region_bytes)?;
        let checked = match kind.is_heap {
            true => runner.check(script),
            false => Ok(()),
        };
        Ok(Self {
            kind,
            runner,
            ns: Vec::new(),
            fault: checked.err(),
        })
    }

    fn run(&mut self, script: &Script) {
        if self.fault.is_some() {
            return;
        }
        // Once unmeasured: the one before has filled the caches.
        let run = self
            .runner
            .run(script)
            .and_then(|_| self.runner.run(script));
        match run {
            Ok(time) => self
                .ns
                .push(time.as_secs_f64() * 1e9 / script.ops.len() as f64),
            Err(fault) => self.fault = Some(fault),
        }
    }
}

/// Runs all contenders and makes the rows of the table.
fn rows(script: &Script, region_bytes: usize, rounds: usize) -> Result<Vec<Vec<String>>, Fault> {
    let mut entries = Kind::over(region_bytes)
        .map(|kind| Entry::try_new(kind, script, region_bytes))
        .collect::<Result<Vec<_>, _>>()?;
    for round in 0..rounds {
        let length = entries.len();
        for turn in 0..length {
            // There and back, so that nobody always runs after the same neighbour.
            let place = match round.is_multiple_of(2) {
                true => turn,
                false => length - 1 - turn,
            };
            entries[place].run(script);
        }
    }
    let heaps = entries
        .iter()
        .filter(|entry| entry.kind.is_heap && entry.fault.is_none());
    let best = heaps.min_by(|a, b| middle(&a.ns).total_cmp(&middle(&b.ns)));
    let best = best.map_or(&[][..], |entry| &entry.ns);
    Ok(entries.iter().map(|entry| row(entry, best)).collect())
}

fn row(entry: &Entry, best: &[f64]) -> Vec<String> {
    let name = entry.kind.name.to_owned();
    if let Some(fault) = entry.fault {
        return vec![
            name,
            fault.to_string(),
            String::new(),
            String::new(),
            String::new(),
        ];
    }
    let pairs = entry.ns.iter().zip(best);
    let ratios: Vec<f64> = pairs.map(|(ns, best)| ns / best).collect();
    let min = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let max = ratios.iter().copied().fold(0.0, f64::max);
    let mut cells = vec![name, format!("{:.1}", middle(&entry.ns))];
    cells.extend([middle(&ratios), min, max].map(|ratio| format!("{ratio:.2}")));
    cells
}

fn middle(numbers: &[f64]) -> f64 {
    median(numbers.to_vec()).unwrap_or(0.0)
}

fn shares(args: &Args) -> Result<String, Box<dyn Error>> {
    let headings = [
        "MiB",
        "sizes",
        "contender",
        "live at the end",
        "least",
        "largest block after",
    ];
    let mut table = Table::new(headings);
    for &mib in &args.regions_mib {
        for mix in Mix::ALL {
            for kind in Kind::over(mib << 20).filter(|kind| kind.is_heap) {
                let mut cells = vec![mib.to_string(), mix.name().to_owned(), kind.name.to_owned()];
                let shares = shares_of(kind, mix, mib << 20, args.fills)?;
                cells.extend(shares.map(|share| format!("{share:.3}")));
                table.row(cells);
            }
        }
    }
    Ok(format!(
        "Share of the region that is live when a request is first refused, two allocations for \
         each random free, mean of {} seeds; and the largest block when all is freed again, as a \
         share of the region.\n\n{}",
        args.fills,
        table.markdown()
    ))
}

/// Mean and least share live at the end, and least share of the largest block afterwards.
fn shares_of(kind: Kind, mix: Mix, region_bytes: usize, fills: u64) -> Result<[f64; 3], Fault> {
    let region = region_bytes as f64;
    let (mut sum, mut min, mut largest) = (0.0, 1.0_f64, 1.0_f64);
    for seed in 0..fills {
        let mut runner = kind.build(region_bytes)?;
        let share = runner.fill_up(mix, seed) as f64 / region;
        sum += share;
        min = min.min(share);
        largest = largest.min(runner.largest_block() as f64 / region);
    }
    Ok([sum / fills as f64, min, largest])
}
