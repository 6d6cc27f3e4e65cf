//! The allocator below a plan, which can also allocate a block at a given place.

use crate::best_fit::BestFit;
use crate::block::{Block, BlockAllocator, ChunkHandle, Grant, Request};
use crate::engine::{ChunkInfo, ChunkState};
use crate::error::{AllocError, FreeError, Rejected};
use crate::pages::{PageDriver, PagePool};
use crate::regions::RegionPool;
use crate::shared::Shared;
use crate::sync::Wait;
use crate::units::{AddrRange, Granule};

/// An allocator below a plan. The plan's blocks lie in the allocator's own range, so space that the plan does not use
/// serves other blocks.
pub trait PlaceAllocator {
    /// The reason why no block is allocated.
    type Error;

    /// Allocates a block anywhere.
    ///
    /// # Errors
    /// The errors of the allocator; in that case no block is allocated.
    fn alloc(&mut self, request: &Request) -> Result<Grant, Self::Error>;

    /// Allocates the block at exactly this place; `near` is a chunk close to it.
    ///
    /// # Errors
    /// [`AllocError::PlaceTaken`] if part of the place is in use.
    fn alloc_at(
        &mut self,
        range: AddrRange,
        near: Option<ChunkHandle>,
    ) -> Result<Block, AllocError>;

    /// Frees a block.
    ///
    /// # Errors
    /// Returns the block if it is not from this allocator.
    fn free(&mut self, block: Block) -> Result<(), Rejected<FreeError>>;

    /// Returns the bytes of memory that [`prepare`](Self::prepare) would have to request.
    fn missing_bytes(&mut self, range: AddrRange) -> u64;

    /// Backs the free parts of `range` with memory. The range is part of `layout`; no memory is taken from elsewhere in
    /// the layout, and at most `max_bytes` are held afterwards. Returns whether that succeeded.
    fn prepare(&mut self, range: AddrRange, layout: AddrRange, max_bytes: u64) -> bool;

    /// Calls `f` with every block in address order.
    fn for_each_block(&self, f: &mut dyn FnMut(ChunkHandle, AddrRange));

    /// Returns the addresses of all blocks.
    fn addresses(&self) -> AddrRange;

    /// Returns the unit of sizes.
    fn granule(&self) -> Granule;

    /// Returns the unit of memory, in bytes.
    fn page_bytes(&self) -> u64;

    /// Returns the bytes live now, as granted.
    fn live_bytes(&self) -> u64;

    /// Returns the bytes of memory held now.
    fn held_bytes(&self) -> u64;
}

fn used(f: &mut dyn FnMut(ChunkHandle, AddrRange)) -> impl FnMut(ChunkInfo) {
    |info| {
        if matches!(info.state, ChunkState::Used { .. }) {
            f(info.handle, info.range);
        }
    }
}

/// A [`RegionPool`] whose one region was added as a whole.
#[derive(Debug)]
pub struct InRange<'a, 't> {
    /// The allocator.
    pub pool: &'a mut RegionPool<'t>,
    /// Its region.
    pub addresses: AddrRange,
    /// Number of bytes touched so far, from the start of the region.
    pub held_bytes: u64,
}

impl PlaceAllocator for InRange<'_, '_> {
    type Error = AllocError;

    fn alloc(&mut self, request: &Request) -> Result<Grant, AllocError> {
        self.pool.alloc(request)
    }

    fn alloc_at(
        &mut self,
        range: AddrRange,
        near: Option<ChunkHandle>,
    ) -> Result<Block, AllocError> {
        self.pool.alloc_at(range, near, None)
    }

    fn free(&mut self, block: Block) -> Result<(), Rejected<FreeError>> {
        self.pool.free(block)
    }

    fn missing_bytes(&mut self, range: AddrRange) -> u64 {
        range.bytes().saturating_sub(self.held_bytes())
    }

    fn prepare(&mut self, _: AddrRange, _: AddrRange, _: u64) -> bool {
        true
    }

    fn for_each_block(&self, f: &mut dyn FnMut(ChunkHandle, AddrRange)) {
        self.pool.for_each_chunk(used(f));
    }

    fn addresses(&self) -> AddrRange {
        self.addresses
    }

    fn granule(&self) -> Granule {
        self.pool.granule()
    }

    fn page_bytes(&self) -> u64 {
        self.granule().bytes()
    }

    fn live_bytes(&self) -> u64 {
        self.pool.stats().live_bytes
    }

    fn held_bytes(&self) -> u64 {
        self.held_bytes
    }
}

impl<D: PageDriver, W: Wait> PlaceAllocator for &Shared<PagePool<'_>, D, W> {
    type Error = AllocError;

    fn alloc(&mut self, request: &Request) -> Result<Grant, AllocError> {
        BlockAllocator::alloc(*self, request)
    }

    fn alloc_at(
        &mut self,
        range: AddrRange,
        near: Option<ChunkHandle>,
    ) -> Result<Block, AllocError> {
        Shared::alloc_at(self, range, near, None)
    }

    fn free(&mut self, block: Block) -> Result<(), Rejected<FreeError>> {
        self.free_at(block, None)
    }

    fn missing_bytes(&mut self, range: AddrRange) -> u64 {
        self.with(|pool| pool.missing_bytes(range, None))
    }

    fn prepare(&mut self, range: AddrRange, layout: AddrRange, max_bytes: u64) -> bool {
        self.back(range, layout, max_bytes, None)
    }

    fn for_each_block(&self, f: &mut dyn FnMut(ChunkHandle, AddrRange)) {
        self.with(|pool| pool.for_each_chunk(used(f)));
    }

    fn addresses(&self) -> AddrRange {
        self.with(|pool| pool.config().addresses)
    }

    fn granule(&self) -> Granule {
        self.with(|pool| pool.granule())
    }

    fn page_bytes(&self) -> u64 {
        self.with(|pool| pool.config().page_bytes)
    }

    fn live_bytes(&self) -> u64 {
        self.stats().live_bytes
    }

    fn held_bytes(&self) -> u64 {
        self.stats().reserved_bytes
    }
}
