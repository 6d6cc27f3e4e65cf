//! Small blocks: remote frees (R), release of spans (S5), transfer caches (D), heaps that come and go (H), what goes
//! home by ticks (P).
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    missing_docs,
    reason = "tests"
)]

mod adoption;
mod age;
mod owner;
mod release;
mod remote;
mod resting;
mod secondary_heaps;
mod transfer_cache;
mod twins;
mod world;
