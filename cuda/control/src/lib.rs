//! Several jobs on one GPU: the control file that a job reads, the status file that it writes, and how it
//! obeys its orders. The crate calls no driver and reads only the clock that it is given.
//!
//! ```
//! use larder_control::{BusId, ControlFile};
//!
//! let gpu: BusId = "00:1e.0".parse()?;
//! let mut orders = ControlFile::default();
//! orders.limit(gpu, 1 << 30); // 1 GiB of this GPU
//! orders.perf_control = Some(50); // and half of its time
//! let read = ControlFile::parse(orders.to_text())?;
//! assert_eq!(read.file, orders);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

mod actions;
mod bus_id;
mod clock;
mod control_file;
mod coordinate;
mod error;
mod life;
mod limit;
mod listener;
mod manage;
mod pacer;
mod perf;
mod relay;
mod signal;
mod statistics;
mod status_file;
mod whole_file;

pub use bus_id::BusId;
pub use clock::{Clock, ManualClock, SystemClock};
pub use control_file::{ControlFile, GpuControl, Parsed, Problem, ProblemKind};
pub use error::ParseError;
pub use life::{Life, is_of_user};
pub use limit::{Ceiling, divide_limit};
pub use listener::{Listener, ListenerConfig, ListenerStats, Registration, WatchMode};
pub use statistics::Statistics;
pub use status_file::{
    DeviceUsage, GpuLimit, GpuStatus, JobStatus, SleepState, SleepStatus, StatusFile, SwapReason,
};
pub use whole_file::{
    Durability, FileAct, FileError, FileLock, OwnedContent, Sharing, read_orders, read_owned,
    read_whole, replace_whole, sweep,
};

pub use actions::{
    ActionFailed, ActionId, ActionInfo, ActionTiming, Group, OnError, Ran, RunActions,
};
pub use coordinate::{
    Command, CoordinateError, Coordinator, CoordinatorConfig, JobId, JobPolicy, JobReport,
};
pub use manage::{ResourceManagement, SleepPlan, Waited};
pub use pacer::{Pacer, PacerConfig, PacerReport, Pause};
pub use perf::{DutyCycle, DutyCycleReader, PerfControl, PerfOutOfRange};
pub use signal::Signal;
