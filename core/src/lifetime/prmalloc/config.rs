//! What a planner and a pool do, as data.

use crate::units::{Align, Granule};

/// From which step on lives are recorded, and when the planning is over. A round ends each step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// The step, counted from 0, at whose start recording begins.
    pub start: i64,
    /// Stable rounds in a row that do not suffice yet.
    pub stable: i64,
    /// Rounds that do not suffice yet.
    pub max: i64,
}

impl Window {
    /// DeepRec's.
    pub const DEFAULT: Self = Self {
        start: 100,
        stable: 10,
        max: 100,
    };
}

/// How a planner records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlannerConfig {
    /// Off, every call does nothing and there is never a plan.
    pub enabled: bool,
    /// When lives are recorded.
    pub window: Window,
    /// A block freed more steps after its birth than this does not enter the plan: it would hold
    /// its place through all of them.
    pub max_age_steps: u64,
}

impl PlannerConfig {
    /// On, with DeepRec's window; blocks of up to 8 steps.
    pub const fn new() -> Self {
        Self {
            enabled: true,
            window: Window::DEFAULT,
            max_age_steps: 8,
        }
    }

    /// This configuration with another window.
    pub const fn with_window(self, window: Window) -> Self {
        Self { window, ..self }
    }
}

impl Default for PlannerConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// How many records plans have room for. All of it is reserved when they are made; memory that no
/// record needs is not touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlanCapacity {
    /// Blocks freed between two rounds.
    pub stats: usize,
    /// Size classes of a plan.
    pub bins: usize,
    /// Blocks of a plan.
    pub blocks: usize,
    /// Virtual blocks of a plan.
    pub virtuals: usize,
    /// Whether sizes up to 32 KiB are planned too.
    pub small: bool,
}

/// When a pool plans again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Replan {
    /// A step is bad if more than so many percent of what should be served by the plan was not.
    pub miss_percent: u64,
    /// So many bad steps in a row.
    pub steps: u32,
}

impl Replan {
    /// More than one in ten, three times in a row.
    pub const DEFAULT: Self = Self {
        miss_percent: 10,
        steps: 3,
    };
}

/// What a pool does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlannedPoolConfig {
    /// How steps are recorded.
    pub planner: PlannerConfig,
    /// What the backend's ranges are multiples of.
    pub unit: Align,
    /// The most bytes a plan may take.
    pub cap_bytes: u64,
    /// When to plan again; `None` is never.
    pub replan: Option<Replan>,
}

impl PlannedPoolConfig {
    /// Ranges in multiples of 256 bytes, no cap; plans again when steps change.
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
