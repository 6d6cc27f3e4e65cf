//! Threads that allocate, resize, pass on and free blocks at random.
//!
//! With `LARDER_SHUFFLE_SECONDS=30` the shuffle repeats for that long, each time with another seed.

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::HEAP;
use crate::common::{MIB, rounds, shuffle};

#[test]
fn blocks_freed_by_other_threads_keep_their_contents_until_then() {
    let seconds = std::env::var("LARDER_SHUFFLE_SECONDS");
    let seconds = seconds.map_or(0, |text| text.parse().expect("a number of seconds"));
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut seed = 1;
    loop {
        println!("seed {seed}");
        shuffle(4, 30_000, seed);
        // Far more than all tests of this program hold at once, and far less than a leak adds up to
        // in half a minute.
        let live = HEAP.stats().live_bytes;
        assert!(live < 1024 * MIB as u64, "seed {seed}: {live} bytes");
        if Instant::now() >= end {
            return;
        }
        seed += 1;
    }
}

#[test]
fn more_threads_than_processors_lose_no_block() {
    shuffle(16, 4000, 99);
}

#[test]
fn long_blocks_stay_apart_while_trims_take_what_threads_keep_of_them() {
    const THREADS: u64 = 2;
    let layout = Layout::new::<[u64; 200]>();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for mark in 1..=THREADS {
            let done = &done;
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let blocks: [_; 3] = std::array::from_fn(|_| {
                        // SAFETY: the layout is not empty.
                        let block = unsafe { HEAP.alloc(layout) }.cast::<u64>();
                        // SAFETY: our block.
                        unsafe { block.write_volatile(mark) };
                        block
                    });
                    for block in blocks {
                        // SAFETY: our block.
                        assert_eq!(unsafe { block.replace(0) }, mark, "two have it");
                        // SAFETY: our block, not used again.
                        unsafe { HEAP.dealloc(block.cast(), layout) };
                    }
                }
            });
        }
        for _ in 0..rounds(4000) {
            HEAP.trim();
        }
        done.store(true, Ordering::Relaxed);
    });
}
