//! How a [`VmemAllocator`](super::VmemAllocator) is made.

/// What serves when the device has no memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum HostSide {
    /// Nothing: the device alone.
    None,
    /// Pinned memory of the host, never more than so many bytes, in multiples of 2 MiB: what a limit has
    /// beyond one is used only for what a region takes more if the driver places it beside another, 512
    /// bytes: that counts too, so give 4 KiB more to a limit that is to be used to the end. Devices reach it
    /// over the bus, slowly.
    Pinned(u64),
    /// Managed memory, whose pages the driver moves; never more than the device had free when the
    /// allocator was made ([`ManagedMemory`](crate::ManagedMemory)).
    Managed,
}

/// How a [`VmemAllocator`](super::VmemAllocator) is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VmemConfig {
    /// What serves when the device has no memory.
    pub host: HostSide,
    /// Once both sides together have had more in use than this share of the device's memory, in percent,
    /// the host's side serves no more. AntMan's `TF_RO_PLANNED_GPU`. Above 100 the host's side may hold
    /// what the device never could.
    pub planned_percent: u32,
}

impl VmemConfig {
    /// Up to the device's memory, of which the host's side may serve what others have taken.
    pub const fn new(host: HostSide) -> Self {
        Self {
            host,
            planned_percent: 100,
        }
    }
}

impl Default for VmemConfig {
    /// The device alone.
    fn default() -> Self {
        Self::new(HostSide::None)
    }
}
