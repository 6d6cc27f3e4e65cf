//! Best fit with coalescing: chunks of regions, free ones found by size in constant time.
//!
//! The idea and most words are TensorFlow's (`bfc_allocator`). What differs: blocks are always split
//! exactly, one range grows at its end instead of regions that double, the chunk at that end is used
//! last, and free chunks hang in fine size classes under a bitmap instead of ordered sets.
//!
//! What it is not: it performs no I/O and touches none of the memory it manages. Behind its chunks
//! stand ranges of a sub-allocator ([`Regions`]) or pages that a driver maps ([`paged`]). When calls
//! are needed, [`Bfc::advance`] gives them as a plan, and whoever drives it makes them without holding a
//! lock: [`BfcAllocator`] does that for any [`Source`].
//!
//! # Files
//! `config` policies · `chunk` the record · `class`, `bins` free chunks by size · `streams` stream order ·
//! `search` which chunk · `alloc` cutting it · `alloc_at` at a given place · `free` freeing and merging · `resize` a block in place · `memory` what stands behind the chunks, and one step of an allocation ·
//! `grow`, `shrink` tickets and limits, `grow_or_collect` the states of an allocation: all three of regions ·
//! `paged` pages · `report`, `dump` for people · `check` the invariants ·
//! `drive` the loops over a source · `allocator` a lock around it all · `in_place` made where it is to lie.
//!
//! # Invariants ([`Bfc::check_invariants`] walks them all)
//! * BFC1 the chunks of a region, from `first` along `next`, tile it from granule 0 to its end;
//!   `prev` is the reverse; `last` is the end of the chain.
//! * BFC2 of two free neighbours at least one carries a point; while one stream
//!   only was ever named and no fresh memory was left apart, no two free chunks are
//!   neighbours. (A stored point may be completed and not yet cleared; a sweep clears and joins
//!   before anything is grown.)
//! * BFC3 a free chunk is either the wilderness or in exactly one bin, that of its class (BIN1, BIN2).
//! * BFC4 the wilderness is the free chunk at the end of the newest region, if there is one. It is
//!   used last, so that the range ends as early as it can (dlmalloc).
//! * BFC5 every record is the sink, a chunk of some region, or vacant (SLAB1..SLAB3): none is lost.
//! * BFC6 the counters equal what a walk over all chunks finds.
//! * BFC7 `reserved + in flight <= limit`, unless the limit was lowered below what is held.
//! * BFC8 ids of used chunks are distinct, at most the last one given, and the slack is smaller
//!   than the chunk.
//! * BFC9 regions do not overlap and stand in address order (REGION1, REGION2).
//!
//! # Cost
//! `alloc` and `free` O(1); table 32 bytes a chunk, nothing per byte of pool.

mod alloc;
mod alloc_at;
mod allocator;
mod bins;
mod check;
mod chunk;
mod class;
mod config;
mod drive;
mod dump;
mod free;
mod grow;
mod grow_or_collect;
#[cfg(not(larder_loom))]
#[allow(unsafe_code, reason = "fields are written in place: docs/UNSAFE.md")]
mod in_place;
mod memory;
pub mod paged;
mod report;
mod resize;
mod search;
mod shrink;
mod streams;

pub use allocator::BfcAllocator;
pub use check::Violation;
pub use chunk::Chunk;
pub use config::{BfcConfig, Growth};
pub use grow::GrowTicket;
pub use grow_or_collect::Attempt;
pub use memory::{Memory, Progress, RegionPlan, Regions, Source};
pub use report::{BinSummary, ChunkInfo, ChunkState, RegionInfo, Report};
pub use shrink::ReleaseTicket;

use crate::block::{AllocatorId, Block, ChunkHandle, RawBlock};
use crate::error::{ConfigError, FreeError};
use crate::region::{RegionId, RegionTable};
use crate::stats::Stats;
use crate::stream::{EventNumber, StreamId};
use crate::table::slab::Slab;
use crate::units::{Addr, Granule};
use bins::Bins;
use chunk::Link;
use grow::GrowthState;
use streams::Streams;

/// Running totals, in granules where a size is counted.
#[derive(Clone, Copy, Default)]
struct Counters {
    /// Id of the newest allocation.
    last_id: u64,
    /// `last_id` when the statistics were last cleared.
    cleared_id: u64,
    live: u64,
    /// Most live since the statistics were cleared or a step began, whichever was later; and before
    /// that, since the one and since the other.
    peak_live: u64,
    peak_since_clear: u64,
    peak_since_step: u64,
    largest: u32,
    /// Granted less requested bytes over all used chunks.
    slack_bytes: u64,
    /// Held from the sub-allocator, in granules.
    reserved: u64,
    peak_reserved: u64,
    /// Of those, on their way back.
    leaving: u64,
    /// Number of the newest release.
    releases: u64,
}

