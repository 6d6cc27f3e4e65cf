//! Size bins planned from recorded steps, after DeepRec's PRMalloc.
//!
//! If the steps of a program allocate nearly the same blocks, some of its steps are recorded. Each size class, a *bin*,
//! then gets as many blocks as its lives need when lives that do not overlap share a block; a bin may also use the gaps
//! of larger bins' blocks (*virtual blocks*, which cost nothing). Of three ways to classify sizes, [`Interval`], the
//! cheapest is kept. Later steps pop blocks from stacks.
//!
//! * [`Plans`]: a value; stats in, plans out. No clock, no lock.
//! * [`Planner`]: counts steps, records, returns a [`Round`] when one is due.
//! * [`TensorPool`]: serves from the plan over a [`SubAllocator`](crate::SubAllocator).
//!
//! A plan is made in the records from which it then serves; the pool swaps them for spare ones.
//!
//! `docs/CONFORMANCE.md` lists the differences from DeepRec's PRMalloc, which `larder-model` has unchanged. This module
//! works on numbers. Everything except the configuration requires the feature `alloc`: records are allocated on the
//! heap when a value is created ([`PlanCapacity`]), and a full table is an error value.
//!
//! Limits of a plan: blocks are taken from any free place of their bin and not from the planned one, so that with
//! virtual blocks a repeating step may miss now and then. Different sizes cannot share memory except through larger
//! bins, so a pool needs more memory than an allocator that splits and joins; it saves time and page faults.

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
