//! Typed values in device memory, in pinned memory, or in both: buffers, and memory that moves between host
//! and device.

pub(crate) mod buffer;
pub(crate) mod pinned;
pub mod synced;
pub(crate) mod vmem;