impl Counters {
    /// Most live since the statistics were cleared.
    fn peak(&self) -> u64 {
        self.peak_live.max(self.peak_since_clear)
    }

    fn clear_peak(&mut self) {
        self.peak_since_step = self.step_peak();
        self.peak_since_clear = 0;
        self.peak_live = self.live;
    }

    /// Most live in the present step.
    fn step_peak(&self) -> u64 {
        self.peak_live.max(self.peak_since_step)
    }

    fn start_step(&mut self) {
        self.peak_since_clear = self.peak();
        self.peak_since_step = 0;
        self.peak_live = self.live;
    }
}

/// The algorithm: chunks, bins and policies, over numbers, for one thread at a time.
///
/// `'t` is the life of the lent table, `M` what stands behind the chunks.
///
/// ```
/// use larder_core::{Addr, AddrRange, Bfc, BfcConfig, Chunk, Request};
/// let mut table = [Chunk::VACANT; 64];
/// let mut bfc = Bfc::new(BfcConfig::fixed(), &mut table)?;
/// bfc.add_region(AddrRange::new(Addr::new(0x10000), 0x8000).unwrap())?;
/// let block = bfc.alloc(&Request::new(1000))?.block;
/// assert_eq!((block.addr(), block.bytes()), (Addr::new(0x10000), 1024));
/// bfc.free(block)?;
/// assert_eq!(bfc.stats().live_bytes, 0);
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
pub struct Bfc<'t, M: Memory = Regions> {
    config: BfcConfig,
    granule: Granule,
    limit_bytes: u64,
    /// What was held or under way when the limit was last set: BFC7 excuses that much.
    excused_bytes: u64,
    /// More is held than the limit allows.
    shrinking: bool,
    counters: Counters,
    growth: GrowthState,
    /// The region added or enlarged last. Its last chunk is the wilderness while it is free.
    newest_region: Option<RegionId>,
    wilderness: Link,
    /// Fresh memory was left apart from an end that a stream uses, since the last sweep (BFC2).
    apart: bool,
    table: Slab<'t, Chunk>,
    bins: Bins,
    regions: RegionTable,
    streams: Streams,
    /// What stands behind the chunks.
    memory: M,
}

impl<'t> Bfc<'t> {
    /// An allocator without memory, over a lent table of chunk records.
    ///
    /// The table bounds the number of chunks: one record is kept back, and blocks plus free
    /// chunks between them need one each. Never panics.
    ///
    /// # Errors
    /// If the configuration contradicts itself or the table has fewer than two records.
    pub fn new(config: BfcConfig, table: &'t mut [Chunk]) -> Result<Self, ConfigError> {
        Self::over(config, table, Regions)
    }
}

impl<'t, M: Memory> Bfc<'t, M> {
    fn over(config: BfcConfig, table: &'t mut [Chunk], memory: M) -> Result<Self, ConfigError> {
        let (granule, table) = Self::parts(&config, table)?;
        Ok(Self {
            limit_bytes: config.limit_bytes,
            excused_bytes: 0,
            shrinking: false,
            granule,
            counters: Counters::default(),
            growth: GrowthState::default(),
            newest_region: None,
            wilderness: Link::NIL,
            apart: false,
            table,
            bins: Bins::new(),
            regions: RegionTable::new(),
            streams: Streams::new(),
            config,
            memory,
        })
    }

    /// What is made of the caller's parts.
    fn parts(
        config: &BfcConfig,
        table: &'t mut [Chunk],
    ) -> Result<(Granule, Slab<'t, Chunk>), ConfigError> {
        let granule = config.validate()?;
        let table = Slab::new(table);
        if table.capacity() == 0 {
            return Err(ConfigError::Table);
        }
        Ok((granule, table))
    }

