//! Compares heaps for programs without an operating system: their times in alternating rounds, and the share of a
//! region that they can use.
//!
//! `cargo bench -p larder-benches --bench heap_rounds [-- --regions-mib 1,64 --rounds 15]` prints two markdown tables.
//! One thread makes the requests of `script.rs`, to one heap after another, each behind its lock. Each contender first
//! runs each script once with all contents checked, which also warms it up.
//!
//! Without `--bench`, as under `cargo test --benches`, it runs only a few requests.

mod contenders;
mod fault;
mod mix;
mod region;
mod runner;
mod script;

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;
use larder_benches::exit_code;
use larder_benches::rounds::Rounds;
use larder_cli::Table;

use contenders::HeapKind;
use fault::Fault;
use mix::Mix;

use script::HeapScript;

/// Compares heaps for programs without an operating system.
#[derive(Debug, Parser)]
struct Args {
    /// Regions in MiB, powers of two
    #[arg(long, value_delimiter = ',', default_value = "1,64")]
    regions_mib: Vec<usize>,
    /// Rounds; in each, every contender runs once
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Approximate number of requests of a script
    #[arg(long, default_value_t = 100_000)]
    requests: usize,
    /// Only scripts whose name contains this
    #[arg(long, default_value = "")]
    only: String,
    /// Number of runs that end when a request is refused, each with another seed; the mean is shown
    #[arg(long, default_value_t = 5)]
    fills: u64,
    /// Set by `cargo bench`; without it only a few requests run
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    exit_code(print_tables(Args::parse()))
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
        for script in HeapScript::all(mib << 20, args.requests) {
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

/// Runs all contenders. Returns the rows of the table. If a contender has no room for the script, its row says so.
fn rows(
    script: &HeapScript,
    region_bytes: usize,
    rounds: usize,
) -> Result<Vec<Vec<String>>, Fault> {
    let (mut entries, mut rows) = (Vec::new(), Vec::new());
    for kind in HeapKind::over(region_bytes) {
        let mut runner = kind.build(region_bytes)?;
        match kind.is_heap.then(|| runner.check(script)) {
            Some(Err(fault)) => rows.push(vec![kind.name.to_owned(), fault.to_string()]),
            _ => entries.push((kind, runner)),
        }
    }
    let times = Rounds::run(&mut entries, rounds, |(_, runner)| {
        // One run is not measured, since the previous contender has filled the caches.
        runner.run(script)?;
        let time = runner.run(script)?;
        Ok::<_, Fault>(time.as_secs_f64() * 1e9 / script.ops.len() as f64)
    })?;
    let heaps = (0..entries.len()).filter(|&entry| entries[entry].0.is_heap);
    let best = heaps.min_by(|&a, &b| times.median(a).total_cmp(&times.median(b)));
    for (entry, (kind, _)) in entries.iter().enumerate() {
        let ratios = times.ratios(entry, best.unwrap_or(entry));
        let mut row = vec![kind.name.to_owned(), format!("{:.1}", times.median(entry))];
        row.extend([ratios.median, ratios.min, ratios.max].map(|ratio| format!("{ratio:.2}")));
        rows.push(row);
    }
    Ok(rows)
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
            for kind in HeapKind::over(mib << 20).filter(|kind| kind.is_heap) {
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

/// Returns the mean and the minimum of the shares that are live when a request is refused, and the minimum share of the
/// largest block once everything has been freed.
fn shares_of(kind: HeapKind, mix: Mix, region_bytes: usize, fills: u64) -> Result<[f64; 3], Fault> {
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
