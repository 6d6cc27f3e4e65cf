//! Host time of one pair, a free and an alloc, in alternating rounds.
//!
//! `cargo bench -p larder-benches --bench pair_rounds [-- --live 100,1000 --rounds 15]`
//! prints a markdown table. One thread makes the pairs, without a lock. `larder_benches::pair` has the requests and
//! the checks.
//!
//! Without `--bench`, as under `cargo test --benches`, it runs only a few pairs.

#![deny(unsafe_code)]

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;
use larder_benches::exit_code;
use larder_benches::pair::{
    Bump, Churn, Failure, LIVE_RANGE, LarderPages, LarderRegion, OffsetAllocator, PairContender,
    PairFault, PairScript, Runner,
};
use larder_benches::rounds::Rounds;
use larder_cli::Table;

/// The seed of all scripts. Any number will do.
const SEED: u64 = 1;

/// Number of untimed pairs for each live block, before the first timed pair. After them, one in fifty of the blocks
/// that the fill placed in address order is left.
const SETTLING_PAIRS_PER_LIVE: u64 = 4;

/// One in this many of a round's pairs runs before the clock starts, to bring a contender's tables back into the
/// caches, which the previous contender filled.
const WARMING_SHARE: u64 = 8;

/// Index of `offset-allocator` among the contenders. All others are compared with it.
const BASELINE: usize = 1;

/// Compares the host time of one pair, a free and an alloc, among allocators.
#[derive(Debug, Parser)]
struct Args {
    /// Numbers of live blocks
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "100,1000,10000,100000,1000000"
    )]
    live: Vec<usize>,
    /// Rounds; in each, every contender runs once
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Timed pairs of each contender in each round
    #[arg(long, default_value_t = 200_000)]
    pairs: u64,
    /// Set by `cargo bench`; without it only a few pairs run
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    exit_code(print_table(Args::parse()))
}

fn print_table(mut args: Args) -> Result<(), Box<dyn Error>> {
    if !args.bench {
        (args.live, args.rounds, args.pairs) = (vec![*LIVE_RANGE.start()], 2, 1_000);
    }
    let headings = [
        "live",
        "contender",
        "ns per pair",
        "to offset-allocator",
        "min",
        "max",
    ];
    let mut table = Table::new(headings);
    for live in args.live {
        let script = PairScript::try_new(live, SEED)
            .ok_or_else(|| format!("{live} live blocks: not within {LIVE_RANGE:?}"))?;
        for row in rows(&script, args.rounds, args.pairs.max(1))? {
            table.row(row);
        }
    }
    let (rounds, pairs) = (args.rounds, args.pairs);
    let table = table.markdown();
    println!("Medians of {rounds} alternated rounds of {pairs} pairs.\n\n{table}");
    Ok(())
}

/// Runs all contenders. Returns the rows of the table.
fn rows(script: &PairScript, rounds: usize, pairs: u64) -> Result<Vec<[String; 6]>, Failure> {
    let (mut first_table, mut second_table) = (Vec::new(), Vec::new());
    let mut runners = [
        filled("the loop alone", Ok(Bump::default()), script)?,
        filled("offset-allocator", OffsetAllocator::try_new(script), script)?,
        filled(
            "larder",
            LarderRegion::try_new(script, &mut first_table),
            script,
        )?,
        filled(
            "larder-paged",
            LarderPages::try_new(script, &mut second_table),
            script,
        )?,
    ];
    for runner in &mut runners {
        runner.run(SETTLING_PAIRS_PER_LIVE * script.live() as u64)?;
    }
    let times = Rounds::run(&mut runners, rounds, |runner| {
        runner.run(pairs / WARMING_SHARE)?;
        Ok(runner.run(pairs)?.as_secs_f64() * 1e9 / pairs as f64)
    })?;
    let mut rows = Vec::new();
    for (place, runner) in runners.into_iter().enumerate() {
        let ratios = times.ratios(place, BASELINE);
        rows.push([
            script.live().to_string(),
            runner.name().to_owned(),
            format!("{:.1}", times.median(place)),
            format!("{:.2}", ratios.median),
            format!("{:.2}", ratios.min),
            format!("{:.2}", ratios.max),
        ]);
        runner.finish()?;
    }
    Ok(rows)
}

/// Returns a contender with the live blocks of a script.
fn filled<'a, C: PairContender + 'a>(
    name: &'static str,
    contender: Result<C, String>,
    script: &'a PairScript,
) -> Result<Box<dyn Runner + 'a>, Failure> {
    let contender = contender.map_err(|text| Failure {
        contender: name,
        live: script.live(),
        fault: PairFault::Setup(text),
    });
    Ok(Box::new(Churn::try_new(name, contender?, script)?))
}
