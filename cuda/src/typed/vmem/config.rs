//! Configuration of a [`VmemAllocator`](super::VmemAllocator).

/// The host memory that serves requests when the device has none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum HostSide {
    /// None: the device alone serves requests.
    None,
    /// Pinned host memory, at most this number of bytes, used in multiples of 2 MiB. If the driver places a
    /// region next to another, the region takes 512 more bytes, which also count, so add 4 KiB to a limit
    /// that should be usable in full. Devices reach this memory over the bus, slowly.
    Pinned(u64),
    /// Managed memory, whose pages the driver moves; at most the memory that the device had free when the
    /// allocator was made ([`ManagedMemory`](crate::ManagedMemory)).
    Managed,
}

/// Configuration of a [`VmemAllocator`](super::VmemAllocator).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VmemConfig {
    /// The host memory that serves requests when the device has none.
    pub host: HostSide,
    /// Percentage of the device's memory: once both sides together have had more bytes in use, the host's
    /// side serves no further requests. AntMan's `TF_RO_PLANNED_GPU`. Above 100, the total may exceed the
    /// device's memory.
    pub planned_percent: u32,
}

impl VmemConfig {
    /// Makes a configuration that plans for the size of the device's memory in total, so that the host's side
    /// may replace the part of it that others have taken.
    pub const fn new(host: HostSide) -> Self {
        Self {
            host,
            planned_percent: 100,
        }
    }
}

impl Default for VmemConfig {
    /// Makes the configuration of the device alone.
    fn default() -> Self {
        Self::new(HostSide::None)
    }
}
