//! The heap without an OS, used as a program would, with every byte checked.
#![allow(
    clippy::unwrap_used,
    reason = "a test may stop at what it does not expect"
)]

mod heap;
