//! Configurations of a planner and a pool.

use crate::units::{Align, Granule};

/// The steps that are recorded: the first one, and the rule by which planning ends. Each recorded step ends with a
/// round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// The step, counted from 0, at whose start recording begins.
    pub start: i64,
    /// Planning ends after more than this number of stable rounds in a row.
    pub stable: i64,
    /// Planning ends after more than this number of rounds.
    pub max: i64,
}

impl Window {
    /// DeepRec's defaults.
    pub const DEFAULT: Self = Self {
        start: 100,
        stable: 10,
        max: 100,
    };
}

/// The configuration of a planner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlannerConfig {
    /// Whether the planner works. If not, calls have no effect, and there is never a plan.
    pub enabled: bool,
    /// The steps in which lives are recorded.
    pub window: Window,
    /// Maximum age of a block in the plan, in steps from its allocation to its free. An older block would hold its
    /// place through all of these steps.
    pub max_age_steps: u64,
}

impl PlannerConfig {
    /// Creates an enabled configuration with DeepRec's window, for blocks that live up to 8 steps.
    pub const fn new() -> Self {
        Self {
            enabled: true,
            window: Window::DEFAULT,
            max_age_steps: 8,
        }
    }

    /// Returns this configuration with another window.
    pub const fn with_window(self, window: Window) -> Self {
        Self { window, ..self }
    }
}

impl Default for PlannerConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// The number of records that plans have room for. Their memory is allocated when the plans are created, but not
/// touched before a record needs it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlanCapacity {
    /// Number of blocks freed between two rounds.
    pub stats: usize,
    /// Number of size classes of a plan.
    pub bins: usize,
    /// Number of blocks of a plan.
    pub blocks: usize,
    /// Number of virtual blocks of a plan.
    pub virtuals: usize,
    /// Whether sizes up to 32 KiB are also planned.
    pub small: bool,
}

/// When a pool plans again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Replan {
    /// A step is bad if the plan misses more than this percentage of its requests.
    pub miss_percent: u64,
    /// The number of bad steps in a row after which the pool plans again.
    pub steps: u32,
}

impl Replan {
    /// The pool plans again after three steps in a row in which the plan missed more than one request in ten.
    pub const DEFAULT: Self = Self {
        miss_percent: 10,
        steps: 3,
    };
}

/// The configuration of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlannedPoolConfig {
    /// The configuration of its planner.
    pub planner: PlannerConfig,
    /// The unit of the ranges requested from the backend: their sizes and addresses are multiples of it.
    pub unit: Align,
    /// Maximum bytes that a plan may take.
    pub cap_bytes: u64,
    /// When to plan again; `None` for never.
    pub replan: Option<Replan>,
}

impl PlannedPoolConfig {
    /// Creates a configuration for ranges in multiples of 256 bytes, without a cap. The pool plans again when steps
    /// change.
    pub const fn new() -> Self {
        Self {
            planner: PlannerConfig::new(),
            unit: Granule::DEFAULT.align(),
            cap_bytes: u64::MAX,
            replan: Some(Replan::DEFAULT),
        }
    }
}

impl Default for PlannedPoolConfig {
    fn default() -> Self {
        Self::new()
    }
}
