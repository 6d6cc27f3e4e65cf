//! Memory freed by blocks of one size serves those of the next without a tick: the committed bytes do not depend on
//! time.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::Duration;

use common::{MIB, Random};
use larder::Larder;

#[global_allocator]
static HEAP: Larder = Larder::new().with_purge_after(Duration::MAX);

/// Changes the order at random.
fn shuffle<T>(random: &mut Random, all: &mut [T]) {
    for at in (1..all.len()).rev() {
        all.swap(at, random.next(at + 1));
    }
}

#[test]
fn memory_of_one_size_serves_the_next() {
    let total = 64 * MIB;
    let mut random = Random::new(5);
    let mut sizes: Vec<usize> = (0..50).map(|n| 64 + n * n * 8).collect();
    shuffle(&mut random, &mut sizes);
    for size in sizes {
        let mut blocks: Vec<Box<[u8]>> = (0..total / size).map(|_| vec![1; size].into()).collect();
        shuffle(&mut random, &mut blocks);
    }
    let held = HEAP.stats().committed_bytes;
    // The blocks, a pointer to each, and what one size leaves of the range that the next has.
    assert!(
        held < 150 << 20,
        "{held} bytes for 64 MiB and their pointers"
    );
}
