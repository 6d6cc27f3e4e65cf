//! The heap without an OS, used as a program would, with every byte checked.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    clippy::unwrap_used,
    reason = "tests"
)]

mod heap;
