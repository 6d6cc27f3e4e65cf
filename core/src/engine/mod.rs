//! The engine of best fit with coalescing: regions are divided into chunks, and free chunks are found by size in
//! constant time.
//!
//! [`Chunks`] finds, cuts, frees, joins and resizes. [`regions`](crate::RegionPool) and [`pages`](crate::pages) each
//! own an engine, and decide when memory arrives and leaves, and how much. Only the engine edits its chunks and
//! regions, so the invariants hold between any two calls. The engine does not touch the memory that it manages.
//!
//! The idea and most words are TensorFlow's (`bfc_allocator`). There are four differences: a block is always split off
//! exactly; one range grows at its end, instead of regions that double; the chunk at this end is used last; and free
//! chunks are in fine size classes under a bitmap, instead of in ordered sets.
//!
//! # Files
//! `chunk` the record · `class`, `bins` free chunks by size · `region` the ranges held · `streams` stream order ·
//! `search` which chunk serves · `cut` cutting a block out of a chunk · `place` blocks at given places · `free` freeing
//! and joining · `resize` resizing in place · `extend` memory that arrives · `leaving` memory that is being released ·
//! `filling` chunks of a plan · `reserved` addresses of one owner · `limit` held bytes and the limit · `in_place` an
//! engine constructed in place · `report`, `dump` for people · `check` the invariants.
//!
//! # Invariants ([`BestFit::check_invariants`](crate::BestFit::check_invariants) checks them all)
//! * BFC1 the chunks of a region, from `first` along `next`, tile it from granule 0 to its end. `prev` is the reverse
//!   of `next`, and `last` is the end of the chain.
//! * BFC2 of two free neighbours, at least one carries a point. While only one stream was ever named and no fresh
//!   memory was left apart, no two free chunks are neighbours. (A stored point may be completed but not yet cleared.
//!   Before any growth, a sweep clears such points and joins chunks.)
//! * BFC3 a free chunk is either the wilderness or in exactly one bin, which is that of its class (BIN1, BIN2).
//! * BFC4 the wilderness is the free chunk at the end of the newest region, if there is one. It is used last, so that
//!   the used part of the range ends as low as possible (dlmalloc).
//! * BFC5 every record is the sink, a chunk of a region, or vacant (SLAB1 to SLAB3), so no record is lost.
//! * BFC6 the counters equal the sums over all chunks.
//! * BFC7 `reserved + in flight <= limit`, unless the limit was lowered below the held bytes.
//! * BFC8 the IDs of used chunks are distinct and at most the last one assigned. The slack is smaller than the chunk.
//! * BFC9 regions do not overlap, and are listed in address order (REGION1, REGION2).
//! * BFC10 the list of reserved chunks holds each of them once, and no other chunk. The first chunk of a reservation is
//!   marked, and is never joined to the one before it; no free chunk is marked.
//!
//! # Cost
//! `alloc` and `free` are O(1). The table takes 32 bytes per chunk, and no memory per byte of the pool.

mod bins;
mod check;
mod chunk;
mod class;
mod cut;
mod dump;
mod extend;
mod filling;
mod free;
#[cfg(not(larder_loom))]
#[allow(unsafe_code, reason = "fields are written in place: CONTRIBUTING.md")]
mod in_place;
mod leaving;
mod limit;
mod place;
mod region;
mod report;
mod reserved;
mod resize;
mod search;
mod streams;

pub use check::Violation;
pub(crate) use check::check;
pub use chunk::Chunk;
pub(crate) use chunk::{Link, State};
pub(crate) use dump::Dump;
pub(crate) use free::Stored;
pub use leaving::ReleaseTicket;
pub use region::{MAX_REGIONS, RegionId};
pub use report::{BinSummary, ChunkInfo, ChunkState, RegionInfo, Report};
pub(crate) use reserved::{Reservation, ReservedPlace};
pub(crate) use search::{Candidate, LOOKS, LOOKS_BEFORE_GROWTH, Need};

use crate::block::{AllocatorId, Block, ChunkHandle, RawBlock};
use crate::error::{ConfigError, FreeError};
use crate::stats::Stats;
use crate::stream::{EventNumber, StreamId};
use crate::table::slab::Slab;
use crate::units::{Addr, AddrRange, Granule};
use bins::Bins;
use region::RegionTable;
use streams::Streams;

