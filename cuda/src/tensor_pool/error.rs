//! What can go wrong, as values: one type for each act.

use core::fmt;

use larder_core::lifetime::prmalloc::{PoolAllocError, PoolFreeError};

use super::TensorBlock;
use crate::DeviceAllocError;

/// Why a [`DeviceTensorPool`](super::DeviceTensorPool) gave no block. Every block is as before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TensorPoolError {
    /// The request or the pool's tables forbid it.
    Pool(PoolAllocError),
    /// The plan had no block, and the device's allocator refused.
    Memory(DeviceAllocError),
}

impl fmt::Display for TensorPoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pool(error) => error.fmt(f),
            Self::Memory(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for TensorPoolError {}

/// A refused free gives the block back.
#[derive(Debug)]
#[must_use = "the block inside is still allocated"]
pub struct TensorFreeRejected {
    /// The block, still the caller's.
    pub block: TensorBlock,
    /// Why it was refused.
    pub error: PoolFreeError,
}

impl fmt::Display for TensorFreeRejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block at {}: {}", self.block.addr(), self.error)
    }
}

impl core::error::Error for TensorFreeRejected {}
