//! TensorFlow 1.15's allocators as they are, without their defects: the subject of conformance cases with upstream's
//! numbers, and rows to compare with.

mod attributes;
pub mod bfc;
pub mod pool;

pub use attributes::AllocAttributes;
pub use bfc::Bfc;
