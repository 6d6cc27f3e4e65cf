//! TensorFlow 1.15's own allocators, exactly: what the conformance cases with upstream's numbers run on.
pub mod bfc;
pub use bfc::Bfc;
