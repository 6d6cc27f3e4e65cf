//! The faults of a contender.

use thiserror::Error;

/// A contender failed a request or a check; its times do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum Fault {
    #[error("cannot be built")]
    Setup,
    #[error("no room for {bytes} bytes")]
    OutOfMemory { bytes: u32 },
    #[error("the block of {bytes} bytes at {address:#x} is not where it may be")]
    Misplaced { address: usize, bytes: u32 },
    /// Two blocks overlap, or a moved block lost its contents.
    #[error("the contents of a block of {bytes} bytes changed")]
    Overwritten { bytes: u32 },
}
