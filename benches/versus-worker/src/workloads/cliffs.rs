//! Programs in which single calls may take long, since these calls scan many blocks.
//!
//! The total time of the programs matters little. They free almost everything, and continue with few blocks.

use std::thread;
use std::time::Duration;

use crate::allocator;
use crate::block::Block;
use crate::clock::{Clock, Outcome};
use crate::random::Random;
use crate::scale::Scale;
use crate::tally::Tally;

/// Size of a block: eight blocks fill 64 KiB, and one of the eight survives.
const SURVIVOR_BYTES: usize = 8192;
const GROUPS: u32 = 5_000;
const GROUP: usize = 8;

/// Number of pauses in which the program continues with few blocks. Heaps that release memory do
/// so during these pauses.
const TURNS: usize = 500;
const PAUSE: Duration = Duration::from_micros(500);
const SMALL: usize = 100;
const LARGE_BYTES: usize = 200_000;

/// Number of blocks in a long step.
const STEP_BLOCKS: u32 = 16_000;
const STEPS: usize = 5;

/// Frees seven of every eight blocks, then allocates as many again.
pub fn survivors(scale: Scale) -> Outcome {
    let count = scale.of(GROUPS) * GROUP;
    let mut random = Random::new(71);
    let mut tally = Tally::default();
    let clock = Clock::start();
    let mut fill = |blocks: &mut Vec<Option<Block>>, tally: &mut Tally| {
        for slot in blocks.iter_mut().filter(|slot| slot.is_none()) {
            *slot = Some(Block::new(SURVIVOR_BYTES, tally.wrote(random.next())));
        }
    };
    let mut blocks: Vec<Option<Block>> = (0..count).map(|_| None).collect();
    fill(&mut blocks, &mut tally);
    for (index, slot) in blocks.iter_mut().enumerate() {
        if !index.is_multiple_of(GROUP) {
            finish(slot, &mut tally);
        }
    }
    for turn in 0..TURNS {
        for small in 0..SMALL {
            pair(100 + small * 97 % 900, turn, &mut tally);
        }
        pair(LARGE_BYTES, turn, &mut tally);
        thread::sleep(PAUSE);
    }
    fill(&mut blocks, &mut tally);
    for slot in &mut blocks {
        finish(slot, &mut tally);
    }
    clock.stop(2 * count as u64, tally.answer())
}

fn pair(bytes: usize, stamp: usize, tally: &mut Tally) {
    let block = Block::new(bytes, tally.wrote(stamp as u64));
    tally.read(block.finish());
}

fn finish(slot: &mut Option<Block>, tally: &mut Tally) {
    if let Some(block) = slot.take() {
        tally.read(block.finish());
    }
}

/// One repeated step with many blocks, each of which is live for a random part of the step.
pub fn long_steps(scale: Scale) -> Outcome {
    let count = scale.of(STEP_BLOCKS);
    let mut random = Random::new(72);
    let lives: Vec<(usize, usize)> = (0..count)
        .map(|_| {
            let bytes = random.log_within(40_000.0, 80_000.0);
            (bytes, random.within(1, count.div_ceil(10)))
        })
        .collect();
    let mut tally = Tally::default();
    let clock = Clock::start();
    let mut slots: Vec<Option<Block>> = (0..count).map(|_| None).collect();
    // The blocks to free before each allocation.
    let mut ends: Vec<Vec<usize>> = (0..=count).map(|_| Vec::new()).collect();
    for (begin, (_, ticks)) in lives.iter().enumerate() {
        ends[(begin + ticks).min(count)].push(begin);
    }
    for step in 0..STEPS {
        let _step = allocator::step();
        for (at, ends) in ends.iter().enumerate() {
            for end in ends {
                finish(&mut slots[*end], &mut tally);
            }
            if let Some((bytes, _)) = lives.get(at) {
                slots[at] = Some(Block::new(*bytes, tally.wrote((step + at) as u64)));
            }
        }
    }
    clock.stop((STEPS * count) as u64, tally.answer())
}
