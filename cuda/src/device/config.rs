//! Configuration of a [`DeviceAllocator`](super::DeviceAllocator).

use larder_core::pages::Backing;
use larder_core::steps::StepConfig;

/// Which streams have memory of their own for small blocks, so that threads on different streams do not
/// contend for one lock. It costs the free memory in their pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ArenaPolicy {
    /// No stream has an arena, which takes the least memory.
    Never,
    /// Streams whose small blocks are often allocated right after another thread's on another stream have
    /// one. Once a stream has [steps](super::DeviceAllocator::step), all others have one too, so that their
    /// blocks do not overlap its plans.
    WhereThreadsMeet,
    /// Every stream has one from its first small block on.
    Always,
}

/// Configuration of a [`DeviceAllocator`](super::DeviceAllocator).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceConfig {
    /// When pages move; ignored if memory comes in [regions](super::DeviceBacking::Regions).
    pub backing: Backing,
    /// Maximum bytes held, in whole pages. A limit below one page (2 MiB on most devices) allows nothing.
    pub limit_bytes: u64,
    /// Addresses reserved, 1023 GiB at most; 0 for eight times the device's memory, up to that maximum. If
    /// the system refuses eight times, 0 accepts less, down to five quarters of the device's memory.
    pub address_bytes: u64,
    /// Which streams get pieces of 2 MiB of their own for blocks of up to 64 KiB.
    pub arenas: ArenaPolicy,
    /// Whether an allocation on a stream that captures is refused
    /// ([`Capturing`](crate::DeviceAllocError::Capturing)) unless a [window](super::DeviceAllocator::prime)
    /// was primed. On by default. It costs each allocation one driver call (`cuStreamIsCapturing`), except on
    /// a default stream, which never captures. No cheaper way is known: captures begin without notice to the
    /// allocator.
    ///
    /// Switch it off only in a program that never captures. Without it only allocations that need the driver
    /// notice a capture; others get memory that the graph then shares with the program.
    ///
    /// A free is never refused for a capture, since it promises that nothing uses the block any more, the
    /// graph included.
    pub check_captures: bool,
    /// How [steps](super::DeviceAllocator::step) are planned.
    pub steps: StepConfig,
    /// Further devices, by ordinal, whose work reads and writes the memory; each must be able to reach it.
    /// Every change of a mapping costs more with each of them.
    pub peers: Vec<i32>,
    /// Whether blocks may be [exported](super::DeviceAllocator::export) to other processes, and network cards
    /// may reach the memory if the device supports it (GPUDirect RDMA). The device must support exports.
    pub shareable: bool,
}

impl DeviceConfig {
    /// Makes a configuration without a limit. Held memory is taken to cost money, so idle pages move before
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

    /// Makes a configuration with a budget of `bytes`: no page moves before that many bytes are held.
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
