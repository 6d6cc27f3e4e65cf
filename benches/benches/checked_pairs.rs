//! Host time and driver calls of an alloc and a free of checked memory, compared with unchecked memory.
//!
//! `cargo bench -p larder-benches --bench checked_pairs [-- --pairs 2000 --bytes 4096]` prints a markdown
//! table. The stream is idle, so a wait of the host takes only as long as the driver call. Calls are counted on the
//! stand-in.

use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use larder_benches::exit_code;
use larder_benches::rounds::Rounds;
use larder_cli::Table;
use larder_core::decorate::QuarantineConfig;
use larder_core::{BlockAllocator, Request};
use larder_cuda::driver::load_from_env;
use larder_cuda::{CheckedConfig, Context, DeviceAllocator, DeviceConfig, checked};

/// Number of pairs before the clock starts. They fill the quarantine and grow the memory.
const SETTLING_PAIRS: usize = 100;

/// Compares checked memory with unchecked memory.
#[derive(Debug, Parser)]
struct Args {
    /// Pairs of each memory in each round
    #[arg(long, default_value_t = 2000)]
    pairs: usize,
    /// Bytes of a block
    #[arg(long, default_value_t = 4096)]
    bytes: u64,
    /// Rounds; in each, every memory runs once
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Set by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

/// Runs `pairs` pairs. Returns the nanoseconds of one pair.
fn time(allocator: &dyn BlockAllocator, pairs: usize, bytes: u64) -> Result<f64, Box<dyn Error>> {
    let start = Instant::now();
    for _ in 0..pairs {
        let block = allocator.alloc(&Request::new(bytes))?.block;
        allocator.free(block).map_err(|rejected| rejected.error)?;
    }
    Ok(start.elapsed().as_nanos() as f64 / pairs as f64)
}

fn main() -> ExitCode {
    exit_code(print_table(&Args::parse()))
}

fn print_table(args: &Args) -> Result<(), Box<dyn Error>> {
    let Args {
        pairs,
        bytes,
        rounds,
        ..
    } = *args;
    let driver = load_from_env()?;
    println!("{driver}\n");
    let context = Context::new(0)?;
    let config = DeviceConfig {
        check_captures: false,
        ..DeviceConfig::new()
    };
    let memory = DeviceAllocator::with_config(&context, config)?;
    let stream = context.cudarc().new_stream()?;
    let upstream = CheckedConfig::tensorflow();
    let guards = CheckedConfig {
        reset: None,
        ..upstream
    };
    let waits = CheckedConfig {
        quarantine: QuarantineConfig::new(64 * bytes),
        ..CheckedConfig::new()
    };
    let (unchecked, guards) = (memory.on(&stream)?, checked(&memory, &stream, guards)?);
    let (resets, waits) = (
        checked(&memory, &stream, upstream)?,
        checked(&memory, &stream, waits)?,
    );
    let mut memories: [(&str, &dyn BlockAllocator); 4] = [
        ("unchecked", &unchecked),
        ("guards of 16 bytes", &guards),
        ("and resets: upstream's `memory_guard`", &resets),
        ("guards over the slack, resets, freed blocks wait", &waits),
    ];
    let calls = || driver.stand_in().map_or(0, |stand_in| stand_in.calls(None));
    let mut calls_per_pair = Vec::new();
    for (_, memory) in memories {
        time(memory, SETTLING_PAIRS, bytes)?;
        let before = calls();
        time(memory, pairs, bytes)?;
        calls_per_pair.push((calls() - before) as f64 / pairs as f64);
    }
    let times = Rounds::run(&mut memories, rounds, |(_, memory)| {
        time(*memory, pairs, bytes)
    })?;
    let mut table = Table::new(["memory", "ns a pair", "to unchecked", "driver calls a pair"]);
    for (place, (name, _)) in memories.iter().enumerate() {
        table.row([
            (*name).to_owned(),
            format!("{:.0}", times.median(place)),
            format!("{:.2}", times.ratios(place, 0).median),
            format!("{:.1}", calls_per_pair[place]),
        ]);
    }
    println!(
        "Medians of {rounds} alternated rounds of {pairs} pairs of {bytes} bytes.\n\n{}",
        table.markdown()
    );
    Ok(())
}
