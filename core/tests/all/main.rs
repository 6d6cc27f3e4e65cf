//! The core's tests, linked as one program. To run one module: `cargo test -p larder-core --test all paged::`.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests")]

mod adjust;
mod attributes;
mod byte_count;
mod common;
mod decorate;
mod errors;
mod foreign;
mod golden;
mod limits;
mod model;
mod packing;
mod paged;
mod pool;
mod prmalloc;
mod resize;
mod scattered;
mod script;
mod small;
mod steps;
mod streams;
mod tensorflow;
mod typed;
