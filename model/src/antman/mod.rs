//! A model of AntMan with its defects: the subject of conformance cases with upstream's numbers.
//!
//! [`Vmem`] is AntMan's allocator over a device's memory and the host's. The other items are parts of a job, which
//! reads a [control file](reading), [limits](adjust) devices, [pauses](Pauses), [counts runs](Averages), and passes a
//! file's content to [handlers](Handlers).

mod handlers;
mod limits;
mod pauses;
pub mod reading;
mod statistics;
mod vmem;

pub use handlers::Handlers;
pub use limits::{LimitedDevice, Orders, adjust};
pub use pauses::{OpManager, Pauses, Plan};
pub use statistics::{Averages, Reason, by_gpu, swap_reason};
pub use vmem::{Placed, Vmem, VmemError};
