//! Size bins planned from recorded steps: the vectors, the counts and the pools of DeepRec's PRMalloc (a type of the
//! model) and of ours. The ids are those of `docs/CONFORMANCE.md`.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    unreachable_pub,
    reason = "tests"
)]

mod books;
mod classes;
mod concurrent;
mod planner;
mod player;
mod pool;
mod random;
mod rig;
mod upstream_cases;
mod vectors;
