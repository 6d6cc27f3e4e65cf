//! Blocks that are passed between threads, with every byte checked, on the heap as global allocator.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;

mod flows;
mod shuffle;

#[global_allocator]
static HEAP: larder::Larder = larder::Larder::new();
