//! [`BestFit`]: the interface that a pool of regions and a pool of pages share.

use core::fmt;

use crate::block::{AllocatorId, Block, ChunkHandle, Grant, RawBlock, Request, Resize};
use crate::engine::{BinSummary, ChunkInfo, Chunks, Dump, RegionInfo, Report, Violation};
use crate::error::{AllocError, FreeError, Rejected, ResizeError};
use crate::stats::{PoolStats, Stats};
use crate::stream::{EventNumber, StreamId, StreamPoint};
use crate::units::{Addr, AddrRange, Granule};

/// The state of an allocation after [`BestFit::advance`].
#[derive(Debug)]
#[must_use]
pub enum Progress<P> {
    /// The allocation is done, and this is its block.
    Ready(Grant),
    /// A plan of calls to make before [`BestFit::advance`] is called again.
    Plan(P),
    /// The allocation has failed with this error.
    Failed(AllocError),
}

/// Best fit with coalescing over numbers, for one thread at a time: [`RegionPool`](crate::RegionPool) over ranges
/// of a sub-allocator, [`PagePool`](crate::pages::PagePool) over pages that a driver maps.
///
/// It performs no I/O and touches none of the memory it manages. An allocation that cannot be served from held memory
/// is a loop: [`advance`](Self::advance) returns a plan of calls, and the caller makes them and calls `advance` again.
/// [`Shared`](crate::Shared) does that behind a lock, which it releases for the calls.
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
    /// The state of one allocation. Belongs to the thread that allocates.
    type Attempt: From<Request>;
    /// Calls to make, and the permission to make them.
    type Plan;

    /// Allocates from held memory and never asks for more.
    ///
    /// O(1) while no other stream has chunks with a point and the alignment is at most the granule; otherwise at most
    /// four chunks of each size class are examined, and all free chunks once before the call fails.
    ///
    /// # Errors
    /// [`AllocError`]; no block is allocated then, but free chunks may have been joined. The cause of an
    /// [`OutOfMemory`](crate::OutOfMemory) is [`Cause::Held`](crate::Cause::Held) or
    /// [`Cause::Fixed`](crate::Cause::Fixed), unless the limit or the free memory itself is the cause.
    fn alloc(&mut self, request: &Request) -> Result<Grant, AllocError>;

    /// Allocates the block that FIT1 and FIT2 find, as [`alloc`](Self::alloc) does, without a further search and
    /// without a reason on failure. O(1).
    fn try_alloc_now(&mut self, request: &Request) -> Option<Grant>;

    /// Allocates the block at exactly this place, `range` rounded up to granules, from held memory. Serves plans, which
    /// lay out blocks ahead of time.
    ///
    /// The search for the place starts at the chunk `near`, which may no longer exist. The whole place must be free.
    /// Without a stream, no queued work may use it; with one, work of that stream may, since the stream runs in order.
    /// O(chunks between `near` and the place + chunks under it), after a sweep if there is no stream.
    ///
    /// # Errors
    /// [`AllocError::PlaceTaken`] if part of the place cannot be used, or the place does not start on a granule;
    /// [`AllocError::OutOfMemory`] if a lowered limit leaves no room; [`AllocError::TooLarge`];
    /// [`AllocError::TableFull`].
    fn alloc_at(
        &mut self,
        range: AddrRange,
        near: Option<ChunkHandle>,
        stream: Option<StreamId>,
    ) -> Result<Block, AllocError>;

    /// Continues an allocation until it is done or needs calls. Costs as much as [`alloc`](Self::alloc); O(chunks) when
    /// memory is short.
    fn advance(&mut self, attempt: &mut Self::Attempt) -> Progress<Self::Plan>;

    /// Frees a block that no work uses any more. O(1), plus one step for each free neighbour that its point no longer
    /// keeps apart; these steps are amortised over the frees that left the neighbours.
    ///
    /// # Errors
    /// Returns the block if it is not one of this pool's; nothing has changed then.
    fn free(&mut self, block: Block) -> Result<(), Rejected<FreeError>>;

    /// Frees a block that work queued on `point.stream` may use until `point.event`. Costs as much as
    /// [`free`](Self::free).
    ///
    /// # Errors
    /// Returns the block if it is not one of this pool's, or if the event lies more than [`EventNumber::WINDOW`]
    /// ahead of the stream's last completed event; nothing has changed then.
    fn free_after(&mut self, block: Block, point: StreamPoint) -> Result<(), Rejected<FreeError>>;

    /// Reports that all work up to `event` on `stream` is done: memory whose point is among these events is no longer
    /// in use. An event below one that was already reported changes nothing. O(1), except once every 2^30 events.
    ///
    /// Points are cleared when a search fails, not here.
    fn complete(&mut self, stream: StreamId, event: EventNumber);

    /// Resizes the block without moving it, from held memory. Returns the block that replaces it, with the same
    /// address, handle and number.
    ///
    /// O(1), plus one step for each free chunk that the block grows into.
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
    /// Returns the block, and nothing has changed then; see [`ResizeError`].
    fn resize(
        &mut self,
        block: Block,
        to: impl Into<Resize>,
    ) -> Result<Block, Rejected<ResizeError>>;

    /// Sets the limit. From this call on, no memory is requested above it, and while more is held, no block is
    /// allocated that would raise the live bytes above it. O(regions).
    ///
    /// Returns the bytes held above the limit, growth under way included; 0 if the limit is met.
    fn set_limit(&mut self, limit_bytes: u64) -> u64;

    /// Resets the counters, as [`Stats::clear`] does.
    fn clear_stats(&mut self);

    /// Returns how far the limit could be lowered now: the held bytes, and those of them that cannot be released
    /// because a block, queued work or a pin uses them. A pool of regions releases whole regions, and units at the free
    /// end of the newest region; a pool of pages releases handles. O(chunks).
    fn pool_stats(&mut self) -> PoolStats;

    /// Calls `f` with every chunk in address order. A free chunk with memory behind only some of its pages comes in
    /// pieces. O(chunks).
    fn for_each_chunk(&self, f: impl FnMut(ChunkInfo));

    /// Walks every numbered invariant. O(chunks).
    ///
    /// # Errors
    /// The first broken invariant, which is a defect of this crate.
    fn check_invariants(&self) -> Result<(), Violation>;

    /// Returns the engine.
    #[doc(hidden)]
    fn chunks(&self) -> &Chunks<'_>;

    /// Returns the id that this pool's blocks carry.
    fn id(&self) -> AllocatorId {
        self.chunks().id()
    }

    /// Returns the unit that sizes are multiples of.
    fn granule(&self) -> Granule {
        self.chunks().granule()
    }

    /// Returns the counters. O(1).
    fn stats(&self) -> Stats {
        self.chunks().stats()
    }

    /// Returns the bytes held above the limit, growth under way included. O(1).
    fn excess_bytes(&self) -> u64 {
        self.chunks().excess_bytes()
    }

    /// Returns the bytes requested for the block, or `None` if it is not one of this pool's. O(1).
    fn requested_bytes(&self, block: &Block) -> Option<u64> {
        self.chunks().requested_bytes(block)
    }

    /// Returns the block's number among all allocations, from 1 up, or `None` if it is not one of this pool's. O(1).
    fn allocation_id(&self, block: &Block) -> Option<u64> {
        self.chunks().allocation_id(block)
    }

    /// Restores a block from its parts, if a used chunk with that handle starts there.
    ///
    /// The caller promises that no other [`Block`] for it exists; if another one does, the second free of the two is
    /// refused or, once the place has been allocated again, frees the new owner's block: the bookkeeping stays
    /// consistent, the caller's program does not. O(1).
    ///
    /// # Errors
    /// [`FreeError::Unknown`] if there is no such chunk.
    fn block_from_raw(&self, raw: RawBlock) -> Result<Block, FreeError> {
        self.chunks().block_from_raw(raw)
    }

    /// Calls `f` with every chunk that ends after `from`, in address order, until it returns `false`.
    ///
    /// Serves walks with pauses, during which other threads work: `near` is the chunk where the last walk stopped,
    /// which may no longer exist. O(chunks visited + chunks between `near` and `from`).
    fn chunks_from(&self, from: Addr, near: Option<ChunkHandle>, f: impl FnMut(ChunkInfo) -> bool) {
        self.chunks().chunks_from(from, near, f);
    }

    /// Calls `f` with every region in address order. O(chunks).
    fn for_each_region(&self, f: impl FnMut(RegionInfo)) {
        self.chunks().for_each_region(f);
    }

    /// Returns occupancy and fragmentation. O(chunks).
    fn report(&self) -> Report {
        let mut report = self.chunks().report_without_chunks();
        self.for_each_chunk(|chunk| report.count(chunk));
        report
    }

    /// Counts blocks and free chunks by power of two of their size. O(chunks).
    fn bin_summaries(&self) -> [BinSummary; BinSummary::COUNT] {
        let mut bins = [BinSummary::default(); BinSummary::COUNT];
        self.for_each_chunk(|chunk| {
            let bin = BinSummary::index_of(chunk.range.bytes(), self.granule());
            bins[bin].count(chunk);
        });
        bins
    }

    /// Returns a human-readable picture: totals, bins that are not empty, and a map of each region in which `#` is in
    /// use, `+` granted but not requested, `~` free but used by queued work, `.` free, `<` on its way back; a cell
    /// shows the first of these that occurs in it. O(chunks x regions) to format.
    fn dump(&self) -> impl fmt::Display {
        Dump(self)
    }
}
