//! Size bins planned from recorded steps: the vectors and counts that DeepRec's PRMalloc would give
//! under `PlannerConfig::prmalloc`, what the corrected default gives, and the pool over both. The
//! ids are those of `docs/CONFORMANCE.md`.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    unreachable_pub,
    reason = "tests"
)]

mod books;
mod classes;
mod concurrent;
mod gpu_form;
mod planner;
mod pool;
mod random;
mod replan;
mod rig;
mod upstream_cases;
mod vectors;
