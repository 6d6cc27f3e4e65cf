//! The process heap: what a Rust program allocates from.
//!
//! ```
//! #[global_allocator]
//! static HEAP: larder::Larder = larder::Larder::new();
//!
//! let words = vec![String::from("larder"); 1000];
//! let stats = HEAP.stats();
//! assert!(stats.live_bytes > 1000 * 24 && stats.live_bytes <= stats.committed_bytes);
//! drop(words);
//! let bytes = HEAP.trim(); // given back to the system
//! # let _ = bytes;
//! ```
//!
//! * [`Larder`] is the heap: any thread may free any block, threads end in any order, processes
//!   fork, out of memory is null. What it costs and what ends the process stands there.
//! * [`step`] tells it that work begins which repeats: its big blocks are planned then.
//! * [`Stats`] says what is live, committed and reserved, in all and by size class.
//! * [`Recorder`] around any global allocator writes each block to a trace, which the program
//!   `larder replay` of this repository reads.
//!
//! # Limits
//! Unix only. Memory goes back to the system when [`Larder::trim`] is called and not before, but for what no
//! plan needs when a planned step ends. 64 GiB
//! of addresses are reserved, or as many as the system gives. Not for signal handlers.
//!
//! # Files
//! `larder` the allocator's verbs · `threads` what is there once a process or thread · `local` what
//! a thread keeps at hand · `process` arenas and heaps · `arena` one reserved range · `marks`
//! memory known to be zero · `step` the steps of a thread · `step_heap` the range behind them ·
//! `step_tables` its tables · `settings` how they are made · `os` the system below · `stats` numbers ·
//! `check` broken contracts · `recorder` a decorator that writes a trace.
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
mod settings;
mod stats;
mod step;
mod step_heap;
mod step_tables;
#[cfg(test)]
mod tests;
mod threads;

pub use larder::Larder;
pub use recorder::Recorder;
pub use settings::{BadSetting, StepSettings, StepsInUse};
pub use stats::{ClassStats, Stats};
pub use step::{Step, step, step_keyed};
