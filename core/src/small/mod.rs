//! Small blocks: size classes, spans, and the lists of free blocks.
//!
//! This is the only part of the core that touches the memory that it manages: a free block holds the link to the next
//! one. Free lists for each run of pages, and a second list for blocks that other threads free, are mimalloc's idea
//! (Leijen, Zorn, de Moura 2019). A free finds the class from the layout, without a look-up; Rust's interface allows
//! that and C's does not.
//!
//! # Files
//! `class` sizes · `slot` free blocks as links · `mask` hidden links · `thread_cache` a thread's cached blocks ·
//! `large_cache` its large ones · `span` a run of blocks and its record · `holes` its pages returned to the system ·
//! `remote` blocks freed by other threads · `span_set` spans and transfer caches of one owner · `thread_heap` a thread's
//! heap, parked and adopted · `pages` the interface to the layer below · `region_pages`, `heap` a complete heap under
//! one lock, for programs without an OS.
//!
//! # States of a block
//! A block is in exactly one of these states: in use by the program; in a thread cache; in a transfer cache; in its
//! span's list; in its span's remote list; in a hole of its span; not carved yet. The files number their invariants
//! SLOT, CACHE, LARGE, SPAN, REMOTE, SET and HEAP.

mod class;
#[cfg(not(larder_loom))]
mod heap;
mod holes;
mod large_cache;
mod mask;
mod pages;
#[cfg(not(larder_loom))]
mod region_pages;
mod remote;
mod slot;
mod span;
mod span_set;
mod thread_cache;
mod thread_heap;

pub use class::{CLASSES, MAX_SMALL_ALIGN, MAX_SMALL_BYTES, SizeClass};
#[cfg(not(larder_loom))]
pub use heap::{Heap, HeapStats, StaticHeap};
pub use large_cache::{LARGE_UNIT, MAX_LARGE_BYTES};
pub use mask::Mask;
pub use pages::Pages;
pub use remote::RemoteQueue;
pub use slot::{Chain, Links, Slot};
pub use span::{Span, SpanMemory, SpanShape};
pub use span_set::{ClassUsage, Fresh, Policy, SpanSet};
pub use thread_cache::{CacheBin, ThreadCache};
pub use thread_heap::{HeapPool, LostBins, ThreadHeap};
