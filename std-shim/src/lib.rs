//! A global allocator for Rust programs that is fast, is built without a C compiler, and returns
//! unused memory to the system.
//!
//! ```
//! #[global_allocator]
//! static HEAP: larder::Larder = larder::Larder::new();
//!
//! let words = vec![String::from("larder"); 1000];
//! let stats = HEAP.stats();
//! assert!(stats.live_bytes > 1000 * 24 && stats.live_bytes <= stats.committed_bytes);
//! drop(words);
//! let bytes = HEAP.trim(); // returned to the system
//! # let _ = bytes;
//! ```
//!
//! * [`Larder`] is the heap. Any thread may free any block, threads may end in any order, and
//!   processes may fork. A call that finds no memory returns a null pointer. The type's
//!   documentation says what the heap costs and what ends the process.
//! * [`Larder::hardened`] and [`Larder::checking`] detect misuse: double frees, foreign pointers, writes past the end.
//! * [`step`] marks the beginning of work that repeats, such as a request. The large blocks of
//!   that work get planned addresses.
//! * [`Stats`] has the live, committed and reserved bytes, in total and by size class.
//! * [`Tracking`] wraps any global allocator and counts what a [`Scope`] of the program allocates;
//!   [`Profiled`] samples allocations for heap profiles; [`Recorder`] writes a trace for the program `larder replay`.
//! * `Heap`, with the feature `allocator-api2`, is a heap that is a value and is freed as a whole.
//! * [`Larder::malloc`] and [`Larder::free`] are for callers without layouts, such as C.
//!
//! Without the default feature `std`, the heap and its steps need only `core` and the C library.
//! `liblarder.so`, which provides malloc to programs in any language, is built that way.
//!
//! # Limits
//! The heap works on Unix, and on Windows without [`Recorder`] (docs/guide/src/platforms.md).
//! Freed memory goes back to the system after the configured delay, except the blocks that running
//! threads cache, and except while less than 8 MiB are in use. A background thread does this
//! ([`Larder::with_background_purge`] says which programs cannot have one). Memory that steps hold
//! beyond their plans goes back when a step ends; the rest goes back with [`Larder::trim`]. The
//! heap reserves 64 GiB of addresses, or as many as the system grants. It must not be used in
//! signal handlers.

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
// * `global_alloc` the allocator's verbs, `cold_path` their slow paths, `free_without_layout`
//   frees by an address alone; `config` the options, `options` their public setters, `stats`
//   statistics, `exit_report` reports when the process ends, `text` a buffer for the reports
// * `safety` finding misuse: hardened and checking heaps, guard pages, reports
// * `thread` the state of one thread, and the end of a thread
// * `process` the state that threads share: arenas, heaps, mappings; fork handlers
// * `arena` one reserved range: spans, large blocks, moving pages, and returning free memory
// * `purge` when memory returns to the system
// * `step` steps that repeat, and the memory of their blocks
// * `value_heap` heaps as values
// * `observe` decorators that count, sample and record
// * `block_table` a table of some live blocks, by address
// * `os` the operating system
//
// Size classes, spans, remote frees and the parking of heaps (`small`) come from `larder-core`,
// and so does best fit with coalescing.

mod arena;
mod block_table;
mod cold_path;
mod config;
#[cfg(all(target_os = "linux", not(miri)))]
mod exit_report;
mod free_without_layout;
mod global_alloc;
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
#[cfg(miri)]
mod under_miri;
#[cfg(feature = "allocator-api2")]
mod value_heap;

pub use config::{HugePages, OnMisuse};
pub use global_alloc::Larder;
/// How the blocks of [`step`]s were served, in [`Stats::steps`].
pub use larder_core::steps::StepStats;
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

/// The guide's examples, compiled and run with the tests.
#[cfg(doctest)]
mod guide {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../../docs/guide/src/heap.md")]
    struct TheHeap;
    #[doc = include_str!("../../docs/guide/src/platforms.md")]
    struct Platforms;
    #[doc = include_str!("../../docs/guide/src/misuse.md")]
    struct Misuse;
    #[cfg(all(feature = "pprof", feature = "allocator-api2"))]
    #[doc = include_str!("../../docs/guide/src/profiles.md")]
    struct Profiles;
}
