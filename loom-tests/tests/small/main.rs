//! Small blocks: remote frees (R), release of spans (S5), depots (D), heaps that come and go (H).
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    missing_docs,
    reason = "tests"
)]
#![cfg(loom)]

mod adoption;
mod depot;
mod owner;
mod release;
mod remote;
mod twins;
mod world;
