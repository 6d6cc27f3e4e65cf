//! Budgets inside budgets: charges along a path, limits answered at once, and what pools may hold meanwhile.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests")]

mod edges;
mod random;
mod rule;
