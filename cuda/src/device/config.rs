//! Configuration of a [`DeviceAllocator`](super::DeviceAllocator).

use larder_core::pages::Backing;
use larder_core::steps::StepConfig;

/// Which streams have an arena: memory of their own for small blocks, so that threads on different streams do
/// not contend for one lock. The cost is the free memory in the pieces of arenas.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ArenaPolicy {
    /// No stream has an arena, which takes the least memory.
    Never,
    /// A stream has an arena if its small blocks are often allocated right after those of another thread on
    /// another stream. Once a stream has [steps](super::DeviceAllocator::step), all other streams have one
    /// too, so that their blocks do not obstruct its plans.
    WhereThreadsMeet,
    /// Every stream has an arena from its first small block on.
    Always,
}

/// Configuration of a [`DeviceAllocator`](super::DeviceAllocator).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceConfig {
    /// When pages move; ignored if memory comes in [regions](super::DeviceBacking::Regions).
    pub backing: Backing,
    /// Maximum bytes held, in whole pages. A limit below one page (2 MiB on most devices) allows nothing.
    pub limit_bytes: u64,
    /// Bytes of addresses to reserve, at most 1023 GiB. 0 reserves eight times the device's memory, up to
    /// that maximum, or less if the system refuses, down to 1.25 times the device's memory.
    pub address_bytes: u64,
    /// Which streams get arenas: their own pieces of 2 MiB for blocks of up to 64 KiB.
    pub arenas: ArenaPolicy,
    /// Whether an allocation on a stream that is being captured is refused
    /// ([`Capturing`](crate::DeviceAllocError::Capturing)) unless a [window](super::DeviceAllocator::prime)
    /// was primed. True by default. The check costs each allocation one driver call (`cuStreamIsCapturing`),
    /// except on a default stream, which is never captured. No cheaper check is known, because the allocator
    /// is not told when a capture begins.
    ///
    /// Set it to false only in a program that never captures. Without the check, only allocations that need
    /// the driver notice a capture; others get memory that the graph then shares with the program.
    ///
    /// A free is never refused because of a capture, since the caller promises that nothing uses the block
    /// any more, including the graph.
    pub check_captures: bool,
    /// How [steps](super::DeviceAllocator::step) are planned.
    pub steps: StepConfig,
    /// Further devices, by ordinal, whose work reads and writes the memory; each must be able to reach it.
    /// Each of them makes every change of a mapping cost more.
    pub peers: Vec<i32>,
    /// Whether blocks may be [exported](super::DeviceAllocator::export) to other processes, which the device
    /// must support. If the device supports GPUDirect RDMA, network cards may then reach the memory, too.
    pub shareable: bool,
}

impl DeviceConfig {
    /// Makes a configuration without a limit. Held memory is assumed to cost money, so idle pages move before
    /// more is created, as long as that takes few driver calls.
    pub const fn new() -> Self {
        Self {
            backing: Backing::Billed,
            limit_bytes: u64::MAX,
            address_bytes: 0,
            arenas: ArenaPolicy::WhereThreadsMeet,
            check_captures: true,
            steps: StepConfig::new(),
            peers: Vec::new(),
            shareable: false,
        }
    }

    /// Makes a configuration with a budget of `bytes` bytes: no page moves before that many bytes are held.
    pub const fn with_budget(bytes: u64) -> Self {
        let mut config = Self::new();
        config.backing = Backing::Budget(bytes);
        config.limit_bytes = bytes;
        config
    }
}

impl Default for DeviceConfig {
    fn default() -> Self {
        Self::new()
    }
}
