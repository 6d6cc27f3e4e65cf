//! Tests of the stand-in through its exported functions. They share one driver, so they take turns.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "calls of the driver's C interface"
)]
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "helpers of tests")]

mod chaos;
mod common;
mod driver;
#[path = "../../src/random.rs"]
mod numbers;
mod processes;
mod schedules;
mod scripts;
