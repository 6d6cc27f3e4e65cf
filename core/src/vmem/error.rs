//! Why neither side gave memory.

use core::fmt;

use crate::error::AllocError;

/// Why a [`Vmem`](super::Vmem) gave no memory, with the reason of each side that was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum VmemError {
    /// The device refused, and there is no host side, or nothing that it could do better.
    Device(AllocError),
    /// The device refused, and the host was not asked: both sides together have had more in use than
    /// was planned for the device.
    Planned {
        /// Why the device refused.
        device: AllocError,
        /// Most bytes that were in use on both sides together.
        peak_bytes: u64,
        /// Most bytes that may have been for the host side to serve.
        planned_bytes: u64,
    },
    /// Both sides refused.
    Both {
        /// Why the device refused.
        device: AllocError,
        /// Why the host refused.
        host: AllocError,
    },
}

impl VmemError {
    /// Why the device refused: what a caller is told who knows of one side only.
    pub const fn device(&self) -> AllocError {
        match self {
            Self::Device(device) | Self::Planned { device, .. } | Self::Both { device, .. } => {
                *device
            }
        }
    }
}

impl fmt::Display for VmemError {
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

impl core::error::Error for VmemError {}
