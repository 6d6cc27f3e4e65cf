//! The times of a thread's calls while pages move all the time for another thread.
//!
//! The other thread frees and allocates blocks of 1 to 64 MiB, up to seven eighths of the limit. The measured
//! thread makes pairs of small blocks on a stream of its own. Each of its calls is timed, including any
//! interruption of the thread by the machine. Over a driver, the times include the thread's own driver calls;
//! without a driver, these calls cost nothing.

use std::error::Error;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use larder_cli::Table;
use larder_cli::random::Random;
use larder_core::{Block, StreamId};
use larder_cuda::{Context, DeviceAllocator, DeviceConfig};

use crate::{DeviceScript, LockedPages, OnStream, RANGE_BYTES, Side};

const MIB: u64 = 1 << 20;
const LIMIT_BYTES: u64 = 2048 * MIB;
const MOST_BYTES: u64 = LIMIT_BYTES / 8 * 7;

/// Frees and allocates large blocks until the other thread is done. Returns the number allocated since that thread
/// began.
fn move_pages(side: &mut impl Side, start: &Barrier, done: &AtomicBool) -> u64 {
    let mut random = Random::new(7);
    let mut blocks: Vec<(Block, u64)> = Vec::new();
    let (mut live, mut count, mut fills) = (0, 0, true);
    while !done.load(Ordering::Relaxed) {
        let bytes = MIB + u64::from(random.below(63 << 20));
        if live + bytes <= MOST_BYTES
            && let Some(block) = side.alloc(bytes)
        {
            blocks.push((block, bytes));
            live += bytes;
            count += 1;
            continue;
        }
        if std::mem::take(&mut fills) {
            start.wait();
            count = 0;
        }
        let (block, bytes) = blocks.swap_remove(random.index(blocks.len()));
        side.free(block);
        live -= bytes;
    }
    blocks.into_iter().for_each(|(block, _)| side.free(block));
    count
}

/// Makes pairs of small blocks. Returns the nanoseconds of each call, in ascending order.
fn time_calls(side: &mut impl Side, script: &DeviceScript, start: &Barrier) -> Vec<u64> {
    let blocks = script.first.iter().map(|bytes| side.alloc(*bytes));
    let mut blocks: Vec<Option<Block>> = blocks.collect();
    start.wait();
    let mut times = Vec::with_capacity(2 * script.pairs.len());
    for (index, bytes) in &script.pairs {
        let slot = &mut blocks[*index];
        let begun = Instant::now();
        if let Some(block) = slot.take() {
            side.free(block);
        }
        times.push(begun.elapsed().as_nanos() as u64);
        let begun = Instant::now();
        *slot = side.alloc(*bytes);
        times.push(begun.elapsed().as_nanos() as u64);
    }
    let left = blocks.into_iter().flatten();
    left.for_each(|block| side.free(block));
    times.sort_unstable();
    times
}

/// Adds two rows: for the thread alone, and for the thread next to one that moves pages.
fn add_rows<S: Side + Send>(
    table: &mut Table,
    name: &str,
    script: &DeviceScript,
    side: impl Fn(usize) -> S,
) -> Result<(), Box<dyn Error>> {
    for moves in [false, true] {
        let (mut small, mut large) = (side(1), side(2));
        let (start, done) = (Barrier::new(1 + usize::from(moves)), AtomicBool::new(false));
        let (times, blocks) = std::thread::scope(|scope| {
            let mover = moves.then(|| scope.spawn(|| move_pages(&mut large, &start, &done)));
            let times = time_calls(&mut small, script, &start);
            done.store(true, Ordering::Relaxed);
            (times, mover.map_or(Ok(0), |mover| mover.join()))
        });
        let blocks = blocks.map_err(|_| "the thread that moves pages panicked")?;
        let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize] as f64 / 1e3;
        let figures = [0.5, 0.99, 0.999, 1.0].map(|part| format!("{:.1}", at(part)));
        table.row(
            [name.to_owned(), blocks.to_string()]
                .into_iter()
                .chain(figures),
        );
    }
    Ok(())
}

pub(crate) fn print_table(context: &Context, script: &DeviceScript) -> Result<(), Box<dyn Error>> {
    let calls = 2 * script.pairs.len();
    let headings = ["", "large blocks", "median", "99 %", "99.9 %", "longest"];
    let mut table = Table::new(headings);
    let config = DeviceConfig {
        address_bytes: RANGE_BYTES,
        limit_bytes: LIMIT_BYTES,
        ..DeviceConfig::new()
    };
    let memory = DeviceAllocator::with_config(context, config)?;
    let streams = [(); 3].map(|()| context.cudarc().new_stream());
    let streams = streams.into_iter().collect::<Result<Vec<_>, _>>()?;
    add_rows(&mut table, "DeviceAllocator", script, |number| OnStream {
        memory: memory.clone(),
        stream: streams[number].clone(),
    })?;
    let pool = LockedPages::pool(LIMIT_BYTES).ok_or("the tables are too small")?;
    add_rows(
        &mut table,
        "over pages, without a driver",
        script,
        |number| LockedPages(&pool, StreamId::new(number as u8)),
    )?;
    LockedPages::give(pool);
    println!(
        "\nMicroseconds of {calls} calls of a thread, and large blocks that another allocates meanwhile.\n\n{}",
        table.markdown()
    );
    Ok(())
}
