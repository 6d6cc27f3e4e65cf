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
//! * [`Tracking`] around any global allocator counts what a [`Scope`] of the program allocates,
//!   [`Profiled`] samples for heap profiles. `Heap`, with the feature
//!   `allocator-api2`, is a heap of its own, freed as a whole.
//! * [`Recorder`] around any global allocator writes each block to a trace, which the program
//!   `larder replay` of this repository reads.
//!
//! # Limits
//! Unix, and Windows without [`Recorder`] (docs/PLATFORMS.md). Freed memory goes back to the system
//! after the delay of the configuration, but for what running threads keep at hand and for less than
//! 2 MiB in all; what planned steps keep goes when one ends. A thread of the heap's own sees to that
//! while anything is idle ([`Larder::with_background_purge`] says who cannot have one). 64 GiB of
//! addresses are reserved, or as many as the system gives. Not for signal handlers.
//!
//! # Files
//! `larder` the allocator's verbs · `threads` what is there once a process or thread · `thread_part`
//! where a thread's own lies · `local` what that is · `process` arenas and heaps · `arena` one
//! reserved range: its large blocks, `spans`, what is idle, and blocks that move · `arena_tables` its
//! tables · `committed` its memory · `uses` how much of it is
//! really in use · `purge` memory that goes back by itself · `marks` memory known to be zero · `step`
//! the steps of a thread · `step_heap` the range behind them ·
//! `step_tables` its tables · `settings` how they are made · `os` the system below · `waiting` how threads wait for locks · `stats` numbers ·
//! `check` broken contracts · `config` what a program chooses · `recorder` a decorator that writes a trace ·
//! `block_table` what decorators know of live blocks · `tracking` and `profile` decorators that count and
//! sample · `heap` heaps as values.
//!
//! Size classes, spans, remote frees and the parking of heaps are `larder-core`'s (`small`), as is
//! best fit with coalescing.

// Under the interpreter most of the heap lies idle.
#![cfg_attr(miri, allow(dead_code, unused_imports))]

#[cfg(not(any(unix, windows, miri)))]
compile_error!(
    "larder's process heap knows Unix and Windows; another system is one more file in \
     std-shim/src/os, which says there what it must provide. Until then leave out the \
     `#[global_allocator]` on this target"
);

mod arena;
mod arena_tables;
mod block_table;
mod check;
mod committed;
mod config;
#[cfg(feature = "allocator-api2")]
mod heap;
#[cfg(miri)]
mod interpreted;
mod larder;
mod local;
mod marks;
mod os;
mod process;
mod profile;
mod purge;
#[cfg(unix)]
mod recorder;
mod settings;
mod slow;
mod stats;
mod step;
mod step_heap;
mod step_tables;
#[cfg(test)]
mod tests;
mod thread_part;
mod threads;
mod tracking;
mod uses;
mod waiting;

pub use config::HugePages;
#[cfg(feature = "allocator-api2")]
pub use heap::{Heap, HeapStats};
pub use larder::Larder;
/// How the blocks of [`step`]s were served, in [`Stats::steps`].
pub use larder_core::lifetime::StepStats;
#[cfg(feature = "heap-profile")]
pub use profile::{LiveSamples, SampleTotals};
pub use profile::{Profiled, Sample, SampleEvent, SampleHook, unsampled};
#[cfg(unix)]
pub use recorder::Recorder;
pub use settings::{BadSetting, StepSettings, StepsInUse};
pub use stats::{ClassStats, Stats};
pub use step::{Step, step, step_keyed};
pub use tracking::{Entered, Scope, ScopeCounts, ScopeHandle, ScopeReport, Tracking, uncounted};
