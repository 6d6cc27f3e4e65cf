//! Host time of one pair, a free and an alloc, in alternated rounds.
//!
//! `cargo bench -p larder-benches --bench pair_rounds [-- --live 100,1000 --rounds 15]`
//! prints a markdown table. One thread, no lock; what is asked and how it is
//! checked: `larder_cli::pair`. `gpu-allocator`, whose time grows with the live
//! blocks, is left out above 10 000 of them.
//!
//! Without `--bench`, as `cargo test --benches` runs it, it tries a few pairs only.

#![deny(unsafe_code)]

#[path = "pair/mod.rs"]
mod contenders;

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use larder_cli::Table;
use larder_cli::pair::{LIVE_RANGE, PairResult, PairScript, compare};

use contenders::{BASELINE, KINDS};

/// Any number will do.
const SEED: u64 = 1;

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
    pairs: usize,
    /// Given by `cargo bench`; without it a few pairs are tried and that is all
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    match print_table(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // A closed stderr leaves nobody to tell.
            let _ = writeln!(io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
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
        for result in compare_all(live, args.rounds, args.pairs)? {
            table.row([
                result.live.to_string(),
                result.contender.to_owned(),
                format!("{:.1}", result.ns_per_pair_median),
                format!("{:.2}", result.ratio_to_offset_allocator_median),
                format!("{:.2}", result.ratio_min),
                format!("{:.2}", result.ratio_max),
            ]);
        }
    }
    let (rounds, pairs) = (args.rounds, args.pairs);
    let table = table.markdown();
    println!("Medians of {rounds} alternated rounds of {pairs} pairs.\n\n{table}");
    Ok(())
}

/// All contenders that run at so many live blocks.
fn compare_all(
    live: usize,
    rounds: usize,
    pairs_per_round: usize,
) -> Result<Vec<PairResult>, Box<dyn Error>> {
    let script = PairScript::try_new(live, SEED)
        .ok_or_else(|| format!("{live} live blocks: not within {LIVE_RANGE:?}"))?;
    let kinds = KINDS.into_iter().filter(|kind| live <= kind.max_live);
    let kinds: Vec<_> = kinds.collect();
    let baseline = kinds.iter().position(|kind| kind.name == BASELINE);
    let baseline = baseline.ok_or("offset-allocator runs everywhere")?;
    let mut tables = vec![Vec::new(); kinds.len()];
    let mut runners = Vec::new();
    for (kind, table) in kinds.into_iter().zip(&mut tables) {
        runners.push(kind.build(&script, table)?);
    }
    Ok(compare(runners, baseline, rounds, pairs_per_round)?)
}
