//! Errors of a runtime.

use larder_core::{ByteCount, ConfigError};
use thiserror::Error;

use super::topology::Node;
use crate::{DeviceAllocError, DriverError, LoadError};

/// An error from a request to a [`Runtime`](super::Runtime). The slot stays empty, so the next request retries.
#[derive(Clone, PartialEq, Debug, Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// The machine has no such NUMA node.
    #[error(
        "this machine has {nodes} NUMA nodes and no {node}: ask for one of Topology::nodes, or for none"
    )]
    Node {
        /// The node.
        node: Node,
        /// Number of nodes.
        nodes: usize,
    },
    /// There is no such logical device.
    #[error(
        "there are {count} logical devices, numbered from 0, and no {id}: look at CUDA_VISIBLE_DEVICES and at the list of \
         logical devices"
    )]
    Device {
        /// The requested number.
        id: usize,
        /// Number of logical devices.
        count: usize,
    },
    /// `GpuOptions::allocator_type` names an unknown allocator.
    #[error("the allocator type is {text:?}: leave it empty, or say BFC")]
    AllocatorType {
        /// The value of the option.
        text: String,
    },
    /// Pinned memory needs a device's context, but no device has an allocator yet.
    #[error(
        "pinned memory is made through a device, and no GPU allocator exists yet: ask for one first"
    )]
    NoGpuAllocator,
    /// An invalid share of a device's memory.
    #[error("{fraction} is not a fraction of a device's memory: pass a number above 0")]
    Fraction {
        /// The share.
        fraction: f64,
    },
    /// A share above 1 on a device that cannot oversubscribe its memory.
    #[error("oversubscription: {fraction} of a device's memory needs managed memory and compute capability 6.0, and the device \
         has {}.{}: take 1 at most",
        compute_capability.0,
        compute_capability.1)]
    Oversubscription {
        /// The share.
        fraction: f64,
        /// The device's compute capability.
        compute_capability: (i32, i32),
    },
    /// This kind of allocator is not supported here.
    #[error("{what} is not supported: take another kind of allocator")]
    Unsupported {
        /// The unsupported kind.
        what: &'static str,
    },
    /// There is no driver, or it did not start.
    #[error("{0}")]
    Load(#[from] LoadError),
    /// The allocator was not made because the driver refused, or the limit or a table is invalid.
    #[error("{0}")]
    Memory(#[from] DeviceAllocError),
}

impl From<ConfigError> for RuntimeError {
    fn from(error: ConfigError) -> Self {
        Self::Memory(DeviceAllocError::Config(error))
    }
}

impl From<DriverError> for RuntimeError {
    fn from(error: DriverError) -> Self {
        Self::Memory(error.into())
    }
}

/// A visitor was registered too late, since it would have missed the regions of an allocator of its kind that
/// exists or is being made. Nothing was registered. Register visitors before the first request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error(
    "an allocator of {memory} memory exists already: register visitors before the first one is asked for"
)]
pub struct VisitorLate {
    /// The memory: `CPU`, `GPU` or `pinned`.
    pub memory: &'static str,
}

/// An allocator was requested again with another limit. The first limit stays in force.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error(
    "{:#} were asked for, and the device's allocator was made with {:#}: its limit is set at the allocator, not by asking \
     again",
    ByteCount(*asked_bytes),
    ByteCount(*made_bytes)
)]
pub struct LimitMismatch {
    /// Bytes requested now.
    pub asked_bytes: u64,
    /// Bytes that the allocator was made with.
    pub made_bytes: u64,
}
