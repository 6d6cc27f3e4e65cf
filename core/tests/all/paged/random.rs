//! Random operations over a device that records exactly which memory is behind each page.

use larder_model::{PagedHead, PagedOp, Random, run_paged};

use crate::common::rounds;

fn bytes<const N: usize>(random: &mut Random) -> [u8; N] {
    [(); N].map(|()| random.below(256) as u8)
}

/// Runs one seed with policies that `change` may alter. A failure names the seed.
fn run(seed: u64, change: impl Fn(&mut PagedHead)) {
    let mut random = Random::new(seed);
    let mut head = bytes(&mut random);
    change(&mut head);
    let count = 50 + random.below(400);
    let ops: Vec<PagedOp> = (0..count).map(|_| bytes(&mut random)).collect();
    if let Err(fault) = run_paged(head, ops) {
        panic!("seed {seed}: {fault}");
    }
}

#[test]
fn every_live_byte_has_memory_of_its_own() {
    (0..rounds(1500)).for_each(|seed| run(seed, |_| ()));
}

#[test]
fn with_room_in_every_table() {
    let roomy = |head: &mut PagedHead| (head[7], head[8], head[9]) = (255, 47, 191);
    (0..rounds(1000)).for_each(|seed| run(seed, roomy));
}

#[test]
fn with_few_addresses() {
    let narrow = |head: &mut PagedHead| (head[2], head[8], head[9]) = (0, 47, 191);
    (0..rounds(500)).for_each(|seed| run(seed, narrow));
}
