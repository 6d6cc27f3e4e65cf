//! Several jobs on one GPU: what a job reads from its control file, writes to its status file, and does
//! about it. No driver in here, and no clock but the one that is handed in.

#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

mod actions;
mod clock;
mod coordinate;
mod manage;
mod op_manager;
mod pacer;
mod perf;
mod signal;

pub use actions::{
    ActionError, ActionFailed, ActionId, ActionInfo, ActionTiming, Group, OnError, Ran, RunActions,
};
pub use clock::{Clock, ManualClock, SystemClock};
pub use coordinate::{
    Command, CoordinateError, Coordinator, CoordinatorConfig, JobId, JobReport, JobTerms,
};
pub use manage::{ResourceManagement, SleepPlan, Slots, Waited};
pub use op_manager::OpManager;
pub use pacer::{Pacer, PacerConfig, PacerReport, Pause};
pub use perf::{PerfControl, PerfDial, PerfOutOfRange, PerfReader};
pub use signal::Signal;
