//! Blocks allocated and freed by one thread, in batches.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::array;
use std::hint::black_box;

use crate::block::Block;
use crate::clock::{Clock, Outcome};
use crate::random::Random;
use crate::scale::Scale;
use crate::tally::Tally;

/// Number of pairs of allocation and free in a full run.
const PAIRS: u32 = 8_000_000;
const BOXES: u32 = 24_000_000;
const BOX_BATCH: usize = 64;

/// Blocks of 8 to 1024 bytes, with the oldest freed first.
pub fn pairs(batch: usize, scale: Scale) -> Outcome {
    let rounds = scale.of(PAIRS).div_ceil(batch);
    let mut random = Random::new(batch as u64);
    let mut slots = Vec::with_capacity(batch);
    let mut tally = Tally::default();
    let clock = Clock::start();
    for _ in 0..rounds {
        for _ in 0..batch {
            let draw = random.next();
            // The upper half of the number gives the size, and the whole number is the stamp.
            let bytes = 8 + (((draw >> 32) * 1017) >> 32) as usize;
            slots.push(Block::new(bytes, tally.wrote(draw)));
        }
        for block in slots.drain(..) {
            tally.read(block.finish());
        }
    }
    clock.stop((rounds * batch) as u64, tally.answer())
}

/// Blocks of one size, which the compiler knows.
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

/// Number of blocks in the loops that do little more than the pair.
const BARE_BATCH: usize = 64;
const MIN_BYTES: usize = 8;
const MAX_BYTES: usize = 1024;

/// Allocates sizes drawn before the loop. One word of each block is written and read.
pub fn bare_sizes(scale: Scale) -> Outcome {
    let mut random = Random::new(1);
    let sizes: [usize; BARE_BATCH] = array::from_fn(|_| random.within(MIN_BYTES, MAX_BYTES));
    let sizes = black_box(sizes);
    bare(scale, |index| {
        // SAFETY: the alignment is a power of two, and sizes up to `MAX_BYTES` cannot overflow.
        unsafe { Layout::from_size_align_unchecked(sizes[index], size_of::<usize>()) }
    })
}

/// Allocates one size, which the compiler knows.
pub fn bare_boxes(scale: Scale) -> Outcome {
    bare(scale, |_| Layout::new::<[u64; 6]>())
}

#[inline(always)]
fn bare(scale: Scale, layout: impl Fn(usize) -> Layout) -> Outcome {
    let rounds = scale.of(PAIRS).div_ceil(BARE_BATCH);
    let mut blocks = [std::ptr::null_mut::<usize>(); BARE_BATCH];
    let (mut sum, mut expected) = (0, 0);
    let clock = Clock::start();
    for round in 0..rounds {
        for (index, place) in blocks.iter_mut().enumerate() {
            // SAFETY: both callers' layouts have at least 8 bytes, so none is empty.
            let block = unsafe { alloc(layout(index)) }.cast::<usize>();
            if block.is_null() {
                handle_alloc_error(layout(index));
            }
            // SAFETY: the block was just allocated and has room for a word.
            unsafe { block.write(round) };
            *place = block;
        }
        for (index, &block) in black_box(&blocks).iter().enumerate() {
            // SAFETY: the loop above wrote a word to each block, which is still live.
            sum += unsafe { block.read() };
            // SAFETY: the block was allocated above with this layout.
            unsafe { dealloc(block.cast(), layout(index)) };
        }
        expected += round * BARE_BATCH;
    }
    // `assert_eq` would take the sum's address, so that the loop would store the sum.
    assert!(sum == expected, "a block does not hold what was written");
    clock.stop((rounds * BARE_BATCH) as u64, sum as u64)
}
