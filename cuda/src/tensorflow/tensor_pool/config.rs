//! Configuration of a pool: its planning, and the sizes of its tables.

use larder_core::prmalloc::{PlanCapacity, PlannedPoolConfig};

/// Default maximum number of blocks freed between two rounds, and of the device's blocks in use.
const STATS: usize = 1 << 14;
/// Default maximum number of size classes.
const BINS: usize = 1 << 11;
/// Default maximum number of real blocks of a plan, and of virtual ones.
const BLOCKS: usize = 1 << 13;

/// Configuration of a [`DeviceTensorPool`](super::DeviceTensorPool).
///
/// The tables are host memory, reserved when the pool is made and freed with it; a full table only causes
/// an error. With the defaults they take 12 MiB of addresses, and memory only for recorded and planned
/// entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TensorPoolConfig {
    /// How steps are recorded, and when they are planned again.
    pub pool: PlannedPoolConfig,
    /// Whether sizes up to 32 KiB are planned too; otherwise the device's allocator serves them.
    pub plans_small: bool,
    /// Maximum number of blocks freed between two rounds.
    pub stats: usize,
    /// Maximum number of size classes of a plan.
    pub bins: usize,
    /// Maximum number of blocks of a plan.
    pub blocks: usize,
    /// Maximum number of virtual blocks of a plan.
    pub virtuals: usize,
    /// Maximum number of blocks in use that are not the plan's.
    pub live: usize,
}

impl TensorPoolConfig {
    /// Makes the configuration of a pool that plans again when steps change.
    pub const fn new() -> Self {
        Self::with_pool(PlannedPoolConfig::new())
    }

    /// Makes a configuration with tables of the default sizes.
    pub const fn with_pool(pool: PlannedPoolConfig) -> Self {
        Self {
            pool,
            plans_small: true,
            stats: STATS,
            bins: BINS,
            blocks: BLOCKS,
            virtuals: BLOCKS,
            live: STATS,
        }
    }

    pub(super) const fn room(&self) -> PlanCapacity {
        PlanCapacity {
            stats: self.stats,
            bins: self.bins,
            blocks: self.blocks,
            virtuals: self.virtuals,
            small: self.plans_small,
        }
    }
}

impl Default for TensorPoolConfig {
    fn default() -> Self {
        Self::new()
    }
}
