//! TensorFlow 1.15's own allocators as they are, but for their defects: what conformance cases with
//! upstream's numbers run on, and rows to compare with.

mod attributes;
pub mod bfc;
pub mod pool;

pub use attributes::AllocAttributes;
pub use bfc::Bfc;
