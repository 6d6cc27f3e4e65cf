//! `liblarder_cuda.so`: the memory of GPUs for programs that are not written in Rust, by functions of C.
//!
//! PyTorch, CuPy and RMM take pointers to such functions. What each function does stands in
//! `include/larder_cuda.h`, once; here is how.
//!
//! * CAPI1 no panic leaves the library: each function goes through [`outcome::guard`]. The functions that
//!   may throw an exception of C++ throw last, when nothing is left to drop.
//! * CAPI2 a block belongs to one device's allocator, which keeps it by its address. A free that is refused
//!   leaves it there.
//! * CAPI3 streams are the program's, and exist when it passes them. Each is wrapped once and stays
//!   until the program says that it ends: of a stream that is destroyed without a word, work may
//!   still run when its memory is given again.
//! * CAPI4 the calling thread's current context is as before, after every call.
//!
//! # Files
//! `device` devices by number, their streams and blocks · `backing` when pages move · `memory` allocations and
//! frees, by whose signature they are · `throw` exceptions · `job` the control file · `step` steps and windows of
//! captures · `report` counters, limits, texts · `outcome` errors · `interpose` in front of the driver, where the
//! library is preloaded

#![cfg(unix)]

mod backing;
mod device;
#[cfg(all(
    target_os = "linux",
    target_env = "gnu",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
mod interpose;
mod job;
mod memory;
mod outcome;
mod report;
mod step;
mod throw;
