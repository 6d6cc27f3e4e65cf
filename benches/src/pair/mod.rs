//! Host time of one pair, a free and an alloc, at a steady number of live blocks.
//!
//! A [`PairScript`] draws sizes and victims once from a seed; a [`Churn`] fills one
//! contender with live blocks and then, in each pair, frees a random live block
//! and allocates one of the next size. There is one thread, and no lock.
//!
//! Every contender is checked in the measured run itself: its live blocks must not overlap, and after all frees it
//! must have one free chunk again.
//!
//! Fragmentation is not measured (`replay` measures it), and no memory at the addresses is touched.

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
    /// The handle of a live block, in the allocator's own type.
    type Block;

    /// Allocates a block of at least `bytes`. Returns `None` if none fits.
    fn alloc(&mut self, bytes: u32) -> Option<Self::Block>;

    /// Frees a live block. Returns `None` if the allocator refuses it.
    fn free(&mut self, block: Self::Block) -> Option<()>;

    /// Returns the first address of a live block.
    fn address(&self, block: &Self::Block) -> u64;

    /// Returns the addresses from which blocks are allocated.
    fn pool(&self) -> Range<u64>;

    /// Checks that, after every block was freed, the allocator has one free chunk and zero live bytes.
    ///
    /// # Errors
    /// The state found instead, as text.
    fn check_empty(&mut self) -> Result<(), String>;
}

/// A contender failed a check; its times do not count.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{contender} at {live} live blocks: {fault}")]
pub struct Failure {
    /// The contender.
    pub contender: &'static str,
    /// The requested number of live blocks.
    pub live: usize,
    /// The fault.
    pub fault: PairFault,
}

/// A contender's fault.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PairFault {
    /// The contender could not be built.
    #[error("cannot be built: {0}")]
    Setup(String),
    /// A block did not fit into a pool of twice the expected maximum of live bytes.
    #[error("no room for {bytes} bytes in a pool of twice the live bytes")]
    OutOfMemory {
        /// The requested bytes.
        bytes: u32,
    },
    /// The contender refused one of its live blocks.
    #[error("refused to free a live block")]
    FreeRefused,
    /// A live block reaches beyond its pool, or over the next live block.
    #[error("the live block of {bytes} bytes at {address:#x} reaches beyond {end:#x}")]
    Overlap {
        /// First address of the block.
        address: u64,
        /// The requested bytes.
        bytes: u32,
        /// The start of the next live block, or the end of the pool.
        end: u64,
    },
    /// A live block starts before its pool.
    #[error("a live block starts at {address:#x}, before its pool")]
    BeforePool {
        /// First address of the block.
        address: u64,
    },
    /// Memory is missing or split after all blocks were freed.
    #[error("not whole again after every block was freed: {0}")]
    NotEmpty(String),
}
