//! Host time and driver calls of an alloc and a free of checked memory, beside the same unchecked.
//!
//! `cargo bench -p larder-cuda --bench checked_pairs [-- --pairs 2000 --bytes 4096]` prints a markdown
//! table. The stream is idle, so a wait of the host is only its call; calls are counted on the stand-in.

use std::process::ExitCode;
use std::time::Instant;

use larder_core::decorate::QuarantineConfig;
use larder_core::{BlockAllocator, Request};
use larder_cuda::driver::load_from_env;
use larder_cuda::{CheckedConfig, Context, DeviceAllocator, DeviceConfig, checked};

/// Rounds, of which the median is printed.
const ROUNDS: usize = 9;

fn number(name: &str, default: usize) -> usize {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    let text = arguments.nth(1);
    text.and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The time of so many pairs in nanoseconds, or nothing if one failed.
fn time(allocator: &dyn BlockAllocator, pairs: usize, bytes: u64) -> Option<u128> {
    let begun = Instant::now();
    for _ in 0..pairs {
        let block = allocator.alloc(&Request::new(bytes)).ok()?.block;
        allocator.free(block).ok()?;
    }
    Some(begun.elapsed().as_nanos())
}

/// Prints a line.
fn measure(name: &str, allocator: &dyn BlockAllocator, pairs: usize, bytes: u64) -> Option<()> {
    let control = load_from_env().ok()?.stand_in();
    // What waits is full then, and memory is there.
    time(allocator, 100, bytes)?;
    let calls = || control.map_or(0, |control| control.calls(None));
    let before = calls();
    time(allocator, pairs, bytes)?;
    let calls = (calls() - before) as f64 / pairs as f64;
    let times: Option<Vec<u128>> = (0..ROUNDS).map(|_| time(allocator, pairs, bytes)).collect();
    let mut times = times?;
    times.sort_unstable();
    let of = |at: usize| times.get(at).copied().unwrap_or(0) as f64 / pairs as f64;
    let (least, median, max) = (of(0), of(ROUNDS / 2), of(ROUNDS - 1));
    println!("| {name} | {median:.0} | {least:.0} to {max:.0} | {calls:.1} |");
    Some(())
}

fn run() -> Option<()> {
    let (pairs, bytes) = (number("--pairs", 2000), number("--bytes", 4096) as u64);
    println!("{}\n", load_from_env().ok()?);
    println!("{pairs} pairs of {bytes} bytes, {ROUNDS} rounds\n");
    println!("| memory | ns a pair, median | spread | driver calls a pair |\n|---|---|---|---|");
    let context = Context::new(0).ok()?;
    let config = DeviceConfig {
        check_captures: false,
        ..DeviceConfig::new()
    };
    let memory = DeviceAllocator::with_config(&context, config).ok()?;
    let stream = context.cudarc().new_stream().ok()?;
    measure("unchecked", &memory.on(&stream).ok()?, pairs, bytes)?;
    let upstream = CheckedConfig::tensorflow();
    let waits = CheckedConfig {
        quarantine: QuarantineConfig::new(64 * bytes),
        ..CheckedConfig::new()
    };
    let configs = [
        (
            "guards of 16 bytes",
            CheckedConfig {
                reset: None,
                ..upstream
            },
        ),
        ("and resets: upstream's `memory_guard`", upstream),
        ("guards over the slack, resets, freed blocks wait", waits),
    ];
    for (name, config) in configs {
        measure(name, &checked(&memory, &stream, config).ok()?, pairs, bytes)?;
    }
    Some(())
}

fn main() -> ExitCode {
    match run() {
        Some(()) => ExitCode::SUCCESS,
        None => {
            eprintln!("no driver, or memory was short");
            ExitCode::FAILURE
        }
    }
}
