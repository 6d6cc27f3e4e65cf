//! [`BestFit`]: what a pool of regions and a pool of pages have in common.

use core::fmt;

use crate::block::{AllocatorId, Block, ChunkHandle, Grant, RawBlock, Request, Resize};
use crate::engine::{BinSummary, ChunkInfo, Chunks, Dump, RegionInfo, Report, Violation};
use crate::error::{AllocError, FreeError, Rejected, ResizeError};
use crate::stats::{PoolStats, Stats};
use crate::stream::{EventNumber, StreamId, StreamPoint};
use crate::units::{Addr, AddrRange, Granule};

/// What an allocation comes to.
#[derive(Debug)]
#[must_use]
pub enum Progress<P> {
    /// Done: the block.
    Ready(Grant),
    /// Calls are to be made, those of the plan; then [`BestFit::advance`] again.
    Plan(P),
    /// Done: there is no memory.
    Failed(AllocError),
}

/// Best fit with coalescing over numbers, for one thread at a time: [`RegionPool`](crate::RegionPool) over ranges
/// of a sub-allocator, [`PagePool`](crate::pages::PagePool) over pages that a driver maps.
///
/// It performs no I/O and touches none of the memory it manages. An allocation that nothing held serves
/// is a loop: [`advance`](Self::advance) gives a plan of calls, whoever drives the pool makes them, and
/// `advance` goes on. [`Shared`](crate::Shared) does that behind a lock, which it lets go for the calls.
///
/// ```
/// use larder_core::{Addr, AddrRange, BestFit, Chunk, RegionConfig, RegionPool, Request};
/// let mut table = [Chunk::VACANT; 64];
/// let mut pool = RegionPool::new(RegionConfig::fixed(), &mut table)?;
/// pool.add_region(AddrRange::new(Addr::new(0x10000), 0x8000).unwrap())?;
/// let block = pool.alloc(&Request::new(1000))?.block;
/// assert_eq!((block.addr(), block.bytes()), (Addr::new(0x10000), 1024));
/// pool.free(block)?;
/// assert_eq!(pool.stats().live_bytes, 0);
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
pub trait BestFit: Sized {
    /// How far one allocation has come. Belongs to the thread that allocates.
    type Attempt: From<Request>;
    /// Calls to make, and leave to make them.
    type Plan;

    /// Gives memory that is held, or says why not; never asks for more.
    ///
    /// O(1) while no other stream has chunks with a point and the alignment is at most the granule;
    /// otherwise at most one look at four chunks of each size class, and before failing one at all free
    /// chunks.
    ///
    /// # Errors
    /// [`AllocError`]; no block has been given then, but free chunks may have been joined. The
    /// cause of an [`OutOfMemory`](crate::OutOfMemory) is [`Cause::Held`](crate::Cause::Held) or
    /// [`Cause::Fixed`](crate::Cause::Fixed) unless the limit or the free memory itself is the matter.
    fn alloc(&mut self, request: &Request) -> Result<Grant, AllocError>;

    /// Gives the block that FIT1 and FIT2 find, as [`alloc`](Self::alloc), without looking any further
    /// and without reasons. O(1).
    fn try_alloc_now(&mut self, request: &Request) -> Option<Grant>;

    /// Gives the block at exactly this place, `range` rounded up to granules, from memory that is held.
    /// For plans, which lay out blocks ahead of time.
    ///
    /// The place is looked for from the chunk `near`, which may have gone meanwhile. All of it must be
    /// free; for no stream, no queued work may use it, and for a stream its own may, since the stream
    /// runs in order. O(chunks between the two + chunks under the range), after a sweep if there is no
    /// stream.
    ///
    /// # Errors
    /// [`AllocError::PlaceTaken`] if some of the place does not serve or it does not start on a granule;
    /// [`AllocError::OutOfMemory`] if a lowered limit leaves no room; [`AllocError::TooLarge`];
    /// [`AllocError::TableFull`].
    fn alloc_at(
        &mut self,
        range: AddrRange,
        near: Option<ChunkHandle>,
        stream: Option<StreamId>,
    ) -> Result<Block, AllocError>;

    /// Goes on with an allocation until it is done or needs calls. Cost as [`alloc`](Self::alloc);
    /// O(chunks) when memory is short.
    fn advance(&mut self, attempt: &mut Self::Attempt) -> Progress<Self::Plan>;

    /// Takes a block back that nothing uses any more. O(1) and one step for each free neighbour
    /// that points kept apart and no longer do: amortised over the frees that left them.
    ///
    /// # Errors
    /// Gives the block back if it is not one of ours; nothing has changed then.
    fn free(&mut self, block: Block) -> Result<(), Rejected<FreeError>>;

    /// Takes a block back that work queued on `point.stream` may use until `point.event`. Cost as
    /// [`free`](Self::free).
    ///
    /// # Errors
    /// Gives the block back if it is not one of ours, or the event lies more than
    /// [`EventNumber::WINDOW`] ahead of what the stream has completed; nothing has changed then.
    fn free_after(&mut self, block: Block, point: StreamPoint) -> Result<(), Rejected<FreeError>>;

    /// Tells that all work up to `event` on `stream` is done: memory that carries such a point is out of
    /// use. Events below what was reported before change nothing. O(1), except once every 2^30 events.
    ///
    /// Points are cleared when a search fails, not here.
    fn complete(&mut self, stream: StreamId, event: EventNumber);

