//! Memory allocators as plain algorithms: `no_std`, without I/O, over tables that the caller lends.
//!
//! A global allocator for a program without an OS:
//! ```
//! use larder_core::StaticHeap;
//!
//! #[global_allocator]
//! static HEAP: StaticHeap<{ 256 << 10 }> = StaticHeap::new(); // the region is inside
//!
//! let words = vec![1_u32; 1000];
//! assert!(HEAP.stats().live_bytes >= 4000);
//! # drop(words);
//! ```
//!
//! Best fit with coalescing over anything that has addresses or offsets, such as a buffer, device memory or a file:
//! ```
//! use larder_core::{Addr, AddrRange, BestFit, Chunk, RegionConfig, RegionPool, Request};
//!
//! let mut buffer = [0u8; 16 * 1024];
//! let mut table = [Chunk::VACANT; 32];
//! let mut pool = RegionPool::new(RegionConfig::fixed(), &mut table)?;
//! pool.add_region(AddrRange::new(Addr::new(0), buffer.len() as u64).unwrap())?;
//!
//! let block = pool.alloc(&Request::new(300))?.block;
//! let start = block.addr().get() as usize;
//! buffer[start..start + 300].fill(7);
//! pool.free(block)?;
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```
//!
//! | for | use |
//! |---|---|
//! | a heap without an OS | [`StaticHeap`], or [`Heap`] over regions of yours |
//! | best fit with coalescing, in one thread | [`RegionPool`] |
//! | the same in several threads, over memory that grows | [`Shared`] over a [`SubAllocator`] |
//! | virtual memory whose physical pages move | [`pages`] |
//! | repeated steps, recorded and planned | [`steps`] |
//! | freed buffers kept for requests of the same size | [`pool`] |
//! | counts, guards and quarantine around an allocator | [`decorate`] |
//! | nested budgets | [`limits`] |
//! | typed values in the blocks of any of these | [`typed`] |
//!
//! State lies in tables that the caller lends. [`pool`], [`decorate`], [`limits::LimitTree`] and [`prmalloc`] come with
//! the feature `alloc`: they allocate their tables when a value is made, and nothing afterwards. [`small`] has the
//! parts of the process heap, the crate `larder`, and changes whenever that crate needs it. GPU memory is in the crate
//! `larder-cuda`.
#![no_std]
#![deny(unsafe_code)]

#[cfg(feature = "alloc")]
extern crate alloc;

#[forbid(unsafe_code)]
mod access;
#[forbid(unsafe_code)]
mod attributes;
#[forbid(unsafe_code)]
mod best_fit;
#[forbid(unsafe_code)]
mod block;
#[forbid(unsafe_code)]
mod byte_count;
#[cfg(feature = "alloc")]
#[forbid(unsafe_code)]
pub mod decorate;
mod engine;
#[forbid(unsafe_code)]
mod error;
#[allow(
    unsafe_code,
    reason = "memory behind addresses is read and written: CONTRIBUTING.md"
)]
mod host_access;
#[forbid(unsafe_code)]
pub mod limits;
#[forbid(unsafe_code)]
pub mod pack;
#[forbid(unsafe_code)]
mod page_index;
#[forbid(unsafe_code)]
pub mod pages;
#[cfg(feature = "alloc")]
#[forbid(unsafe_code)]
pub mod pool;
#[forbid(unsafe_code)]
pub mod prmalloc;
mod regions;
#[forbid(unsafe_code)]
mod shared;
#[allow(
    unsafe_code,
    reason = "free blocks are linked through themselves: CONTRIBUTING.md"
)]
pub mod small;
#[forbid(unsafe_code)]
mod stats;
#[forbid(unsafe_code)]
pub mod steps;
#[forbid(unsafe_code)]
mod stream;
#[forbid(unsafe_code)]
mod sub_allocator;
#[allow(
    unsafe_code,
    reason = "cells and locks that outlive a call: CONTRIBUTING.md"
)]
pub mod sync;
#[forbid(unsafe_code)]
pub mod table;
#[allow(
    unsafe_code,
    reason = "blocks become values in memory: CONTRIBUTING.md"
)]
pub mod typed;
#[forbid(unsafe_code)]
mod units;
#[forbid(unsafe_code)]
pub mod vmem;
#[allow(
    unsafe_code,
    reason = "zero bytes are values of records: CONTRIBUTING.md"
)]
mod zeroed;

pub use access::{MemoryAccess, Pattern, SliceAccess};
pub use attributes::{AllocatorAttributes, ScopesDiffer};
pub use best_fit::{BestFit, Progress};
pub use block::{
    AllocatorId, Block, BlockAllocator, ChunkHandle, Grant, RawBlock, Request, Resize,
};
pub use byte_count::ByteCount;
pub use engine::{
    BinSummary, Chunk, ChunkInfo, ChunkState, MAX_REGIONS, RegionId, RegionInfo, ReleaseTicket,
    Report, Violation,
};
pub use error::{
    AccessError, AllocError, Cause, ConfigError, FreeError, OutOfMemory, RegionError, Rejected,
    ResizeError,
};
pub use host_access::HostAccess;
pub use page_index::PageIndex;
pub use regions::{
    FixedRange, GrowTicket, Growth, RegionAttempt, RegionConfig, RegionPlan, RegionPool,
};
pub use shared::{Shared, Source};
#[cfg(not(larder_loom))]
pub use small::{Heap, HeapStats, StaticHeap};
pub use stats::{PoolStats, Stats};
pub use stream::{EventNumber, StreamId, StreamPoint};
pub use sub_allocator::{GrowRequest, SubAllocError, SubAllocator};
pub use sync::{Locked, Spin, Wait};
pub use units::{Addr, AddrRange, Align, Granule, round_down, round_up};
pub use vmem::{Placement, VmemStats};
pub use zeroed::Zeroed;

/// The guide's samples, compiled and run with the tests.
#[cfg(doctest)]
mod guide {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../../docs/guide/src/core.md")]
    struct Core;
    #[doc = include_str!("../../docs/guide/src/extend.md")]
    struct Extend;
    #[doc = include_str!("../../docs/guide/src/no-os.md")]
    struct NoOs;
}
