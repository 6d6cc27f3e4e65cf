//! Models small blocks: remote frees (REMOTE), the release of spans (SPAN5), transfer caches (SET), parked and adopted
//! heaps (HEAP), and aging by ticks (PURGE).
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
