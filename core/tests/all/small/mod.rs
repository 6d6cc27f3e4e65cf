//! The heap without an OS, used as a program uses it, with every byte checked.
#![allow(clippy::unwrap_used, reason = "tests")]

mod heap;
