//! 200 threads work and then sleep: shows what the process holds for them.
//!
//! `cargo run -p larder --example sleepers`

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use larder::Larder;

#[global_allocator]
static HEAP: Larder = Larder::new();

const THREADS: u64 = 200;

fn main() {
    let meet = Barrier::new(THREADS as usize + 1);
    thread::scope(|scope| {
        for number in 1..=THREADS {
            let meet = &meet;
            scope.spawn(move || {
                (0..100).for_each(|request| work(number * 1000 + request));
                meet.wait();
                meet.wait();
            });
        }
        meet.wait();
        for seconds in 0..=3 {
            let mib = HEAP.stats().resident_bytes >> 20;
            println!("after {seconds} s of sleep {mib:3} MiB of the heap are in memory");
            thread::sleep(Duration::from_secs(1));
        }
        meet.wait();
    });
}

/// A request with 64 blocks of 8 bytes to 256 KiB, short ones more often.
fn work(seed: u64) {
    let mut random = seed;
    let blocks: Vec<Vec<u8>> = (0..64)
        .map(|_| {
            random = random.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (random >> 29);
            let doublings = (random >> 60).min(random >> 56 & 15);
            vec![1; 8 << doublings]
        })
        .collect();
    black_box(&blocks);
}
