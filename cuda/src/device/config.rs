//! How a [`DeviceAllocator`](super::DeviceAllocator) is made.

use larder_core::pages::Backing;
use larder_core::steps::StepConfig;

/// Which streams have memory of their own for small blocks, so that threads on different streams do
/// not meet at one lock. It costs what is free in their pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ArenaPolicy {
    /// None: least memory.
    Never,
    /// Those whose small blocks are often allocated right behind another thread's on another stream; and, once a
    /// stream has [steps](super::DeviceAllocator::step), every other one, out of the way of its plans.
    WhereThreadsMeet,
    /// All, from their first small block on.
    Always,
}

/// How a [`DeviceAllocator`](super::DeviceAllocator) is made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceConfig {
    /// When pages move; nothing where memory comes in [regions](super::DeviceBacking::Regions).
    pub backing: Backing,
    /// Most bytes held, in whole pages: a limit below one (2 MiB on most devices) gives nothing.
    pub limit_bytes: u64,
    /// Addresses reserved, 1023 GiB at most; 0 for eight times the device's memory, or that most. Where the
    /// system does not give eight times, 0 accepts less, down to five quarters of the device's memory.
    pub address_bytes: u64,
    /// Which streams get pieces of 2 MiB of their own for blocks of up to 64 KiB.
    pub arenas: ArenaPolicy,
    /// Whether an allocation on a stream that captures is refused
    /// ([`Capturing`](crate::DeviceAllocError::Capturing)) unless a [window](super::DeviceAllocator::prime) was
    /// primed. On by default. It costs each allocation one driver call (`cuStreamIsCapturing`), but on a default
    /// stream, which never captures. No cheaper way is known: captures begin without a word to the allocator.
    ///
    /// Switch it off only in a program that never captures. Without it only allocations that need the driver
    /// notice a capture; others get memory that the graph then shares with the program.
    ///
    /// A free is never refused for a capture: it says that nothing uses the block any more, the graph included.
    pub check_captures: bool,
    /// How [steps](super::DeviceAllocator::step) are planned.
    pub steps: StepConfig,
    /// Further devices, by ordinal, whose work reads and writes the memory; each must be able to reach it.
    /// Each change of what is mapped where costs the more the more they are.
    pub peers: Vec<i32>,
    /// Whether blocks may be [exported](super::DeviceAllocator::export) to other processes, and network cards
    /// reach the memory where the device can (GPUDirect RDMA). The device must be able to.
    pub shareable: bool,
}

impl DeviceConfig {
    /// No limit; what is held costs, so idle pages move before more is created, as long as that takes few driver calls.
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

    /// This many bytes are ours: nothing moves before they are held.
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
