//! Shows how much physical memory a process holds after a peak, while it only sleeps.
//!
//! `cargo run -p larder --example purge [KIND]` keeps 64 MiB, allocates 1 GiB more, frees that and
//! prints a line every tenth of a second. Kinds: `large`, `small`, `both` (the default), `tiny` (64
//! bytes), `handed` (small, freed by another thread that stays alive) and `ended` (both, allocated
//! and freed by threads that then end). Linux only.

use std::alloc::{GlobalAlloc, Layout};
use std::thread;
use std::time::{Duration, Instant};

use larder::Larder;

#[global_allocator]
static HEAP: Larder = Larder::new();

const PEAK: usize = 1 << 30;
const KEPT: usize = 64 << 20;

const LARGE: &[usize] = &[1 << 20, 300_000];
const SMALL: &[usize] = &[64, 900, 9000];
const BOTH: &[usize] = &[64, 900, 9000, 300_000, 1 << 20];

fn resident_mib() -> f64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = pages.split(' ').nth(1).and_then(|word| word.parse().ok());
    pages.unwrap_or(0.0) * 4096.0 / f64::from(1 << 20)
}

/// A block and its layout.
struct Held(*mut u8, Layout);

// SAFETY: a `Held` is the only owner of its block.
unsafe impl Send for Held {}

/// Allocates and writes blocks of these sizes, `bytes` bytes in total.
fn make(sizes: &[usize], bytes: usize) -> Vec<Held> {
    let mut blocks = Vec::new();
    for &size in sizes {
        let Ok(layout) = Layout::from_size_align(size, 8) else {
            continue;
        };
        for _ in 0..bytes / sizes.len() / size {
            // SAFETY: the layout is not empty.
            let block = unsafe { HEAP.alloc(layout) };
            if !block.is_null() {
                // SAFETY: the block is ours and has `size` bytes.
                unsafe { block.write_bytes(1, size) };
                blocks.push(Held(block, layout));
            }
        }
    }
    blocks
}

/// Frees the blocks in an order that mixes pages.
fn free(mut blocks: Vec<Held>) {
    let mut random = 1u64;
    while !blocks.is_empty() {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let Held(block, layout) = blocks.swap_remove((random >> 33) as usize % blocks.len());
        // SAFETY: allocated with this layout, and taken off the list.
        unsafe { HEAP.dealloc(block, layout) };
    }
}

fn main() {
    let kind = std::env::args().nth(1).unwrap_or_default();
    let kept = make(LARGE, KEPT);
    let peak = || println!("    peak  {:7.1} MiB", resident_mib());
    let make_and_free = |sizes, bytes| {
        let blocks = make(sizes, bytes);
        peak();
        free(blocks);
    };
    match kind.as_str() {
        "large" => make_and_free(LARGE, PEAK),
        "small" => make_and_free(SMALL, PEAK),
        "tiny" => make_and_free(&[64], PEAK),
        "handed" => {
            let blocks = make(SMALL, PEAK);
            peak();
            let (done, freed) = std::sync::mpsc::channel();
            thread::spawn(move || {
                free(blocks);
                done.send(()).ok();
                thread::park();
            });
            freed.recv().ok();
        }
        "ended" => thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(move || make_and_free(BOTH, PEAK / 4));
            }
        }),
        _ => make_and_free(BOTH, PEAK),
    }
    let start = Instant::now();
    for _ in 0..25 {
        println!(
            "{:8.1} s{:8.1} MiB",
            start.elapsed().as_secs_f64(),
            resident_mib()
        );
        thread::sleep(Duration::from_millis(100));
    }
    let stats = HEAP.stats();
    println!(
        "live {} bytes, in spans {}, kept free {}, given back {}",
        stats.live_bytes, stats.span_bytes, stats.retained_bytes, stats.purged_bytes
    );
    free(kept);
}
