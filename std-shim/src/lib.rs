//! The process heap: what a Rust program allocates from.
//!
//! ```
//! #[global_allocator]
//! static HEAP: larder::Larder = larder::Larder::new();
//! # let _ = vec![1, 2, 3];
//! ```
//!
//! # Files
//! `larder` the allocator's verbs · `threads` what is there once a process or thread · `local` what
//! a thread keeps at hand · `process` arenas and heaps · `arena` one reserved range · `marks`
//! memory known to be zero · `os` the system below · `stats` numbers · `check` broken contracts ·
//! `recorder` a decorator that writes a trace.
//!
//! Size classes, spans, remote frees and the parking of heaps are `larder-core`'s (`small`), as is
//! best fit with coalescing.

#[cfg(not(unix))]
compile_error!("larder knows Unix systems only so far; another one is a file in std-shim/src/os");

mod arena;
mod check;
mod larder;
mod local;
mod marks;
mod os;
mod process;
mod recorder;
mod stats;
#[cfg(test)]
mod tests;
mod threads;

pub use larder::Larder;
pub use recorder::Recorder;
pub use stats::{ClassStats, Stats};
