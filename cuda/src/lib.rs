//! GPU memory for programs on cudarc.
pub mod driver;
pub use driver::context::Context;
pub use driver::event::{Event, EventConfig};
pub use driver::{DriverError, LoadError};
