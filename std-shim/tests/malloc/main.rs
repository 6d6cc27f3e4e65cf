//! The process heap as the malloc of programs in C and C++, and of installed programs: each runs on the C library's
//! heap and on `liblarder`, preloaded or linked, and must end and print the same.
//!
//! * `library` builds `liblarder` once · `program` compiles, runs and compares
//! * `contract` what the functions and operators promise · `life` how processes and threads begin, fork and end · `calls`
//!   what the heap calls, and where
//! * `environment` the variables · `hardened` the hardened heap and the checking one · `checking` what the second says ·
//!   `guard` guard pages · `statistics` what is said at the end · `real` installed programs
//!
//! The programs in C and C++ are in `programs/`. With `LARDER_ROUNDS=all` they make 10,000 rounds in place of 20.
#![cfg(all(
    target_os = "linux",
    target_env = "gnu",
    target_pointer_width = "64",
    not(miri)
))]
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;

mod calls;
mod checking;
mod contract;
mod environment;
mod guard;
mod hardened;
mod library;
mod life;
mod program;
mod real;
mod statistics;
