//! AntMan as it is, with its defects: the subject of conformance cases with upstream's numbers.
//!
//! [`Vmem`] is its allocator over a device's memory and the host's. The others are a job's parts: it reads a [control
//! file](reading), [limits](adjust) devices, [pauses](Pauses), [counts runs](Averages), and gives a file's content to
//! [handlers](Handlers).

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