    /// Gives the block another size without moving it, from the memory held. The block that comes
    /// back replaces the one given; it starts at the same address and has the same handle and
    /// number.
    ///
    /// O(1), and one step for each free chunk behind the block that it grows into.
    ///
    /// ```
    /// use larder_core::{Addr, AddrRange, BestFit, Chunk, RegionConfig, RegionPool, Request, Resize};
    /// let mut table = [Chunk::VACANT; 8];
    /// let mut pool = RegionPool::new(RegionConfig::fixed(), &mut table)?;
    /// pool.add_region(AddrRange::new(Addr::new(0x10000), 0x1000).unwrap())?;
    /// let block = pool.alloc(&Request::new(1000))?.block;
    /// let block = pool.resize(block, 0x1000)?;
    /// assert_eq!((block.addr(), block.bytes()), (Addr::new(0x10000), 0x1000));
    /// let block = pool.resize(block, Resize::to(100))?;
    /// assert_eq!(pool.stats().live_bytes, 256);
    /// # pool.free(block)?;
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Gives the block back, and nothing has changed then; see [`ResizeError`].
    fn resize(
        &mut self,
        block: Block,
        to: impl Into<Resize>,
    ) -> Result<Block, Rejected<ResizeError>>;

    /// Sets the limit. From this call on nothing is asked for above it, and while more is held, no block
    /// is given that would bring the live bytes above it. O(regions).
    ///
    /// Returns the bytes held above it, growth under way included; 0 means that the limit is met.
    fn set_limit(&mut self, limit_bytes: u64) -> u64;

    /// Starts counting anew, as [`Stats::clear`].
    fn clear_stats(&mut self);

    /// How far the limit could be lowered now: what is held, and what of it cannot go back because a
    /// block, queued work or a pin uses it. Of regions that means whole ones, and units at the free end
    /// of the newest; of pages, handles. O(chunks).
    fn pool_stats(&mut self) -> PoolStats;

    /// Calls `f` with every chunk, in address order; with a free one that has memory behind some of its
    /// pages only, a piece at a time. O(chunks).
    fn for_each_chunk(&self, f: impl FnMut(ChunkInfo));

    /// Walks every numbered invariant. O(chunks).
    ///
    /// # Errors
    /// The first one found broken, which is a defect of this crate.
    fn check_invariants(&self) -> Result<(), Violation>;

    /// The engine.
    #[doc(hidden)]
    fn chunks(&self) -> &Chunks<'_>;

    /// What its blocks carry.
    fn id(&self) -> AllocatorId {
        self.chunks().id()
    }

    /// What sizes are multiples of.
    fn granule(&self) -> Granule {
        self.chunks().granule
    }

    /// Counters now. O(1).
    fn stats(&self) -> Stats {
        self.chunks().stats()
    }

    /// Bytes held above the limit, growth under way included. O(1).
    fn excess_bytes(&self) -> u64 {
        self.chunks().excess_bytes()
    }

    /// Bytes that were requested for the block; `None` if it is not one of ours. O(1).
    fn requested_bytes(&self, block: &Block) -> Option<u64> {
        self.chunks().requested_bytes(block)
    }

    /// The block's number among all allocations, from 1 up; `None` if it is not one of ours. O(1).
    fn allocation_id(&self, block: &Block) -> Option<u64> {
        self.chunks().allocation_id(block)
    }

    /// Restores a block that was taken apart, if a used chunk with that handle starts there.
    ///
    /// The caller promises that no other [`Block`] for it exists; if one does, the second free of
    /// the two is refused or, once the place has been allocated again, frees the new owner's
    /// block: the bookkeeping stays consistent, the caller's program does not. O(1).
    ///
    /// # Errors
    /// [`FreeError::Unknown`] if there is no such chunk.
    fn block_from_raw(&self, raw: RawBlock) -> Result<Block, FreeError> {
        self.chunks().block_from_raw(raw)
    }

    /// Calls `f` with every chunk that ends behind `from`, in address order, until it says `false`.
    ///
    /// For walks that let others work in between: `near` is the chunk where the last one stopped,
    /// which may have gone meanwhile. O(chunks told + chunks between `near` and `from`).
    fn chunks_from(&self, from: Addr, near: Option<ChunkHandle>, f: impl FnMut(ChunkInfo) -> bool) {
        self.chunks().chunks_from(from, near, f);
    }

    /// Calls `f` with every region in address order. O(chunks).
    fn for_each_region(&self, f: impl FnMut(RegionInfo)) {
        self.chunks().for_each_region(f);
    }

    /// Occupancy and fragmentation now. O(chunks).
    fn report(&self) -> Report {
        let mut report = self.chunks().report_without_chunks();
        self.for_each_chunk(|chunk| report.count(chunk));
        report
    }

    /// Blocks and free chunks by power of two of their size. O(chunks).
    fn bin_summaries(&self) -> [BinSummary; BinSummary::COUNT] {
        let mut bins = [BinSummary::default(); BinSummary::COUNT];
        self.for_each_chunk(|chunk| {
            let bin = BinSummary::index_of(chunk.range.bytes(), self.granule());
            bins[bin].count(chunk);
        });
        bins
    }

    /// A human-readable picture: totals, bins that hold anything, and a map of each region in
    /// which `#` is in use, `+` granted but not requested, `~` free but used by queued work, `.`
    /// free, `<` on its way back; a cell shows the first of these that occurs in it. O(chunks x regions)
    /// to format.
    fn dump(&self) -> impl fmt::Display {
        Dump(self)
    }
}
