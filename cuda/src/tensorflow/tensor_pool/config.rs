//! How a pool is made: what it does, and how much its tables hold.

use larder_core::prmalloc::{PlanCapacity, PlannedPoolConfig};

/// Blocks freed between two rounds, and blocks of the device in use, that tables have room for.
const STATS: usize = 1 << 14;
/// Size classes.
const BINS: usize = 1 << 11;
/// Blocks of a plan.
const BLOCKS: usize = 1 << 13;

/// How a [`DeviceTensorPool`](super::DeviceTensorPool) is made.
///
/// The tables are host memory, reserved when the pool is made and given back with it; a full one is
/// an error and nothing else. As they are, they take 12 MiB of addresses, and memory for what is
/// recorded and planned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TensorPoolConfig {
    /// How steps are recorded, and when they are planned again.
    pub pool: PlannedPoolConfig,
    /// Sizes up to 32 KiB are planned too; otherwise the device's allocator serves them.
    pub plans_small: bool,
    /// Most blocks freed between two rounds.
    pub stats: usize,
    /// Most size classes of a plan.
    pub bins: usize,
    /// Most blocks of a plan.
    pub blocks: usize,
    /// Most virtual blocks of a plan.
    pub virtuals: usize,
    /// Most blocks in use that are not the plan's.
    pub live: usize,
}

impl TensorPoolConfig {
    /// A pool that plans again when steps change.
    pub const fn new() -> Self {
        Self::with_pool(PlannedPoolConfig::new())
    }

    /// Tables of the usual sizes for a pool that does this.
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
