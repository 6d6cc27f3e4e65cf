//! Tests of larder-control in one program, so that it is linked once. To run one module:
//! `cargo test -p larder-control --test all pacer::`.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests")]

mod actions;
mod clock;
mod common;
mod config;
mod coordinate;
mod files;
#[cfg(unix)]
mod hostile;
mod limit;
mod listener;
mod listener_threads;
#[cfg(unix)]
mod locks;
mod manage;
mod pacer;
mod relay;
mod statistics;
mod status;
#[cfg(target_os = "linux")]
mod users;
