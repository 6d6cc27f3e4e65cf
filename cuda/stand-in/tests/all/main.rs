//! Tests of the stand-in through its exported functions. They share one driver, so they take turns.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "calls of the driver's C interface"
)]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod capture;
mod chaos;
mod common;
mod driver;
mod kernels;
mod memory;
#[path = "../../src/random.rs"]
mod numbers;
mod pools;
mod schedules;
