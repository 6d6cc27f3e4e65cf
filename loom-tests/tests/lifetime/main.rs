//! L1 to L4 of the planner and its pool: stacks of bins, one round a stop, a plan published to
//! threads that allocate, and a plan that another replaces.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests")]
#![cfg(loom)]

mod planner;
mod pool;
mod twins;
mod world;
