//! All loom models, linked into one program. To run one module, run `cargo test --release --test all paged::` in
//! `loom-tests/`.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests")]

#[macro_use]
mod explore;

mod biased_lock;
mod build_turn;
mod fixed_range;
mod growth;
mod joint_bytes;
mod limits;
mod lock_word;
mod open_event;
mod paged;
mod pool;
mod prmalloc;
mod regions;
mod resize;
mod small;
