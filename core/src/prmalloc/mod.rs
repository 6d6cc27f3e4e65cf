//! Size bins planned from recorded steps, after DeepRec's PRMalloc.
//!
//! This is for programs whose steps allocate nearly the same blocks. Some of the steps are recorded. Each size class, a
//! *bin*, then gets as many blocks as its lives need if lives that do not overlap share a block. A bin may also use the
//! gaps in the blocks of larger bins, through *virtual blocks*, which cost nothing. Sizes are classified in three ways
//! ([`Interval`]), and the cheapest plan is kept. Later steps pop blocks from stacks.
//!
//! * [`Plans`] makes plans from stats. It has no clock and no lock.
//! * [`Planner`] counts steps, records lives, and returns a [`Round`] when one is due.
//! * [`TensorPool`] serves from the plan, with memory from a [`SubAllocator`](crate::SubAllocator).
//!
//! A plan serves from the records in which it was made. The pool swaps these records for spare ones.
//!
//! `docs/CONFORMANCE.md` lists the differences from DeepRec's PRMalloc; `larder-model` has an unchanged version of it.
//! This module touches no memory; its addresses are numbers. Everything except the configuration requires the feature
//! `alloc`: the records are allocated on the heap when a value is created ([`PlanCapacity`]). A full table is reported
//! as an error value.
//!
//! A plan has two limits. A request takes any free block of its bin and not the planned one, so with virtual blocks
//! even a step that repeats exactly may sometimes miss. Different sizes can share memory only through larger bins, so a
//! pool needs more memory than an allocator that splits and joins; it saves time and page faults.

mod config;
mod settings;

#[cfg(feature = "alloc")]
mod class;
#[cfg(feature = "alloc")]
mod counts;
#[cfg(feature = "alloc")]
mod error;
#[cfg(feature = "alloc")]
mod fit;
#[cfg(feature = "alloc")]
mod life;
#[cfg(feature = "alloc")]
mod planner;
#[cfg(feature = "alloc")]
mod plans;
#[cfg(feature = "alloc")]
mod policy;
#[cfg(feature = "alloc")]
mod pool;
#[cfg(feature = "alloc")]
mod pool_state;
#[cfg(feature = "alloc")]
mod records;
#[cfg(feature = "alloc")]
mod served_plan;
#[cfg(feature = "alloc")]
mod stacks;

pub use config::{PlanCapacity, PlannedPoolConfig, PlannerConfig, Replan, Window};
pub use settings::{
    BadSetting, ENABLE_MEMORY_OPTIMIZATION, MAX_STATISTIC_STEP, STABLE_STATISTIC_STEP,
    START_STATISTIC_STEP, STOP_STATISTIC_STEP,
};

#[cfg(feature = "alloc")]
pub use {
    class::{Classes, Interval, SMALL_MAX_BYTES, SmallClass},
    counts::PoolCounts,
    error::PlanError,
    life::AllocStat,
    planner::{OpenStep, Planner, PlannerProgress, PlannerStage, Round, RoundEnd},
    plans::{Best, Plans},
    policy::{BinPlan, ClassPolicy},
    pool::TensorPool,
};
