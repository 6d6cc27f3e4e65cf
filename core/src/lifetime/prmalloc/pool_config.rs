//! What a pool does, as data: the corrected form, and upstream's two.

use super::config::PlannerConfig;
use super::pool_stats::Replan;
use crate::units::Align;

/// How the memory of a plan is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slabs {
    /// One range for each bin, as in the CPU form.
    PerBin,
    /// One range for all bins above 32 KiB and one for all below, as in the GPU form.
    One,
}

/// When a block that the backend gave goes back to it. A plan's blocks always come back at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Frees {
    /// When it is freed.
    AtOnce,
    /// When the next step begins: until then its memory is nobody's. The GPU form's asynchronous free,
    /// which upstream has as a second call beside the one that frees at once.
    NextStep,
}

/// What a pool does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolConfig {
    /// How steps are recorded and planned.
    pub planner: PlannerConfig,
    /// How memory is asked for.
    pub slabs: Slabs,
    /// When the backend's blocks go back.
    pub frees: Frees,
    /// What the backend's ranges are multiples of.
    pub unit: Align,
    /// The most bytes a plan may take.
    pub cap_bytes: u64,
    /// When to plan again; `None` is never, as upstream.
    pub replan: Option<Replan>,
}

/// 2 to the power of `log2`, at most 63.
const fn power(log2: u32) -> Align {
    match Align::new(1 << log2) {
        Some(align) => align,
        None => Align::ONE,
    }
}

impl PoolConfig {
    /// The corrected planner, one slab for each bin, ranges in multiples of 64 bytes, no cap.
    pub const fn new() -> Self {
        Self {
            planner: PlannerConfig::new(),
            slabs: Slabs::PerBin,
            frees: Frees::AtOnce,
            unit: power(6),
            cap_bytes: u64::MAX,
            replan: Some(Replan::DEFAULT),
        }
    }

    /// The corrected planner for a device: one slab for all bins above 32 KiB, ranges in multiples of 256
    /// bytes.
    pub const fn gpu() -> Self {
        Self {
            slabs: Slabs::One,
            unit: power(8),
            ..Self::new()
        }
    }

    /// Upstream's CPU form, to the letter but for its defects.
    pub const fn prmalloc() -> Self {
        Self {
            planner: PlannerConfig::prmalloc(),
            replan: None,
            ..Self::new()
        }
    }

    /// Upstream's GPU form, where nobody frees asynchronously ([`Frees::NextStep`]). Sizes up to 32 KiB are planned if the planner has tables for them.
    pub const fn prmalloc_gpu() -> Self {
        Self {
            planner: PlannerConfig::prmalloc_gpu(),
            replan: None,
            ..Self::gpu()
        }
    }
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self::new()
    }
}
