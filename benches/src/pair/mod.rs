//! Host time of one pair, a free and an alloc, at a steady number of live blocks.
//!
//! A [`PairScript`] draws sizes and victims once from a seed; a [`Churn`] fills one
//! contender with live blocks and then, in each pair, frees a random live block
//! and allocates one of the next size. One thread, no lock.
//!
//! Every contender is checked on the very run that was measured: its live blocks
//! must not overlap, and once all are freed it must be whole again.
//!
//! Not a measure of fragmentation (that is `replay`), and nothing
//! here touches the memory that the numbers name.

mod churn;
mod contenders;
mod offset;
mod script;
#[cfg(test)]
mod tests;

use std::ops::Range;

use thiserror::Error;

pub use churn::{Churn, Runner};
pub use contenders::{Bump, LarderPages, LarderRegion};
pub use offset::OffsetAllocator;
pub use script::{Cursor, GRANULE_BYTES, LIVE_RANGE, MAX_BYTES, MIN_BYTES, PairScript};

/// An allocator whose pairs are measured.
pub trait PairContender {
    /// What the caller keeps of a live block, as the allocator's interface hands it out.
    type Block;

    /// A block of at least `bytes`, or `None` if it does not fit.
    fn alloc(&mut self, bytes: u32) -> Option<Self::Block>;

    /// Takes a live block back; `None` if the allocator refuses it.
    fn free(&mut self, block: Self::Block) -> Option<()>;

    /// First address of a live block.
    fn address(&self, block: &Self::Block) -> u64;

    /// The addresses it may hand out.
    fn pool(&self) -> Range<u64>;

    /// Says what is wrong if, after every block was freed, the allocator is not back to one free
    /// chunk and zero live bytes.
    ///
    /// # Errors
    /// What it found instead, for people.
    fn check_empty(&mut self) -> Result<(), String>;
}

/// A contender did not do what every contender must; its times count for nothing.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{contender} at {live} live blocks: {fault}")]
pub struct Failure {
    /// The contender.
    pub contender: &'static str,
    /// How many blocks were to be live.
    pub live: usize,
    /// The fault of the contender.
    pub fault: PairFault,
}

/// What a contender did wrong.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PairFault {
    /// It could not be built.
    #[error("cannot be built: {0}")]
    Setup(String),
    /// A block did not fit into a pool of twice the live bytes to expect at worst.
    #[error("no room for {bytes} bytes in a pool of twice the live bytes")]
    OutOfMemory {
        /// What was asked for.
        bytes: u32,
    },
    /// It did not take one of its live blocks back.
    #[error("refused to free a live block")]
    FreeRefused,
    /// A live block reaches beyond its pool, or over the next live block.
    #[error("the live block of {bytes} bytes at {address:#x} reaches beyond {end:#x}")]
    Overlap {
        /// First address of the block.
        address: u64,
        /// What was asked for.
        bytes: u32,
        /// Where the next live block starts, or the pool ends.
        end: u64,
    },
    /// A live block starts before its pool.
    #[error("a live block starts at {address:#x}, before its pool")]
    BeforePool {
        /// First address of the block.
        address: u64,
    },
    /// It is not whole again after all blocks were freed.
    #[error("not whole again after every block was freed: {0}")]
    NotEmpty(String),
}
