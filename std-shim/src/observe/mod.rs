//! Decorators over any global allocator. They observe the allocations of a program, and allocate
//! nothing through that allocator.
//!
//! * `tracking` counts what a section of code allocates
//! * `profile` samples, for heap profiles
//! * `recorder` writes a trace of each block

pub(crate) mod profile;
#[cfg(unix)]
pub(crate) mod recorder;
pub(crate) mod tracking;
