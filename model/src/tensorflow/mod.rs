//! TensorFlow 1.15's allocators as they are, but for their defects, for conformance tests and for rows
//! to compare with.

pub mod pool;
