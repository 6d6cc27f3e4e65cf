//! The LRU pool: upstream's behaviour by its ids (docs/CONFORMANCE.md), our own promises, and random operations
//! compared with the model.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    unreachable_pub,
    reason = "tests"
)]

mod growth;
mod limits;
mod random;
mod refusals;
mod rig;
mod rounders;
mod threads;
mod upstream_cases;
