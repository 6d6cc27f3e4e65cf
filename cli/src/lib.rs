//! Replays recorded allocation traces against Larder and its peers.
//!
//! This is the library behind the program `larder` and its benches. It is not an allocator:
//! contenders work on numbers (addresses and sizes, on a simulated device or, in `device`, on a
//! driver), and nothing here touches the memory that the numbers name. Process heaps are measured
//! in separate processes.
//!
//! * `commands` is the command line; `report` writes the measurements.
//! * `replay` plays one trace on one contender and measures it; its `heaps` play the trace of a
//!   process heap in real memory, each in a process of its own.
//! * `ours`, `paged`, `planned` and `prmalloc` are contenders made of `larder-core`, `device` has
//!   those that run on a driver, and `peers` has models of other allocators, independent of
//!   `larder-core`.
//! * `families` generates random programs, and `streams` orders the events of programs on several
//!   streams.
//! * `snapshot` writes a replay for PyTorch's viewer.
//! * [`plan`] packs lifetimes from CSV files and from the steps of traces.
//! * `versus` builds and runs one program for each global allocator.
#![deny(unsafe_code)]

mod commands;
mod device;
mod families;
mod input;
mod interrupt;
pub mod numbers;
mod ours;
mod paged;
mod peers;
pub mod plan;
mod planned;
mod prmalloc;
pub mod random;
mod replay;
mod report;
mod snapshot;
mod streams;
mod versus;

pub use commands::run;
pub use report::Table;

/// The README's examples for the process heap and for GPU memory, compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