/// Running totals. Sizes are in granules, except where the name says bytes.
#[derive(Clone, Copy, Default)]
struct Counters {
    /// ID of the newest allocation.
    last_id: u64,
    /// `last_id` when the statistics were last cleared.
    cleared_id: u64,
    live: u64,
    /// Peak of `live` since the statistics were cleared.
    peak_live: u64,
    largest: u32,
    /// Granted minus requested bytes of all used chunks.
    slack_bytes: u64,
    /// Granules held.
    reserved: u64,
    peak_reserved: u64,
    /// Granules of `reserved` that are being released.
    leaving: u64,
    /// Number of the newest release.
    releases: u64,
}

/// The chunks of a pool, free and in use, with their tables and counters, for one thread at a time.
///
/// Each [`RegionPool`](crate::RegionPool) and [`PagePool`](crate::pages::PagePool) owns one, and gives access to it for
/// queries through [`BestFit::chunks`](crate::BestFit::chunks).
pub struct Chunks<'t> {
    granule: Granule,
    limit_bytes: u64,
    /// Bytes held or under way when the limit was last set. BFC7 allows this many.
    excused_bytes: u64,
    /// Bytes requested but not yet held.
    in_flight_bytes: u64,
    /// Whether more bytes are held than the limit allows.
    is_over_limit: bool,
    counters: Counters,
    /// The region that was added or enlarged last. Its last chunk, if free, is the wilderness.
    newest_region: Option<RegionId>,
    wilderness: Link,
    /// The newest reserved chunk (BFC10).
    reserved: Link,
    /// Whether, since the last sweep, fresh memory was left apart from a chunk that a stream uses (BFC2).
    apart: bool,
    table: Slab<'t, Chunk>,
    bins: Bins,
    regions: RegionTable,
    streams: Streams,
}

impl<'t> Chunks<'t> {
    /// Creates an engine without chunks over a lent table.
    pub(crate) fn new(
        granule: Granule,
        limit_bytes: u64,
        table: &'t mut [Chunk],
    ) -> Result<Self, ConfigError> {
        Ok(Self {
            granule,
            limit_bytes,
            excused_bytes: 0,
            in_flight_bytes: 0,
            is_over_limit: false,
            counters: Counters::default(),
            newest_region: None,
            wilderness: Link::NIL,
            reserved: Link::NIL,
            apart: false,
            table: Self::records(table)?,
            bins: Bins::new(),
            regions: RegionTable::new(),
            streams: Streams::new(),
        })
    }

    /// Returns the records of the lent table, or an error if it has none.
    fn records(table: &'t mut [Chunk]) -> Result<Slab<'t, Chunk>, ConfigError> {
        let table = Slab::new(table);
        match table.capacity() {
            0 => Err(ConfigError::Table),
            _ => Ok(table),
        }
    }

    /// Returns the lent table.
    pub(crate) fn into_table(self) -> &'t mut [Chunk] {
        self.table.into_records()
    }

    /// Moves the records to another table if it has room for more. O(records).
    pub(crate) fn move_table(&mut self, table: &'t mut [Chunk]) {
        self.table.move_to(table);
    }

    /// Returns the ID that blocks carry.
    pub const fn id(&self) -> AllocatorId {
        AllocatorId(self.table.owner())
    }

    /// Sets an ID other than the table's place. Must be called before the first region is added.
    pub(crate) const fn set_id(&mut self, id: AllocatorId) {
        self.table.set_owner(id);
    }

    /// Returns the unit of which all sizes are multiples.
    pub const fn granule(&self) -> Granule {
        self.granule
    }

    /// Returns the record of a chunk. For nil, returns a record that is not free and has no size.
    #[inline]
    pub(crate) fn chunk(&self, link: Link) -> &Chunk {
        self.table.at(link)
    }

    /// Returns the number of records that can still become chunks.
    pub(crate) fn vacant_records(&self) -> u32 {
        self.table.available()
    }

    /// Returns the number of regions.
    pub(crate) fn region_count(&self) -> usize {
        self.regions.len()
    }

    /// Returns the region that was added or enlarged last.
    pub(crate) const fn newest_region(&self) -> Option<RegionId> {
        self.newest_region
    }

    /// Returns the last chunk of the newest region, free or not.
    pub(crate) fn newest_end(&self) -> Link {
        let last = |id| self.regions.get(id).last;
        self.newest_region.map_or(Link::NIL, last)
    }

    /// Returns whether `range` shares a byte with any region. O(log regions).
    pub(crate) fn overlaps(&self, range: AddrRange) -> bool {
        self.regions.overlaps(range, self.granule)
    }

