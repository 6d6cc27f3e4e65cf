//! Memory in the order of streams: the trait of its allocators, and a pool over any source.

pub(crate) mod allocator;
pub(crate) mod memory;
pub(crate) mod per_stream;
pub(crate) mod pool;
