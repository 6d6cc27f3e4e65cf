//! Replays recorded allocation traces against Larder and its peers.
//!
//! The library behind the program `larder`. It is not an allocator: every
//! contender works on numbers (addresses and sizes on a simulated device), and
//! nothing here touches the memory that the numbers name. Process heaps are
//! measured in programs of their own.
//!
//! * [`larder_trace`] reads a recorded trace and refuses a damaged one.
//! * [`replay`] drives one contender through one trace and measures it.
//! * [`ours`], [`paged`], [`planned`] and [`prmalloc`] put `larder-core` into the same replay.
//! * [`plan`] packs lifetimes from CSV files and from the steps of traces.
//! * [`peers`] holds models of other allocators, independent of `larder-core`.
//! * [`report`] prints what was measured: table, JSON lines, HTML page.
//! * [`versus`] builds and runs those programs, one for each global allocator.
//! * [`cli`] is the command line.
#![deny(unsafe_code)]

pub mod cli;
pub mod device;
pub mod ours;
pub mod paged;
pub mod pair;
pub mod peers;
pub mod plan;
pub mod planned;
pub mod prmalloc;
pub mod replay;
pub mod report;
pub mod units;
pub mod versus;
