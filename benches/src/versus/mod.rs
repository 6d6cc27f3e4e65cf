//! Larder beside other global allocators, in programs of their own.
//!
//! Each allocator is built into a worker ([`workers`]): the same program but for
//! one feature. A run of a workload is one process ([`process`]); runs of
//! different allocators alternate ([`rounds`]), and what they measured is put
//! side by side ([`summary`], [`table`], [`frames`], [`page`]); ours is held against the best of all others
//! ([`peers`], [`markdown`]). Two figures are taken apart from the rounds: [`instructions`] of an
//! operation, and the memory of a process that is [`idle`] after a peak.
//!
//! A worker prints its own figures, so nothing here is part of what is measured.

pub mod allocators;
pub mod frames;
pub mod idle;
pub mod instructions;
pub mod machine;
pub mod markdown;
pub mod page;
pub mod peers;
pub mod process;
pub mod rounds;
pub mod summary;
pub mod table;
#[cfg(test)]
mod tests;
pub mod workers;
pub mod workloads;

pub use allocators::{ALLOCATORS, Allocator};
pub use frames::Frames;
pub use process::{RunFault, Sample};
pub use rounds::{Runs, Settings, measure};
pub use summary::{VersusMean, VersusRow, means, rows};
pub use workers::{BuildError, Package, Profile, Worker};
pub use workloads::{WORKLOADS, Workload};
