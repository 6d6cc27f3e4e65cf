//! Memory allocators as plain algorithms: no I/O, no OS, no allocation of their own.
//!
//! * A global allocator for a program without an OS: [`StaticHeap`], with its region inside, or
//!   [`Heap`], over a region of yours. Both have examples.
//! * Best fit with coalescing over addresses, offsets or device memory: [`Bfc`] for one thread,
//!   [`BfcAllocator`] behind a lock over a [`SubAllocator`] (below).
//! * Freed buffers kept for requests of the same size: [`pool`], over memory that is dear to get.
//! * What the process heap of the crate `larder` is made of: [`small`]. Its parts are for front ends, and
//!   change as they need.
//!
//! The core of Larder. Best fit with coalescing ([`Bfc`]) works on numbers (addresses and sizes)
//! and keeps its state in tables lent by the caller, so the memory it manages may be a device's,
//! which the CPU cannot touch. Size classes and spans ([`small`]) serve host memory; both together
//! under one lock are [`Heap`], a global allocator for programs without an OS. The front ends that make
//! a process heap or a GPU allocator of them are other crates.
//!
//! # Layers: a file uses only those below its own
//! ```text
//! around them  decorate                  counts, guards, resets, quarantine
//! families     vmem typed                counts of two sides; values
//! algorithms   small                     size classes, spans; the heap without an OS
//!              lifetime                  steps that repeat: recorded, planned, served
//!              bfc                       chunks and bins over regions or pages
//!              pool limits               idle buffers by size; budgets inside budgets
//! regions      region, sub_allocator     where memory comes from
//!              access, host_access       reading and writing what blocks name
//! sync         sync                      locks; the only place that knows the model checker
//! tables       table                     records, lists and probing over lent slices
//! words        units stream block error stats attributes
//! ```
//!
//! # Over a caller's buffer
//! Addresses are only numbers, so they may as well be offsets into a buffer:
//! ```
//! use larder_core::{Addr, AddrRange, Bfc, BfcConfig, Chunk, Request};
//!
//! let mut buffer = [0u8; 16 * 1024];
//! let mut table = [Chunk::VACANT; 32];
//! let mut bfc = Bfc::new(BfcConfig::fixed(), &mut table)?;
//! bfc.add_region(AddrRange::new(Addr::new(0), buffer.len() as u64).unwrap())?;
//!
//! let block = bfc.alloc(&Request::new(300))?.block;
//! let start = block.addr().get() as usize;
//! buffer[start..start + 300].fill(7);
//! bfc.free(block)?;
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```
#![no_std]
#![deny(unsafe_code)]

#[forbid(unsafe_code)]
mod access;
#[forbid(unsafe_code)]
mod attributes;
#[forbid(unsafe_code)]
pub mod bfc;
#[forbid(unsafe_code)]
mod block;
#[forbid(unsafe_code)]
pub mod decorate;
#[forbid(unsafe_code)]
mod error;
#[allow(
    unsafe_code,
    reason = "memory behind addresses is read and written: docs/UNSAFE.md"
)]
mod host_access;
#[forbid(unsafe_code)]
pub mod lifetime;
#[forbid(unsafe_code)]
pub mod limits;
#[forbid(unsafe_code)]
pub mod pool;
#[forbid(unsafe_code)]
mod region;
#[allow(
    unsafe_code,
    reason = "free blocks are linked through themselves: docs/UNSAFE.md"
)]
pub mod small;
#[forbid(unsafe_code)]
mod stats;
#[forbid(unsafe_code)]
mod stream;
#[forbid(unsafe_code)]
mod sub_allocator;
#[allow(
    unsafe_code,
    reason = "cells and locks that outlive a call: docs/UNSAFE.md"
)]
pub mod sync;
#[forbid(unsafe_code)]
pub mod table;
#[allow(unsafe_code, reason = "blocks become values in memory: docs/UNSAFE.md")]
pub mod typed;
#[forbid(unsafe_code)]
mod units;
#[forbid(unsafe_code)]
pub mod vmem;
#[allow(
    unsafe_code,
    reason = "zero bytes are values of records: docs/UNSAFE.md"
)]
mod zeroed;

pub use access::{MemoryAccess, Pattern, SliceAccess};
pub use attributes::{AllocatorAttributes, ScopesDiffer};
pub use bfc::paged;
pub use bfc::{
    AddressIndex, Attempt, Bfc, BfcAllocator, BfcConfig, BinSummary, Chunk, ChunkInfo, ChunkState,
    GrowTicket, Growth, HashIndex, Memory, NoIndex, PageIndex, RegionInfo, RegionPlan, Regions,
    ReleaseTicket, Report, Source, Step, Violation,
};
pub use block::{
    AllocatorId, Block, BlockAllocator, ChunkHandle, Grant, RawBlock, Request, Resize,
};
pub use error::{
    AccessError, AllocError, Cause, ConfigError, FreeError, OutOfMemory, RegionError, Rejected,
    ResizeError,
};
pub use host_access::HostAccess;
pub use region::{FixedRange, MAX_REGIONS, RegionId};
#[cfg(not(loom))]
pub use small::{Heap, HeapStats, StaticHeap};
pub use stats::{PoolStats, Stats};
pub use stream::{EventNumber, StreamId, StreamPoint};
pub use sub_allocator::{GrowRequest, SubAllocError, SubAllocator};
pub use sync::{Locked, Spin, Wait};
pub use units::{Addr, AddrRange, Align, Granule, round_down, round_up};
pub use vmem::{Placement, VmemStats};
pub use zeroed::Zeroed;

/// The README's sample, compiled and run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
