//! Compares Larder with other global allocators, each in separate programs.
//!
//! Each allocator is built into a worker ([`workers`]), which is the same program except for one feature. A run of a
//! workload is one process ([`process`]). Runs of different allocators alternate ([`rounds`]), and their measurements
//! are compared ([`summary`], [`table`], [`frames`], [`page`], [`html`]); our configurations are also compared with the
//! best of all others ([`peers`], [`markdown`]). Two figures are measured separately: the slowest calls ([`tail`]), and the
//! [`instructions`] of an operation.
//!
//! A worker measures and prints its own figures.

pub(crate) mod allocators;
pub(crate) mod frames;
pub(crate) mod html;
pub(crate) mod instructions;
pub(crate) mod machine;
pub(crate) mod markdown;
pub(crate) mod page;
pub(crate) mod peers;
pub(crate) mod process;
pub(crate) mod rounds;
pub(crate) mod summary;
pub(crate) mod table;
pub(crate) mod tail;
#[cfg(test)]
mod tests;
pub(crate) mod workers;
pub(crate) mod workloads;

pub(crate) use allocators::{ALLOCATORS, Allocator};
pub(crate) use rounds::{Settings, measure};
pub(crate) use summary::{VersusRow, rows};
pub(crate) use workers::{Package, Profile, Worker};
pub(crate) use workloads::{Kind, WORKLOADS, Workload};
