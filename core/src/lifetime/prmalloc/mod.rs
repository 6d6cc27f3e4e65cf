//! Size bins planned from recorded steps, after DeepRec's PRMalloc.
//!
//! A program whose steps allocate nearly the same blocks is watched for some of them. Each size
//! class, a *bin*, then gets as many blocks as its lives need when lives that do not meet share one;
//! a bin may also use the gaps of larger bins' blocks (*virtual blocks*, which cost nothing). Of
//! three ways to class sizes, [`Interval`], the cheapest is kept. Later steps pop blocks from stacks.
//!
//! * [`Plans`]: a value; stats in, plans out. No clock, no lock.
//! * [`Planner`]: counts steps, records, says when a [`Round`] is due.
//! * [`TensorPool`]: serves from the plan over a [`SubAllocator`](crate::SubAllocator).
//!
//! `docs/CONFORMANCE.md` lists where this differs from DeepRec's, which `larder-model` has as it is. Works
//! on numbers, in tables that the caller lends; a full table is an error value.
//!
//! What a plan does not promise: blocks are taken from whichever place of their bin is free and not
//! from the planned one, so that with virtual blocks a repeating step may miss now and then.
//! Different sizes cannot share memory except through larger bins, so that a pool needs more than an
//! allocator that splits and joins; what it saves is time and faults.

mod class;
mod config;
mod error;
mod fit;
mod gate;
mod install;
mod live;
mod planner;
mod plans;
mod policy;
mod pool;
mod pool_stats;
mod pool_steps;
mod pool_tables;
mod settings;
mod slot;
mod small_class;
mod stat;
mod switch;
mod tables;

pub use class::{Classes, Interval, SMALL_MAX_BYTES};
pub use config::{PlannedPoolConfig, PlannerConfig, Replan, Window};
pub use error::PlanError;
pub use live::LiveRecord;
pub use planner::{OpenStep, Planner, Progress, Round, RoundEnd};
pub use plans::{Best, Plans};
pub use policy::{BinPlan, ClassPolicy};
pub use pool::TensorPool;
pub use pool_stats::PoolCounts;
pub use pool_tables::{PoolBin, PoolBlock, PoolTables, PoolVirtual};
pub use settings::{
    BadSetting, ENABLE_MEMORY_OPTIMIZATION, MAX_STATISTIC_STEP, STABLE_STATISTIC_STEP,
    START_STATISTIC_STEP, STOP_STATISTIC_STEP,
};
pub use small_class::SmallClass;
pub use stat::AllocStat;
pub use switch::PlannerStage;
pub use tables::{BinRecord, BlockRecord, PlanTables, PolicyTables, VirtualRecord};
