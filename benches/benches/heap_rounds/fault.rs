//! What a contender can do wrong.

use thiserror::Error;

/// A contender did not do what it was asked; its times count for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum Fault {
    #[error("cannot be built")]
    Setup,
    #[error("no room for {bytes} bytes")]
    OutOfMemory { bytes: u32 },
    #[error("the block of {bytes} bytes at {address:#x} is not where it may be")]
    Misplaced { address: usize, bytes: u32 },
    /// Two blocks overlap, or a block moved and left its contents behind.
    #[error("the contents of a block of {bytes} bytes changed")]
    Overwritten { bytes: u32 },
}
