//! Why neither side gave memory, or took it back.

use core::fmt;

use super::VmemBlock;
use crate::{DeviceAllocError, DeviceFreeError, DriverError};

/// Why a [`VmemAllocator`](super::VmemAllocator) gave no memory, with the reason of each side that was
/// asked. Every block is as before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum VmemAllocError {
    /// The device's side refused, and the host's was not asked: there is none, or the reason is not a
    /// want of memory.
    Device(DeviceAllocError),
    /// The device has no memory, and both sides together have had more in use than was planned.
    Planned {
        /// Why the device gave none.
        device: DeviceAllocError,
        /// Most bytes that were in use on both sides together.
        peak_bytes: u64,
        /// Most bytes that may have been for the host's side to serve.
        planned_bytes: u64,
    },
    /// Neither side has memory.
    Both {
        /// Why the device gave none.
        device: DeviceAllocError,
        /// Why the host gave none.
        host: DeviceAllocError,
    },
}

impl fmt::Display for VmemAllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(device) => device.fmt(f),
            Self::Planned {
                device,
                peak_bytes,
                planned_bytes,
            } => write!(
                f,
                "the device has no memory ({device}), and {peak_bytes} bytes were in use at once where \
                 {planned_bytes} are planned: plan for more, or free blocks and clear the counters"
            ),
            Self::Both { device, host } => {
                write!(f, "neither side has memory; device: {device}; host: {host}")
            }
        }
    }
}

impl core::error::Error for VmemAllocError {}

impl From<DeviceAllocError> for VmemAllocError {
    fn from(error: DeviceAllocError) -> Self {
        Self::Device(error)
    }
}

impl From<DriverError> for VmemAllocError {
    fn from(error: DriverError) -> Self {
        Self::Device(error.into())
    }
}

/// A refused free gives the block back.
#[derive(Debug)]
#[must_use = "the block inside is still allocated"]
pub struct VmemFreeRejected {
    /// The block, still the caller's.
    pub block: VmemBlock,
    /// Why it was refused.
    pub error: DeviceFreeError,
}

impl fmt::Display for VmemFreeRejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block at {}: {}", self.block.addr(), self.error)
    }
}

impl core::error::Error for VmemFreeRejected {}
