//! Capture and graphs.

#![allow(
    clippy::multiple_unsafe_ops_per_block,
    clippy::undocumented_unsafe_blocks,
    reason = "calls of the driver's C interface"
)]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod driver;
mod graphs;
mod refusals;
