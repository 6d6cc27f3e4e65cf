//! Why a runtime has no allocator to give.

use core::fmt;

use larder_core::ConfigError;

use super::topology::Node;
use crate::{DeviceAllocError, DriverError, LoadError};

/// Why a [`Runtime`](super::Runtime) gave no allocator. The slot is as empty as it was: the next request tries
/// again.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum RuntimeError {
    /// The machine has no such NUMA node.
    Node {
        /// The node.
        node: Node,
        /// How many there are.
        nodes: usize,
    },
    /// There is no such logical device.
    Device {
        /// The number that was asked for.
        id: usize,
        /// How many there are.
        count: usize,
    },
    /// `GpuOptions::allocator_type` names an allocator that nobody knows.
    AllocatorType {
        /// What it says.
        text: String,
    },
    /// Pinned memory needs a device's context, and none has an allocator yet.
    NoGpuAllocator,
    /// A share of a device's memory that is none.
    Fraction {
        /// The share.
        fraction: f64,
    },
    /// More than a device's memory, on a device that cannot.
    Oversubscription {
        /// The share.
        fraction: f64,
        /// The device's compute capability.
        compute_capability: (i32, i32),
    },
    /// This kind of allocator is not there.
    Unsupported {
        /// What.
        what: &'static str,
    },
    /// There is no driver, or it did not start.
    Load(LoadError),
    /// The allocator was not made: the driver refused, or the limit or a table is none.
    Memory(DeviceAllocError),
}

impl fmt::Display for RuntimeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node { node, nodes } => write!(
                f,
                "this machine has {nodes} NUMA nodes and no {node}: ask for one of Topology::nodes, or for none"
            ),
            Self::Device { id, count } => write!(
                f,
                "there are {count} logical devices, numbered from 0, and no {id}: look at CUDA_VISIBLE_DEVICES \
                 and at the list of logical devices"
            ),
            Self::AllocatorType { text } => write!(
                f,
                "the allocator type is {text:?}: leave it empty, or say BFC"
            ),
            Self::NoGpuAllocator => f.write_str(
                "pinned memory is made through a device, and no GPU allocator exists yet: ask for one first",
            ),
            Self::Fraction { fraction } => write!(
                f,
                "{fraction} is no share of a device's memory: take a number above 0"
            ),
            Self::Oversubscription {
                fraction,
                compute_capability: (major, minor),
            } => write!(
                f,
                "oversubscription: {fraction} of a device's memory needs managed memory and compute capability \
                 6.0, and the device has {major}.{minor}: take 1 at most"
            ),
            Self::Unsupported { what } => write!(f, "{what} is not supported: take another kind of allocator"),
            Self::Load(error) => error.fmt(f),
            Self::Memory(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for RuntimeError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Load(error) => Some(error),
            Self::Memory(error) => Some(error),
            _ => None,
        }
    }
}

impl From<ConfigError> for RuntimeError {
    fn from(error: ConfigError) -> Self {
        Self::Memory(DeviceAllocError::Config(error))
    }
}

impl From<LoadError> for RuntimeError {
    fn from(error: LoadError) -> Self {
        Self::Load(error)
    }
}

impl From<DriverError> for RuntimeError {
    fn from(error: DriverError) -> Self {
        Self::Memory(error.into())
    }
}

impl From<DeviceAllocError> for RuntimeError {
    fn from(error: DeviceAllocError) -> Self {
        Self::Memory(error)
    }
}

/// A visitor came too late: an allocator of its kind exists, or is being made, whose regions it would have missed.
/// Nothing was registered. Register visitors before the first request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VisitorLate {
    /// Which memory: `CPU`, `GPU` or `pinned`.
    pub memory: &'static str,
}

impl fmt::Display for VisitorLate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "an allocator of {} memory exists already: register visitors before the first one is asked for",
            self.memory
        )
    }
}

impl core::error::Error for VisitorLate {}

/// An allocator was asked for again with another limit. The first one stays in force.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LimitMismatch {
    /// What was asked for now.
    pub asked_bytes: u64,
    /// What the allocator was made with.
    pub made_bytes: u64,
}

impl fmt::Display for LimitMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes were asked for, and the device's allocator was made with {}: its limit is set at the \
             allocator, not by asking again",
            self.asked_bytes, self.made_bytes
        )
    }
}

impl core::error::Error for LimitMismatch {}
