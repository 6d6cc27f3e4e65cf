//! Tests of liblarder_cuda.so with programs in C, C++ and Python, on the stand-in. To run one module:
//! `cargo test -p larder-cuda-c-api --test all header::`.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests")]

mod backing;
mod calls;
mod common;
mod header;
mod interposed;
mod jobs;
mod python;
mod reserved;
mod sequence;
