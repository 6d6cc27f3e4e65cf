//! What a plan is served from: an allocator of blocks that can also give a block at one place.

use crate::bfc::paged::{PageDriver, PagedBfc};
use crate::bfc::{Bfc, ChunkInfo, ChunkState};
use crate::block::{Block, ChunkHandle, Grant, Request};
use crate::error::{AllocError, FreeError, Rejected};
use crate::units::{AddrRange, Granule};

/// An allocator below a plan. The plan's blocks lie in the allocator's own range, and so its idle
/// space serves what the plan does not know.
pub trait PlaceAllocator {
    /// A block anywhere.
    ///
    /// # Errors
    /// [`AllocError`]; nothing was given.
    fn alloc(&mut self, request: &Request) -> Result<Grant, AllocError>;

    /// The block at exactly this place; `near` is a chunk close to it.
    ///
    /// # Errors
    /// [`AllocError::PlaceTaken`] if some of it is in use.
    fn alloc_at(
        &mut self,
        range: AddrRange,
        near: Option<ChunkHandle>,
    ) -> Result<Block, AllocError>;

    /// Takes a block back.
    ///
    /// # Errors
    /// Gives it back if it is not one of this allocator's.
    fn free(&mut self, block: Block) -> Result<(), Rejected<FreeError>>;

    /// Bytes of memory that [`prepare`](Self::prepare) would have to ask for.
    fn missing_bytes(&mut self, range: AddrRange) -> u64;

    /// Makes sure that memory stands behind a range of a layout, as far as it is free, without taking
    /// it from elsewhere in the layout or holding more than `max_bytes`. Whether that succeeded.
    fn prepare(&mut self, range: AddrRange, layout: AddrRange, max_bytes: u64) -> bool;

    /// Calls `f` with every block in address order.
    fn for_each_block(&self, f: &mut dyn FnMut(ChunkHandle, AddrRange));

    /// The addresses blocks lie in.
    fn addresses(&self) -> AddrRange;

    /// What sizes are multiples of.
    fn granule(&self) -> Granule;

    /// What memory comes in, in bytes.
    fn page_bytes(&self) -> u64;

    /// Bytes live now, as granted.
    fn live_bytes(&self) -> u64;

    /// Bytes of memory held now.
    fn held_bytes(&self) -> u64;
}

fn used(f: &mut dyn FnMut(ChunkHandle, AddrRange)) -> impl FnMut(ChunkInfo) {
    |info| {
        if matches!(info.state, ChunkState::Used { .. }) {
            f(info.handle, info.range);
        }
    }
}

/// A [`Bfc`] that was given its one region as a whole.
#[derive(Debug)]
pub struct InRange<'a, 't> {
    /// The allocator.
    pub bfc: &'a mut Bfc<'t>,
    /// Its region.
    pub addresses: AddrRange,
    /// How much of it was touched so far, from its start.
    pub held_bytes: u64,
}

impl PlaceAllocator for InRange<'_, '_> {
    fn alloc(&mut self, request: &Request) -> Result<Grant, AllocError> {
        self.bfc.alloc(request)
    }

    fn alloc_at(
        &mut self,
        range: AddrRange,
        near: Option<ChunkHandle>,
    ) -> Result<Block, AllocError> {
        self.bfc.alloc_at_near(range, near)
    }

    fn free(&mut self, block: Block) -> Result<(), Rejected<FreeError>> {
        self.bfc.free(block)
    }

    fn missing_bytes(&mut self, range: AddrRange) -> u64 {
        range.bytes().saturating_sub(self.held_bytes())
    }

    fn prepare(&mut self, _: AddrRange, _: AddrRange, _: u64) -> bool {
        true
    }

    fn for_each_block(&self, f: &mut dyn FnMut(ChunkHandle, AddrRange)) {
        self.bfc.for_each_chunk(used(f));
    }

    fn addresses(&self) -> AddrRange {
        self.addresses
    }

    fn granule(&self) -> Granule {
        self.bfc.granule()
    }

    fn page_bytes(&self) -> u64 {
        self.granule().bytes()
    }

    fn live_bytes(&self) -> u64 {
        self.bfc.stats().live_bytes
    }

    fn held_bytes(&self) -> u64 {
        self.held_bytes
    }
}

/// A [`PagedBfc`] and its driver.
#[derive(Debug)]
pub struct OverPages<'a, 't, D> {
    /// The allocator.
    pub paged: &'a mut PagedBfc<'t>,
    /// What maps its pages.
    pub driver: &'a D,
}

impl<D: PageDriver> PlaceAllocator for OverPages<'_, '_, D> {
    fn alloc(&mut self, request: &Request) -> Result<Grant, AllocError> {
        self.paged.alloc_over(self.driver, request)
    }

    fn alloc_at(
        &mut self,
        range: AddrRange,
        near: Option<ChunkHandle>,
    ) -> Result<Block, AllocError> {
        self.paged.alloc_at_over(self.driver, range, near)
    }

    fn free(&mut self, block: Block) -> Result<(), Rejected<FreeError>> {
        self.paged.free(block)
    }

    fn missing_bytes(&mut self, range: AddrRange) -> u64 {
        self.paged.missing_bytes(range, None)
    }

    fn prepare(&mut self, range: AddrRange, layout: AddrRange, max_bytes: u64) -> bool {
        self.paged
            .back_over(self.driver, range, layout, max_bytes, None)
    }

    fn for_each_block(&self, f: &mut dyn FnMut(ChunkHandle, AddrRange)) {
        self.paged.for_each_chunk(used(f));
    }

    fn addresses(&self) -> AddrRange {
        self.paged.paged_config().addresses
    }

    fn granule(&self) -> Granule {
        self.paged.granule()
    }

    fn page_bytes(&self) -> u64 {
        self.paged.paged_config().page_bytes
    }

    fn live_bytes(&self) -> u64 {
        self.paged.stats().live_bytes
    }

    fn held_bytes(&self) -> u64 {
        self.paged.stats().reserved_bytes
    }
}
