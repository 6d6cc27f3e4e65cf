//! Blocks allocated and freed by one thread, in batches.

use std::hint::black_box;

use crate::block::Block;
use crate::clock::{Clock, Outcome};
use crate::random::Random;
use crate::scale::Scale;
use crate::tally::Tally;

/// Pairs of allocation and free in a full run.
const PAIRS: u32 = 8_000_000;
const BOXES: u32 = 24_000_000;
const BOX_BATCH: usize = 64;

/// 8 to 1024 bytes, oldest freed first.
pub fn pairs(batch: usize, scale: Scale) -> Outcome {
    let rounds = scale.of(PAIRS).div_ceil(batch);
    let mut random = Random::new(batch as u64);
    let mut slots = Vec::with_capacity(batch);
    let mut tally = Tally::default();
    let clock = Clock::start();
    for _ in 0..rounds {
        for _ in 0..batch {
            let draw = random.next();
            // The upper half draws the size, all of it is the stamp.
            let bytes = 8 + (((draw >> 32) * 1017) >> 32) as usize;
            slots.push(Block::new(bytes, tally.wrote(draw)));
        }
        for block in slots.drain(..) {
            tally.read(block.finish());
        }
    }
    clock.stop((rounds * batch) as u64, tally.answer())
}

/// One size, known to the compiler.
pub fn boxes(scale: Scale) -> Outcome {
    let rounds = scale.of(BOXES).div_ceil(BOX_BATCH);
    let mut slots: Vec<Box<[u64; 6]>> = Vec::with_capacity(BOX_BATCH);
    let mut tally = Tally::default();
    let clock = Clock::start();
    for round in 0..rounds as u64 {
        for index in 0..BOX_BATCH as u64 {
            let stamp = tally.wrote(round ^ (index << 32));
            slots.push(black_box(Box::new([stamp; 6])));
        }
        for boxed in slots.drain(..) {
            tally.read(boxed[5]);
        }
    }
    clock.stop((rounds * BOX_BATCH) as u64, tally.answer())
}
