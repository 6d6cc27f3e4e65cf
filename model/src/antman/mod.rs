//! AntMan as it is, its defects included: what conformance cases with upstream's numbers run on.
//!
//! [`Vmem`] is its allocator over a device's memory and the host's. The others are a job's parts:
//! how it reads a [control file](reading), [limits](adjust) devices, [pauses](Pauses), [counts
//! runs](Averages), and tells [handlers](Handlers) of a file.

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
