//! The process heap as the malloc of C and C++ programs and of installed programs. Each runs on the
//! C library's heap and on `liblarder`, preloaded or linked, and must exit and print the same.
//!
//! * `library` builds `liblarder` once · `install` installs it · `program` compiles, runs and compares
//! * `contract` the contracts of functions and operators · `life` how processes and threads begin,
//!   fork and end · `calls` what the heap calls, and where
//! * `environment` the variables · `hardened` the hardened heap and the checking one · `checking` the
//!   reports of the checking one · `guard` guard pages · `statistics` the report at exit · `real`
//!   installed programs
//!
//! The C and C++ programs are in `programs/`; with `LARDER_ROUNDS=all` they make 10,000 rounds.
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
mod install;
mod library;
mod life;
mod program;
mod real;
mod statistics;
