//! Several jobs on one GPU: what a job reads from its control file, writes to its status file, and does
//! about it. No driver in here, and no clock but the one that is handed in.

#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

mod clock;

pub use clock::{Clock, ManualClock, SystemClock};
