//! The whole process heap over a system that refuses: nothing is lost, nothing panics, and memory
//! that must be zero is.
//!
//! Here and not in `std-shim/tests`, because the parts are private: a test has a process of its own
//! and several [`Local`](crate::thread::local::Local)s in one thread, whose frees are remote to
//! each other.
#![allow(
    clippy::vec_box,
    reason = "a heap knows where its thread keeps the cache"
)]

mod bounded;
mod contract;
mod directed;
mod drive;
mod faulty;
mod flow;
mod heap;
mod large_cache;
mod memory_limit;
mod move_pages;
mod purge;
pub(crate) mod random;
mod residency;
mod scarce;
mod secondary_heaps;
pub(crate) mod verbs;
mod waits;
mod zero;
