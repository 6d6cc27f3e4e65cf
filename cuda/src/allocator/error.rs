//! Why device memory was not given.

use core::fmt;

use larder_core::{AllocError, Lane};

use crate::DriverError;

/// Why a [`DeviceAllocator`](super::DeviceAllocator) gave no memory. Every block is as before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DeviceAllocError {
    /// There is no such memory: see the numbers. With what the driver said last, if it refused any.
    Memory {
        /// Why.
        reason: AllocError,
        /// The driver's newest refusal.
        driver: Option<DriverError>,
    },
    /// The driver refused a call that the memory needed before its first use.
    Driver(DriverError),
    /// The stream is of another context, or the default stream that each thread has of its own.
    Stream,
    /// More streams than an allocator tells apart have allocated from it.
    Streams,
    /// The stream captures, and the memory is not there already. Allocate before the capture begins.
    Capturing,
}

impl fmt::Display for DeviceAllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory {
                reason,
                driver: None,
            } => reason.fmt(f),
            Self::Memory {
                reason,
                driver: Some(driver),
            } => write!(f, "{reason}; the driver's last refusal: {driver}"),
            Self::Driver(error) => error.fmt(f),
            Self::Stream => f.write_str(
                "the stream is another context's, or the default one that differs by thread: make \
                 one in the allocator's context",
            ),
            Self::Streams => write!(
                f,
                "{} streams have allocated already: use fewer, or a second allocator",
                Lane::COUNT
            ),
            Self::Capturing => f.write_str(
                "the stream captures: allocate before the capture begins, and free after it",
            ),
        }
    }
}

impl core::error::Error for DeviceAllocError {}

impl From<DriverError> for DeviceAllocError {
    fn from(error: DriverError) -> Self {
        Self::Driver(error)
    }
}
