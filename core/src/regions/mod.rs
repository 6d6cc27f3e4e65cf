//! Best fit over ranges of a [`SubAllocator`](crate::SubAllocator), which are released as a whole or cut at an end.
//!
//! # Files
//! `config` policies · `grow`, `shrink` tickets · `grow_or_collect` the states of an allocation · `grow_behind` a
//! block that grows with its region · `carry_out` the loops over a sub-allocator · `fixed_range` the simplest
//! sub-allocator · `in_place` a pool constructed in place.

mod carry_out;
mod config;
mod fixed_range;
mod grow;
mod grow_behind;
mod grow_or_collect;
#[cfg(not(larder_loom))]
#[allow(unsafe_code, reason = "fields are written in place: CONTRIBUTING.md")]
mod in_place;
mod shrink;

pub use config::{Growth, RegionConfig};
pub use fixed_range::FixedRange;
pub use grow::GrowTicket;
pub use grow_or_collect::RegionAttempt;

use crate::best_fit::{BestFit, Progress};
use crate::block::{AllocatorId, Block, ChunkHandle, Grant, Request, Resize};
use crate::engine::{Candidate, Chunk, ChunkInfo, Chunks, Need, ReleaseTicket, Violation, check};
use crate::error::{AllocError, Cause, ConfigError, FreeError, Rejected, ResizeError};
use crate::stats::PoolStats;
use crate::stream::{EventNumber, StreamId, StreamPoint};
use crate::units::AddrRange;

/// One call to a sub-allocator.
#[derive(Debug)]
pub enum RegionPlan {
    /// Request memory, then call [`RegionPool::commit`] or [`RegionPool::growth_refused`].
    Grow(GrowTicket),
    /// Release memory, then call [`RegionPool::released`] or [`RegionPool::release_refused`].
    Release(ReleaseTicket),
}

/// Best fit over ranges of a [`SubAllocator`](crate::SubAllocator), or over regions added by hand. A pool is for one
/// thread at a time; [`Shared`](crate::Shared) shares it between threads.
///
/// It has the methods of [`BestFit`], and methods for the tickets with which ranges are requested and released.
#[derive(Debug)]
pub struct RegionPool<'t> {
    chunks: Chunks<'t>,
    config: RegionConfig,
    /// Number of growth tickets that were issued and have not ended.
    tickets: u32,
}

impl<'t> RegionPool<'t> {
    /// Creates a pool without memory, over a lent table of chunk records.
    ///
    /// The table bounds the number of chunks: one record is reserved, and each block and each free chunk between blocks
    /// needs one. This function never panics.
    ///
    /// # Errors
    /// [`ConfigError`] if the configuration contradicts itself or the table has fewer than two records.
    pub fn new(config: RegionConfig, table: &'t mut [Chunk]) -> Result<Self, ConfigError> {
        Ok(Self {
            chunks: Chunks::new(config.validate()?, config.limit_bytes, table)?,
            config,
            tickets: 0,
        })
    }

    /// Returns the lent table; blocks that were not freed are forgotten. A pool created over the same table refuses
    /// such blocks, except where it has since allocated a block with the same place, size and handle.
    pub fn into_table(self) -> &'t mut [Chunk] {
        self.chunks.into_table()
    }

    /// Moves the records to another table if it has room for more. Blocks and the pool's id stay. O(records).
    pub(crate) fn move_table(&mut self, table: &'t mut [Chunk]) {
        self.chunks.move_table(table);
    }

    /// Returns the policies.
    pub const fn config(&self) -> &RegionConfig {
        &self.config
    }

    /// Sets an id other than the table's place. This must be called before the first region is added.
    pub(crate) const fn set_id(&mut self, id: AllocatorId) {
        self.chunks.set_id(id);
    }

    /// Searches by FIT1 to FIT4, among all chunks.
    fn search_fully(&mut self, need: Need, request: &Request) -> Option<Candidate> {
        self.chunks
            .search_fully(need, request, u32::MAX, Chunks::sweep)
    }

    fn out_of_memory(&self, need: Need, request: &Request, growth: Cause) -> AllocError {
        self.chunks
            .out_of_memory(need, request, growth, &self.report())
    }

    /// Tries the last resorts before it returns an error: joins free chunks that streams kept apart, and examines all
    /// chunks.
    #[cold]
    fn alloc_slowly(&mut self, need: Need, request: &Request) -> Result<Grant, AllocError> {
        match self.search_fully(need, request) {
            Some(found) => self.chunks.take(found, need, request),
            None => {
                let growth = match self.config.growth {
                    Growth::Fixed => Cause::Fixed,
                    Growth::Range { .. } => Cause::Held,
                };
                Err(self.out_of_memory(need, request, growth))
            }
        }
    }
}

impl BestFit for RegionPool<'_> {
    type Attempt = RegionAttempt;
    type Plan = RegionPlan;

    #[inline]
    fn alloc(&mut self, request: &Request) -> Result<Grant, AllocError> {
        let need = self.chunks.need(request)?;
        match self.chunks.search_now(need, request) {
            Some(found) => self.chunks.take(found, need, request),
            None => self.alloc_slowly(need, request),
        }
    }

    // Inlined, because otherwise the block would be returned through memory, and read back before the write has
    // completed.
    #[inline(always)]
    fn try_alloc_now(&mut self, request: &Request) -> Option<Grant> {
        let need = self.chunks.need(request).ok()?;
        let found = self.chunks.search_now(need, request)?;
        self.chunks.take(found, need, request).ok()
    }

    #[inline(always)]
    fn alloc_at(
        &mut self,
        range: AddrRange,
        near: Option<ChunkHandle>,
        stream: Option<StreamId>,
    ) -> Result<Block, AllocError> {
        let request = Request::new(range.bytes());
        let need = self.chunks.need_of_place(&request, stream)?;
        if self.chunks.exceeds_limit(need) {
            return Err(self.out_of_memory(need, &request, Cause::Limit));
        }
        let found = self.chunks.find_place(range, need.size, near, stream);
        self.chunks.take_place(found, need, &request)
    }

    fn advance(&mut self, attempt: &mut RegionAttempt) -> Progress<RegionPlan> {
        self.advance_attempt(attempt)
    }

    #[inline]
    fn free(&mut self, block: Block) -> Result<(), Rejected<FreeError>> {
        self.chunks.free(block)
    }

    #[inline(always)]
    fn free_after(&mut self, block: Block, point: StreamPoint) -> Result<(), Rejected<FreeError>> {
        self.chunks.free_after(block, point)
    }

    fn complete(&mut self, stream: StreamId, event: EventNumber) {
        self.chunks.complete(stream, event);
    }

    fn resize(
        &mut self,
        block: Block,
        to: impl Into<Resize>,
    ) -> Result<Block, Rejected<ResizeError>> {
        self.chunks.resize(block, &to.into())
    }

    fn set_limit(&mut self, limit_bytes: u64) -> u64 {
        self.forget_refusals();
        self.chunks.set_limit(limit_bytes)
    }

    fn clear_stats(&mut self) {
        self.chunks.clear_stats();
    }

    fn pool_stats(&mut self) -> PoolStats {
        self.stats_of_regions()
    }

    fn for_each_chunk(&self, f: impl FnMut(ChunkInfo)) {
        self.chunks.for_each_chunk(f);
    }

    fn check_invariants(&self) -> Result<(), Violation> {
        let bytes = self.chunks.check_invariants()?;
        check(self.chunks.reserved_bytes() == bytes, "BFC6", 0u32)
    }

    fn chunks(&self) -> &Chunks<'_> {
        &self.chunks
    }
}
