//! Threads that allocate, resize, hand on and free at random.
//!
//! `LARDER_SHUFFLE_SECONDS=30` lets the shuffle run that long, with other seeds in every round.

use std::sync::Barrier;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::HEAP;
use crate::common::{Held, MIB, Random};

/// Each thread allocates, frees what others gave it, and hands blocks on at random. All threads and
/// blocks are gone at the end.
fn shuffle(threads: usize, operations: usize, seed: u64) {
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..threads).map(|_| mpsc::channel()).unzip();
    let start = Barrier::new(threads);
    thread::scope(|scope| {
        for (number, receiver) in receivers.into_iter().enumerate() {
            let senders = senders.clone();
            let start = &start;
            scope.spawn(move || {
                let mut random = Random::new(seed * 1000 + number as u64 * 77 + 5);
                let mut held: Vec<Held> = Vec::new();
                start.wait();
                for _ in 0..operations {
                    held.extend(receiver.try_iter().take(4));
                    if held.len() < 100 || random.next(2) == 0 && held.len() < 300 {
                        held.push(Held::random(&mut random));
                        continue;
                    }
                    let mut one = held.swap_remove(random.next(held.len()));
                    match random.next(3) {
                        0 => drop(one),
                        1 => senders[random.next(threads)].send(one).unwrap_or_default(),
                        _ => {
                            one.resize(random.size());
                            held.push(one);
                        }
                    }
                }
                drop(senders);
                held.extend(receiver.try_iter());
            });
        }
        drop(senders);
    });
}

#[test]
fn blocks_freed_by_other_threads_keep_their_contents_until_then() {
    let seconds = std::env::var("LARDER_SHUFFLE_SECONDS");
    let seconds = seconds.map_or(0, |text| text.parse().expect("a number of seconds"));
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut seed = 1;
    loop {
        println!("seed {seed}");
        shuffle(4, 30_000, seed);
        // Far above what all tests of this program hold at once, far below what a leak adds up to
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