    /// Gives the lent table back; blocks not freed are forgotten. An allocator made over the same
    /// table refuses them, except where it has since given a block of the same place, size and
    /// handle.
    pub fn into_table(self) -> &'t mut [Chunk] {
        self.table.into_records()
    }

    /// The policies.
    pub const fn config(&self) -> &BfcConfig {
        &self.config
    }

    /// What its blocks carry.
    pub const fn id(&self) -> AllocatorId {
        AllocatorId(self.table.owner())
    }

    /// Gives it another number than its table's place. Before its first region.
    pub(crate) const fn set_id(&mut self, id: AllocatorId) {
        self.table.set_owner(id);
    }

    /// What sizes are multiples of.
    pub const fn granule(&self) -> Granule {
        self.granule
    }

    /// Counters now. O(1).
    pub fn stats(&self) -> Stats {
        let bytes = |granules: u64| granules * self.granule.bytes();
        let live_bytes = bytes(self.counters.live);
        Stats {
            allocations: self.counters.last_id - self.counters.cleared_id,
            live_bytes,
            peak_live_bytes: bytes(self.counters.peak()),
            largest_bytes: self.granule.bytes_of(self.counters.largest),
            requested_bytes: live_bytes - self.counters.slack_bytes,
            reserved_bytes: bytes(self.counters.reserved),
            peak_reserved_bytes: bytes(self.counters.peak_reserved),
            limit_bytes: self.limit_bytes,
        }
    }

    /// Starts counting anew, as [`Stats::clear`].
    pub fn clear_stats(&mut self) {
        self.counters.cleared_id = self.counters.last_id;
        self.counters.clear_peak();
        self.counters.peak_reserved = self.counters.reserved;
        self.counters.largest = 0;
    }

    /// Bytes that were requested for the block; `None` if it is not one of ours. O(1).
    pub fn requested_bytes(&self, block: &Block) -> Option<u64> {
        let link = self.link_of(block)?;
        Some(block.bytes() - u64::from(self.table.at(link).slack_bytes()))
    }

    /// The block's number among all allocations, from 1 up; `None` if it is not one of ours. O(1).
    pub fn allocation_id(&self, block: &Block) -> Option<u64> {
        self.link_of(block).map(|link| self.table.at(link).id())
    }

    /// Restores a block that was taken apart, if a used chunk with that handle starts there.
    ///
    /// The caller promises that no other [`Block`] for it exists; if one does, the second free of
    /// the two is refused or, once the place has been allocated again, frees the new owner's
    /// block: the bookkeeping stays consistent, the caller's program does not. O(1).
    ///
    /// # Errors
    /// [`FreeError::Unknown`] if there is no such chunk.
    pub fn block_from_raw(&self, raw: RawBlock) -> Result<Block, FreeError> {
        let link = Link(raw.handle.get());
        if !self.starts_at(link, raw.addr) {
            return Err(FreeError::Unknown);
        }
        Ok(self.block_of(link))
    }

    /// Tells that all work up to `event` on `stream` is done: memory that carries such a point is out of
    /// use. Events below what was reported before change nothing. O(1), except once every 2^30 events.
    ///
    /// Points are cleared when a search fails, not here.
    pub fn complete(&mut self, stream: StreamId, event: EventNumber) {
        let reach = self
            .streams
            .completed(stream)
            .saturating_add(EventNumber::WINDOW);
        if event.number() > reach {
            // No point lies further ahead than the window, so all of the stream's complete here.
            self.streams.advance(stream, EventNumber::new(reach));
            self.sweep();
            self.streams.advance(stream, event);
            self.streams.set_swept();
        } else {
            self.streams.advance(stream, event);
            if self.streams.must_sweep() {
                self.sweep();
            }
        }
    }

    /// The chunk behind a block, checked.
    #[inline]
    fn link_of(&self, block: &Block) -> Option<Link> {
        let link = Link(block.handle().get());
        let chunk = self.table.at(link);
        // The last three tell only blocks of a former owner of the same table.
        let ours = block.owner() == self.table.owner()
            && chunk.is_used()
            && self.table.knows(link)
            && self.granule.bytes_of(chunk.size) == block.bytes()
            && self.addr_of(link) == block.addr().get();
        ours.then_some(link)
    }

    /// Whether a used chunk of the present owner's with this link starts there.
    #[inline]
    fn starts_at(&self, link: Link, addr: Addr) -> bool {
        self.table.knows(link) && self.table.at(link).is_used() && self.addr_of(link) == addr.get()
    }

    /// The block that a used chunk is.
    #[inline]
    fn block_of(&self, link: Link) -> Block {
        Block::new(
            Addr::new(self.addr_of(link)),
            self.granule.bytes_of(self.table.at(link).size),
            ChunkHandle::from_link(link.0),
            self.table.owner(),
        )
    }

    /// Address of a chunk.
    #[inline]
    fn addr_of(&self, link: Link) -> u64 {
        addr_in(&self.table, &self.regions, self.granule, link)
    }
}

impl<M: Memory> core::fmt::Debug for Bfc<'_, M> {
    /// The counters; [`dump`](Bfc::dump) shows the rest.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Bfc")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// Address of a chunk, from the parts that know it.
#[inline]
fn addr_in(table: &Slab<'_, Chunk>, regions: &RegionTable, granule: Granule, link: Link) -> u64 {
    let chunk = table.at(link);
    // A chunk lies in its region, so this wraps only for records that are none, as a broken index
    // may name.
    regions
        .get(chunk.region())
        .base()
        .wrapping_add(granule.bytes_of(chunk.start))
}

static_assertions::assert_impl_all!(Bfc<'static>: Send);
const _: () = assert!(
    size_of::<Bfc<'static>>() <= 16 * 1024,
    "the guide promises (limits.md) that an allocator fits a small stack"
);
