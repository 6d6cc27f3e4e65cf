//! Size bins planned from recorded steps, after DeepRec's PRMalloc.
mod class;
mod config;
mod error;
mod fit;
mod plans;
mod policy;
mod small_class;
mod stat;
mod tables;

pub use class::{Classes, Interval, REGULAR_MAX_BYTES, SMALL_MAX_BYTES};
pub use config::{Candidates, ChunkRounding, History, Order, PlannerConfig, Virtuals, Window};
pub use error::{InstallError, PlanError, PoolAllocError, PoolFreeError};
pub use plans::{Best, Plans};
pub use policy::{BinPlan, BlockPlan, Policy};
pub use small_class::SmallClass;
pub use stat::{AllocStat, Touching};
pub use tables::{BinRecord, BlockRecord, MemberRecord, PlanTables, PolicyTables, VirtualRecord};
