//! Large blocks that replace each other, uninitialised or zeroed.

use crate::block::Block;
use crate::clock::{Clock, Outcome};
use crate::random::Random;
use crate::scale::Scale;
use crate::tally::Tally;

/// Number of live blocks.
const SLOTS: usize = 32;
const LARGE: (f64, f64) = (64.0 * 1024.0, 8.0 * 1024.0 * 1024.0);
const ZEROED: (f64, f64) = (4.0 * 1024.0, 1024.0 * 1024.0);

/// Number of replacements in a full run.
const TOUCHED: u32 = 400;
const UNTOUCHED: u32 = 40_000;
const SPARSE: u32 = 10_000;
const FULL: u32 = 4000;

const CACHE_LINE: usize = 64;
const SPARSE_STEP: usize = 64 * 1024;

pub fn large_touched(scale: Scale) -> Outcome {
    large(scale.of(TOUCHED), Block::touch_pages)
}

pub fn large_untouched(scale: Scale) -> Outcome {
    large(scale.of(UNTOUCHED), |_| {})
}

fn large(replacements: usize, touch: impl Fn(&mut Block)) -> Outcome {
    let mut random = Random::new(64);
    let mut tally = Tally::default();
    let clock = Clock::start();
    let mut slots: [Option<Block>; SLOTS] = [const { None }; SLOTS];
    for _ in 0..replacements {
        let slot = random.below(SLOTS);
        // The old block is freed first, so that its memory can be reused.
        if let Some(block) = slots[slot].take() {
            tally.read(block.finish());
        }
        let mut block = Block::new(
            random.log_within(LARGE.0, LARGE.1),
            tally.wrote(random.next()),
        );
        touch(&mut block);
        slots[slot] = Some(block);
    }
    for block in slots.into_iter().flatten() {
        tally.read(block.finish());
    }
    clock.stop(replacements as u64, tally.answer())
}

/// Leaves most of each block untouched, as a large table does.
pub fn zeroed_sparse(scale: Scale) -> Outcome {
    zeroed(scale.of(SPARSE), SPARSE_STEP)
}

pub fn zeroed_full(scale: Scale) -> Outcome {
    zeroed(scale.of(FULL), CACHE_LINE)
}

/// Reads one byte in `step`, which must be zero, and writes another value.
fn zeroed(replacements: usize, step: usize) -> Outcome {
    let mut random = Random::new(4);
    let mut tally = Tally::default();
    let mut not_zero = 0_u64;
    let clock = Clock::start();
    let mut slots: [Vec<u8>; SLOTS] = [const { Vec::new() }; SLOTS];
    let sum = |block: &[u8]| {
        let bytes = block.iter().step_by(step);
        bytes.fold(0, |sum, byte| sum + u64::from(*byte))
    };
    for _ in 0..replacements {
        let slot = random.below(SLOTS);
        tally.read(sum(&std::mem::take(&mut slots[slot])));
        let mut block = vec![0_u8; random.log_within(ZEROED.0, ZEROED.1)];
        let stamp = random.next() as u8;
        for place in block.iter_mut().step_by(step) {
            not_zero += u64::from(*place);
            *place = stamp;
            tally.wrote(u64::from(stamp));
        }
        slots[slot] = block;
    }
    for block in slots {
        tally.read(sum(&block));
    }
    let outcome = clock.stop(replacements as u64, tally.answer());
    assert_eq!(not_zero, 0, "zeroed blocks are not zero");
    outcome
}
