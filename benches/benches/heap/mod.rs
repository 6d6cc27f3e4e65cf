//! Heaps for programs without an operating system, on the same scripts over the same region.
//!
//! Shared by the bench targets `heap` and `heap_rounds`. The other allocators are development
//! dependencies, which the library may not use; so all of it stands here.

pub(crate) mod contenders;
pub(crate) mod fault;
pub(crate) mod mix;
mod region;
pub(crate) mod runner;
pub(crate) mod script;
