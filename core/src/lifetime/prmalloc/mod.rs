//! Size bins planned from recorded steps, after DeepRec's PRMalloc.
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

pub use class::{Classes, Interval, REGULAR_MAX_BYTES, SMALL_MAX_BYTES};
pub use config::{Candidates, ChunkRounding, History, Order, PlannerConfig, Virtuals, Window};
pub use error::{InstallError, PlanError, PoolAllocError, PoolFreeError};
pub use live::LiveRecord;
pub use planner::{Collector, Planner, PlannerTables, Progress, Round, RoundEnd, Step};
pub use plans::{Best, Plans};
pub use policy::{BinPlan, BlockPlan, Policy};
pub use pool::{PoolConfig, Slabs, TensorPool};
pub use pool_stats::{PoolCounts, Replan};
pub use pool_tables::{PoolBin, PoolBlock, PoolTables, PoolVirtual, SlotTables};
pub use settings::{
    BadSetting, BadSettings, ENABLE_MEMORY_OPTIMIZATION, MAX_STATISTIC_STEP, STABLE_STATISTIC_STEP,
    START_STATISTIC_STEP, STOP_STATISTIC_STEP,
};
pub use small_class::SmallClass;
pub use stat::{AllocStat, Touching};
pub use switch::State;
pub use tables::{BinRecord, BlockRecord, MemberRecord, PlanTables, PolicyTables, VirtualRecord};
