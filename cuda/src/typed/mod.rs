//! Typed values in device memory, in pinned memory, or in both: buffers, and memory that moves between host
//! and device.

pub(crate) mod block_pool;
pub(crate) mod buffer;
pub(crate) mod growing;
mod index_set;
pub(crate) mod pinned;
pub(crate) mod reserved;
pub mod synced;
pub(crate) mod vmem;
