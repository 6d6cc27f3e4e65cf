//! The heap without an OS, used as a program would, with every byte checked.
#![allow(clippy::unwrap_used, reason = "tests")]

mod heap;
