//! Models of TensorFlow 1.15's allocators without their defects: the subject of conformance cases with upstream's
//! numbers, and rows of benchmark tables.

mod attributes;
pub mod bfc;
pub mod pool;

pub use attributes::AllocAttributes;
pub use bfc::Bfc;
