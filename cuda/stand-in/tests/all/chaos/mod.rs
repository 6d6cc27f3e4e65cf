//! Attacks on the stand-in: random calls, many threads, random programs with an independent model of
//! what races, long queues and many objects, forked processes.

#![allow(
    clippy::multiple_unsafe_ops_per_block,
    clippy::undocumented_unsafe_blocks,
    clashing_extern_declarations,
    reason = "calls of the driver's C interface"
)]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod api;
mod calls;
mod load;
mod mended;
#[path = "../../src/random.rs"]
mod numbers;
mod order;
mod process;
mod races;
mod random;
mod threads;
mod world;
