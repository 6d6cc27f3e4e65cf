//! The process that plays a trace on one heap.

use std::alloc::System;
use std::fs;
use std::io::{self, Read};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use larder::Larder;

use super::player::Player;
use super::{HeapRun, NOT_INSTALLED};

/// Samples of the resident memory in a run.
const SAMPLES: u64 = 128;
/// Maximum number of events that are read together.
const MAX_CHUNK: u64 = 4096;
/// Bytes of an event: two numbers.
const EVENT_BYTES: usize = 16;

/// Plays events from standard input; `larder replay` starts it.
#[derive(Debug, Args)]
pub(crate) struct PlayHeapArgs {
    heap: String,
    /// The library that must have replaced malloc.
    #[arg(long)]
    library: Option<String>,
    /// Maximum number of live blocks.
    #[arg(long)]
    places: usize,
    #[arg(long)]
    events: u64,
}

/// Plays the events, and prints a [`HeapRun`].
pub(crate) fn play_heap(args: &PlayHeapArgs) -> ExitCode {
    static BALANCED: Larder = Larder::new();
    static SPEED: Larder = Larder::speed();
    static MEMORY: Larder = Larder::memory();

    if let Some(library) = &args.library {
        let maps = fs::read_to_string("/proc/self/maps");
        if !maps.is_ok_and(|maps| maps.contains(library)) {
            return ExitCode::from(NOT_INSTALLED);
        }
    }
    let run = match args.heap.as_str() {
        "larder" => run(args, Player::new(&BALANCED, args.places)),
        "larder-speed" => run(args, Player::new(&SPEED, args.places)),
        "larder-memory" => run(args, Player::new(&MEMORY, args.places)),
        _ => run(args, Player::new(&System, args.places)),
    };
    let line = run.and_then(|run| Ok(serde_json::to_string(&run)?));
    match line {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run<H: std::alloc::GlobalAlloc>(
    args: &PlayHeapArgs,
    mut player: Player<'_, H>,
) -> io::Result<HeapRun> {
    let chunk = (args.events / SAMPLES).clamp(1, MAX_CHUNK) as usize;
    // Written to, so that it is resident before the first event.
    let mut bytes = Vec::new();
    bytes.resize_with(chunk * EVENT_BYTES, || 1_u8);
    let mut resident = Vec::with_capacity(2 * SAMPLES as usize);
    // Sets the peak back to what is resident now.
    let _ = fs::write("/proc/self/clear_refs", "5");
    let before = status("VmRSS:").unwrap_or(0);
    let mut input = io::stdin().lock();
    let (mut operations, mut time) = (0, Duration::ZERO);
    loop {
        let read = fill(&mut input, &mut bytes)?;
        let (events, rest) = bytes[..read].as_chunks::<EVENT_BYTES>();
        if !rest.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if events.is_empty() {
            break;
        }
        let start = Instant::now();
        for event in events {
            let [place, bytes] = [&event[..8], &event[8..]].map(number);
            match bytes {
                0 => player.free(place as usize),
                _ => player.alloc(place as usize, bytes)?,
            }
        }
        time += start.elapsed();
        operations += events.len() as u64;
        if operations >= args.events * (resident.len() as u64 + 1) / SAMPLES
            && let Some(now) = status("VmRSS:")
        {
            resident.push((operations, now.saturating_sub(before)));
        }
    }
    Ok(HeapRun {
        operations,
        nanoseconds: u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
        peak_resident_bytes: status("VmHWM:").map(|peak| peak.saturating_sub(before)),
        resident,
    })
}

fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Reads until the buffer is full or the input ends. Returns the number of bytes read.
fn fill(input: &mut impl Read, bytes: &mut [u8]) -> io::Result<usize> {
    let mut read = 0;
    while read < bytes.len() {
        match input.read(&mut bytes[read..])? {
            0 => break,
            more => read += more,
        }
    }
    Ok(read)
}

/// Returns a line of the process's status in bytes, if the system reports it.
fn status(name: &str) -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes << 10)
}
