//! `liblarder_cuda.so`: GPU memory for programs that are not written in Rust, through C functions.
//!
//! PyTorch, CuPy and RMM take pointers to such functions. The functions are documented once, in
//! `include/larder_cuda.h`; their implementation is here.
//!
//! * CAPI1 no panic leaves the library: each function goes through [`outcome::guard`]. A function that may
//!   throw a C++ exception throws at its end, when nothing is left to drop.
//! * CAPI2 a block belongs to the allocator of one device, which keeps it by its address. A refused free
//!   leaves the block there.
//! * CAPI3 streams are the program's, and exist when the program passes them. Each is wrapped once and stays
//!   until the program reports its end: work of a stream that was destroyed without a report may still run
//!   when its memory is reused.
//! * CAPI4 the calling thread's current context is unchanged after every call.
//!
//! # Files
//! `device` devices by number, their streams and blocks · `backing` when pages move · `memory` allocations
//! and frees, with their callers' signatures · `reserved` reservations and their tensors · `throw` exceptions ·
//! `job` the control file · `step` steps and windows of captures · `report` counters, limits and JSON texts ·
//! `history` recorded allocations and frees · `outcome` errors · `interpose` functions in front of the driver, if the
//! library is preloaded

#![cfg(unix)]

mod backing;
mod device;
mod history;
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
mod reserved;
mod step;
mod throw;
