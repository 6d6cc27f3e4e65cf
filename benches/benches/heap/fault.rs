//! What a contender can do wrong.

use thiserror::Error;

/// A contender did not do what it was asked; its times count for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum Fault {
    /// The region or the heap over it could not be made.
    #[error("cannot be built")]
    Setup,
    /// A request was refused.
    #[error("no room for {bytes} bytes")]
    OutOfMemory {
        /// What was asked for.
        bytes: u32,
    },
    /// A block does not lie in the region, or not as asked.
    #[error("the block of {bytes} bytes at {address:#x} is not where it may be")]
    Misplaced {
        /// First address of the block.
        address: usize,
        /// What was asked for.
        bytes: u32,
    },
    /// Two blocks overlap, or a block moved and left its contents behind.
    #[error("the contents of a block of {bytes} bytes changed")]
    Overwritten {
        /// Its size.
        bytes: u32,
    },
}
