//! Configuration of a [`VmemAllocator`](super::VmemAllocator).

/// Memory that serves when the device has none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum HostSide {
    /// No host's side: the device alone.
    None,
    /// Pinned host memory, never more than this many bytes, used in multiples of 2 MiB. If the driver places
    /// a region beside another, the region takes 512 bytes more, which count too, so add 4 KiB to a limit
    /// that is to be used to the end. Devices reach this memory over the bus, slowly.
    Pinned(u64),
    /// Managed memory, whose pages the driver moves; never more than the device had free when the allocator
    /// was made ([`ManagedMemory`](crate::ManagedMemory)).
    Managed,
}

/// Configuration of a [`VmemAllocator`](super::VmemAllocator).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VmemConfig {
    /// Memory that serves when the device has none.
    pub host: HostSide,
    /// Share of the device's memory in percent: once both sides together have had more in use, the host's
    /// side serves no more. AntMan's `TF_RO_PLANNED_GPU`. Above 100 the total may exceed the device's memory.
    pub planned_percent: u32,
}

impl VmemConfig {
    /// Makes a configuration that allows up to the device's memory in total, of which the host's side may
    /// serve the part that others have taken.
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
