//! Conformance with CONFORMANCE 7.2: the adjuster's sequences A, B and C number by number, the vmem cases
//! of 7.1 they rest on, and how ours (`Shrink::Pending`) differs from upstream (`Shrink::Clamp`).
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;

mod clamp;
mod given_again;
mod pending;
mod range_end;
mod release;
mod sequences;
