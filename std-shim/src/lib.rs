//! The process heap: a global allocator for Rust programs.
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
//!   fork, and out of memory is null. Its documentation lists the costs and the errors that end the
//!   process.
//! * [`step`] marks the start of repeated work, whose large blocks are then planned.
//! * [`Stats`] has the live, committed and reserved bytes, in total and by size class.
//! * [`Tracking`] around any global allocator counts what a [`Scope`] of the program allocates,
//!   [`Profiled`] samples for heap profiles. `Heap`, with the feature `allocator-api2`, is a
//!   separate heap, freed as a whole.
//! * [`Recorder`] around any global allocator writes each block to a trace, which the program
//!   `larder replay` of this repository reads.
//!
//! * [`Larder::malloc`] and [`Larder::free`] are for callers without layouts, such as C. Without
//!   the feature `std` the heap and its steps need only `core` and the C library; `liblarder.so` is
//!   built that way.
//!
//! # Limits
//! Unix, and Windows without [`Recorder`] (docs/guide/src/platforms.md). Freed memory returns to
//! the system after the configured delay, except for the caches of running threads and where less
//! than 8 MiB are in use; memory of planned steps returns when a step ends. The heap's own thread
//! does this ([`Larder::with_background_purge`] says which programs cannot have one). Reserves 64
//! GiB of addresses, or as many as the system grants. Not for signal handlers.

#![cfg_attr(not(feature = "std"), no_std)]
// Without `std`, code for the decorators is unused.
#![cfg_attr(not(feature = "std"), allow(dead_code, unused_imports))]
// Under the interpreter most of the heap is unused.
#![cfg_attr(miri, allow(dead_code, unused_imports))]

#[cfg(not(any(unix, windows, miri)))]
compile_error!(
    "larder's process heap supports Unix and Windows; another system needs a file in \
     std-shim/src/os, whose mod.rs lists its contents. Until then leave out the \
     `#[global_allocator]` on this target"
);

#[cfg(not(any(feature = "std", unix)))]
compile_error!("larder needs its feature `std` on systems other than Unix");

// Modules:
// * `global_alloc` the allocator's verbs, `cold_path` past their fast paths, `free_without_layout`
//   by an address alone; `config` the options, `options` their public setters, `stats` numbers,
//   `end` reports when the process ends, `text` a buffer for them
// * `safety` finding misuse: hardened and checking heaps, guard pages, reports
// * `thread` the state of one thread, and the end of a thread
// * `process` the state that threads share: arenas, heaps, mappings; fork handlers
// * `arena` one reserved range: spans, large blocks, moving pages, returning free memory
// * `purge` when memory returns to the system
// * `step` steps that repeat, and the memory of their blocks
// * `value_heap` heaps as values
// * `observe` decorators that count, sample and record
// * `block_table` a table of some live blocks, by address
// * `os` the operating system
//
// Size classes, spans, remote frees and the parking of heaps are `larder-core`'s (`small`), as is
// best fit with coalescing.

mod arena;
mod block_table;
mod cold_path;
mod config;
#[cfg(all(target_os = "linux", not(miri)))]
mod end;
mod free_without_layout;
mod global_alloc;
#[cfg(miri)]
mod interpreted;
#[cfg(feature = "std")]
mod observe;
mod options;
mod os;
mod process;
mod purge;
mod safety;
mod stats;
mod step;
#[cfg(test)]
mod tests;
mod text;
mod thread;
#[cfg(feature = "allocator-api2")]
mod value_heap;

pub use config::{HugePages, OnMisuse};
pub use global_alloc::Larder;
/// How the blocks of [`step`]s were served, in [`Stats::steps`].
pub use larder_core::lifetime::StepStats;
#[cfg(feature = "heap-profile")]
pub use observe::profile::{LiveSamples, SampleTotals};
#[cfg(feature = "std")]
pub use observe::profile::{Profiled, Sample, SampleEvent, SampleHook, unsampled};
#[cfg(all(unix, feature = "std"))]
pub use observe::recorder::Recorder;
#[cfg(feature = "std")]
pub use observe::tracking::{
    Entered, Scope, ScopeCounts, ScopeHandle, ScopeReport, Scoped, Tracking, uncounted,
};
pub use stats::{ClassStats, Stats};
#[cfg(feature = "std")]
pub use step::BadSetting;
pub use step::{Step, StepSettings, StepsInUse, step, step_keyed};
#[cfg(feature = "allocator-api2")]
pub use value_heap::{Heap, HeapStats};

/// The guide's samples, compiled and run with the tests.
#[cfg(doctest)]
mod guide {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../../docs/guide/src/heap.md")]
    struct TheHeap;
    #[doc = include_str!("../../docs/guide/src/misuse.md")]
    struct Misuse;
    #[cfg(all(feature = "heap-profile", feature = "allocator-api2"))]
    #[doc = include_str!("../../docs/guide/src/profiles.md")]
    struct Profiles;
}