    /// Returns the counters. O(1).
    pub fn stats(&self) -> Stats {
        let bytes = |granules: u64| granules * self.granule.bytes();
        let live_bytes = bytes(self.counters.live);
        Stats {
            allocations: self.counters.last_id - self.counters.cleared_id,
            live_bytes,
            peak_live_bytes: bytes(self.counters.peak_live),
            largest_bytes: self.granule.bytes_of(self.counters.largest),
            requested_bytes: live_bytes - self.counters.slack_bytes,
            reserved_bytes: bytes(self.counters.reserved),
            peak_reserved_bytes: bytes(self.counters.peak_reserved),
            limit_bytes: self.limit_bytes,
        }
    }

    /// Resets the counters, as [`Stats::clear`] does.
    pub(crate) fn clear_stats(&mut self) {
        self.counters.cleared_id = self.counters.last_id;
        self.counters.peak_live = self.counters.live;
        self.counters.peak_reserved = self.counters.reserved;
        self.counters.largest = 0;
    }

    /// Returns the bytes requested for the block, or `None` if the block does not belong to this pool. O(1).
    pub fn requested_bytes(&self, block: &Block) -> Option<u64> {
        let link = self.link_of(block)?;
        Some(block.bytes() - u64::from(self.table.at(link).slack_bytes()))
    }

    /// Returns the block's number among all allocations, from 1 up, or `None` if the block does not belong to this
    /// pool. O(1).
    pub fn allocation_id(&self, block: &Block) -> Option<u64> {
        self.link_of(block).map(|link| self.table.at(link).id())
    }

    /// Restores a block from its parts, if a used chunk with its handle starts at its address. O(1).
    ///
    /// The caller promises that no other [`Block`] exists for the chunk. If one does, the second free is refused, or it
    /// frees the new owner's block if the place has been allocated again. The bookkeeping stays consistent, but the
    /// caller's program does not.
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

    /// Reports that all work on `stream` up to `event` is done, so memory with a point up to `event` is no longer in
    /// use. An event before one that was already reported changes nothing. O(1), except once every 2^30 events.
    ///
    /// Points are not cleared here, but when a search fails.
    pub(crate) fn complete(&mut self, stream: StreamId, event: EventNumber) {
        let reach = self
            .streams
            .completed(stream)
            .saturating_add(EventNumber::WINDOW);
        if event.number() > reach {
            // No point lies further ahead than the window, so this completes all points of the stream.
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

    /// Returns the chunk of a block, if the block belongs to this pool.
    #[inline]
    pub(crate) fn link_of(&self, block: &Block) -> Option<Link> {
        let link = Link(block.handle().get());
        let chunk = self.table.at(link);
        // The last three conditions fail only for blocks of an earlier owner of the same table.
        let ours = block.owner() == self.table.owner()
            && chunk.is_used()
            && self.table.knows(link)
            && self.granule.bytes_of(chunk.size) == block.bytes()
            && self.addr_of(link) == block.addr().get();
        ours.then_some(link)
    }

    /// Returns whether a used chunk of the current owner, with this link, starts at `addr`.
    #[inline]
    fn starts_at(&self, link: Link, addr: Addr) -> bool {
        self.table.knows(link) && self.table.at(link).is_used() && self.addr_of(link) == addr.get()
    }

    /// Returns the block of a used chunk.
    #[inline]
    fn block_of(&self, link: Link) -> Block {
        Block::new(
            Addr::new(self.addr_of(link)),
            self.bytes_of(link),
            ChunkHandle::from_link(link.0),
            self.table.owner(),
        )
    }

    /// Returns the size of a chunk in bytes.
    #[inline]
    pub(crate) fn bytes_of(&self, link: Link) -> u64 {
        self.granule.bytes_of(self.table.at(link).size)
    }

    /// Returns the address of a chunk.
    #[inline]
    pub(crate) fn addr_of(&self, link: Link) -> u64 {
        let chunk = self.table.at(link);
        // A chunk lies in its region, so the sum wraps only for a record that is not a chunk, which an invalid link may
        // name.
        let region = self.regions.get(chunk.region());
        region.base.wrapping_add(self.granule.bytes_of(chunk.start))
    }
}

impl core::fmt::Debug for Chunks<'_> {
    /// Formats the counters; [`BestFit::dump`](crate::BestFit::dump) shows the rest.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Chunks")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

static_assertions::assert_impl_all!(Chunks<'static>: Send);
const _: () = assert!(
    size_of::<Chunks<'static>>() <= 15 * 1024,
    "the guide promises (limits.md) that an allocator fits a small stack"
);
