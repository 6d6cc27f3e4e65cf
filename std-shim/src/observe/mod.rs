//! Decorators over any global allocator: they observe the allocations of a program, and allocate
//! nothing through it.
//!
//! * `tracking` counts what a section of code allocates
//! * `profile` samples, for heap profiles
//! * `recorder` writes a trace of each block

pub(crate) mod profile;
#[cfg(unix)]
pub(crate) mod recorder;
pub(crate) mod tracking;
