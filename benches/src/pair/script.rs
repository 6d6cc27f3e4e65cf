//! The requests to every contender: sizes and victims, drawn once from a seed.
//!
//! Requests are drawn ahead so that the generator is not measured, into two rings whose lengths have no common divisor:
//! in each turn a size meets another victim, so the sequence repeats only after as many pairs as the product of the
//! lengths.

use std::ops::RangeInclusive;

use larder_cli::random::Random;

/// Minimum size in bytes.
pub const MIN_BYTES: u32 = 256;
/// Upper bound of all sizes in bytes.
pub const MAX_BYTES: u32 = 64 << 10;
/// Unit to which all contenders round sizes up, in bytes.
pub const GRANULE_BYTES: u32 = 256;

/// The valid numbers of live blocks. With fewer, a run of large sizes could fill a pool of twice the expected
/// bytes; with more, the pool would have more than 2^32 granules, which some contenders count in `u32`.
pub const LIVE_RANGE: RangeInclusive<usize> = 100..=MAX_LIVE;

const MAX_LIVE: usize = 1 << 24;

// The mean size, plus its deviation over that many blocks, is less than a fifth of the largest size.
const _: () = {
    let granules_per_block = (MAX_BYTES / GRANULE_BYTES) as u64;
    assert!(2 * (MAX_LIVE as u64) * granules_per_block / 5 < u32::MAX as u64);
};

/// Minimum length of a ring, so that it has enough different sizes even for few live blocks.
const MIN_RING: usize = 1 << 16;

/// Sizes and victims, the same for every contender.
#[derive(Debug)]
pub struct PairScript {
    live: usize,
    sizes: Vec<u32>,
    victims: Vec<u32>,
}

/// A contender's position in a script.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cursor {
    size: usize,
    victim: usize,
}

impl PairScript {
    /// Draws a script for `live` blocks, which is the same for the same seed.
    ///
    /// Returns `None` if `live` is outside [`LIVE_RANGE`].
    #[must_use]
    pub fn try_new(live: usize, seed: u64) -> Option<Self> {
        if !LIVE_RANGE.contains(&live) {
            return None;
        }
        // The ring has twice as many victims as live blocks, so that most blocks are victims within one turn.
        let ring = (2 * live).next_power_of_two().max(MIN_RING);
        let mut random = Random::new(seed);
        Some(Self {
            live,
            sizes: (0..ring).map(|_| log_uniform_bytes(&mut random)).collect(),
            victims: (1..ring).map(|_| random.below(live as u32)).collect(),
        })
    }

    /// Returns the number of live blocks between two pairs.
    #[must_use]
    pub fn live(&self) -> usize {
        self.live
    }

    /// Returns the bytes of the pool, in whole granules: twice the expected maximum of live bytes, which is the mean
    /// plus five standard deviations. The deviations add two thirds at 100 live blocks, where a pool of twice the mean
    /// runs out now and then, and less than a hundredth from 100 000 blocks on.
    #[must_use]
    pub fn pool_bytes(&self) -> u64 {
        let live = self.live as f64;
        let bytes = 2.0 * (live * mean_bytes() + 5.0 * live.sqrt() * deviation_bytes());
        (bytes as u64).next_multiple_of(u64::from(GRANULE_BYTES))
    }

    /// Returns the number of records for all chunks of a pool: each live block, the free chunk after each, and
    /// a reserve. The number is the same for every contender that takes a number of records.
    #[must_use]
    pub fn records(&self) -> usize {
        2 * self.live + 1024
    }

    /// Returns the size of the next block.
    #[inline]
    pub fn next_bytes(&self, cursor: &mut Cursor) -> u32 {
        let bytes = self.sizes[cursor.size];
        cursor.size += 1;
        if cursor.size == self.sizes.len() {
            cursor.size = 0;
        }
        bytes
    }

    /// Returns the index of the next block to free among the live ones.
    #[inline]
    pub fn next_victim(&self, cursor: &mut Cursor) -> usize {
        let victim = self.victims[cursor.victim];
        cursor.victim += 1;
        if cursor.victim == self.victims.len() {
            cursor.victim = 0;
        }
        victim as usize
    }
}

/// Mean of the log-uniform distribution over the sizes: 11 772 bytes.
fn mean_bytes() -> f64 {
    let (low, high) = (f64::from(MIN_BYTES), f64::from(MAX_BYTES));
    (high - low) / (high / low).ln()
}

/// Standard deviation of the same distribution: 15 764 bytes.
fn deviation_bytes() -> f64 {
    let (low, high) = (f64::from(MIN_BYTES), f64::from(MAX_BYTES));
    let mean_square = (high * high - low * low) / (2.0 * (high / low).ln());
    (mean_square - mean_bytes() * mean_bytes()).sqrt()
}

fn log_uniform_bytes(random: &mut Random) -> u32 {
    let ratio = f64::from(MAX_BYTES) / f64::from(MIN_BYTES);
    let bytes = f64::from(MIN_BYTES) * ratio.powf(random.unit());
    (bytes as u32).clamp(MIN_BYTES, MAX_BYTES - 1)
}
