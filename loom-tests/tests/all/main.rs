//! All loom models in one program, so that it is linked once. One module: `cargo test --release -p larder-loom-tests --test all paged::`.
#![cfg(loom)]
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests")]

mod build_turn;
mod explore;
mod fixed_range;
mod growth;
mod joint_bytes;
mod lifetime;
mod limits;
mod lock_word;
mod open_event;
mod paged;
mod pool;
mod resize;
mod small;
