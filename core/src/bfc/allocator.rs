//! [`BfcAllocator`]: the algorithm behind a lock, driven over a source.
//!
//! The lock is held for bookkeeping only; the source is called without it. So other threads allocate
//! and free while one waits for the driver to map memory.

use super::Bfc;
use super::drive;
use super::memory::{Memory, Regions, Source};
use crate::block::{AllocatorId, Block, BlockAllocator, Grant, Request, Resize};
use crate::error::{AllocError, FreeError, Rejected, ResizeError};
use crate::stats::{PoolStats, Stats};
use crate::stream::{EventNumber, StreamId, StreamPoint};
use crate::sub_allocator::SubAllocator;
use crate::sync::{Locked, Spin, Wait};

/// A BFC whose memory comes from `S`, shared by reference; `W` says how threads wait for its lock, `M`
/// what stands behind its chunks.
///
/// Dropping it gives nothing back to the source, because blocks may still be in use: free them and
/// trim it first.
///
/// ```
/// use larder_core::{
///     Addr, AddrRange, BfcAllocator, BfcConfig, Bfc, BlockAllocator, Chunk, FixedRange, Growth,
///     Request,
/// };
/// let mut table = [Chunk::VACANT; 64];
/// let config = BfcConfig {
///     growth: Growth::Range { unit_bytes: 0x1000, ahead_divisor: None },
///     ..BfcConfig::default()
/// };
/// let source = FixedRange::new(AddrRange::new(Addr::new(0x10000), 0x8000).unwrap());
/// let allocator = BfcAllocator::new(Bfc::new(config, &mut table)?, source);
/// let block = allocator.alloc(&Request::new(0x1800))?.block;
/// assert_eq!(allocator.stats().reserved_bytes, 0x2000);
/// allocator.free(block)?;
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
pub struct BfcAllocator<'t, S, W: Wait = Spin, M: Memory = Regions> {
    pub(super) bfc: Locked<Bfc<'t, M>, W>,
    pub(super) source: S,
    /// What its blocks carry, readable without the lock.
    pub(super) id: AllocatorId,
}

impl<'t, S, M: Memory> BfcAllocator<'t, S, Spin, M> {
    /// Drives `bfc` over `source`; threads spin for the lock.
    pub fn new(bfc: Bfc<'t, M>, source: S) -> Self {
        Self::with_wait(bfc, source)
    }
}

impl<'t, S, W: Wait, M: Memory> BfcAllocator<'t, S, W, M> {
    /// Drives `bfc` over `source`; threads wait for the lock as `W` says. In a process a thread
    /// that holds the lock may be preempted, so `W` should yield there.
    pub fn with_wait(bfc: Bfc<'t, M>, source: S) -> Self {
        Self {
            id: bfc.id(),
            bfc: Locked::new(bfc),
            source,
        }
    }

    /// Takes the allocator apart. What is held from the source stays out.
    pub fn into_parts(self) -> (Bfc<'t, M>, S) {
        (self.bfc.into_inner(), self.source)
    }

    /// Who makes the calls: the sub-allocator or the driver.
    pub const fn source(&self) -> &S {
        &self.source
    }

    /// The lock, for a process that forks while other threads run.
    #[doc(hidden)]
    pub const fn lock(&self) -> &Locked<Bfc<'t, M>, W> {
        &self.bfc
    }

    /// Runs `f` with the algorithm under the lock, for reports, dumps and look-ups. `f` must not
    /// use this allocator, nor put another [`Bfc`] in its place.
    pub fn with<R>(&self, f: impl FnOnce(&mut Bfc<'t, M>) -> R) -> R {
        self.bfc.with(f)
    }

    /// The algorithm, for whoever owns the allocator exclusively: no locking.
    pub fn get_mut(&mut self) -> &mut Bfc<'t, M> {
        self.bfc.get_mut()
    }

    /// Tells that the events of `stream` up to this one are completed; see [`Bfc::complete`].
    pub fn complete(&self, stream: StreamId, event: EventNumber) {
        self.bfc.with(|bfc| bfc.complete(stream, event));
    }
}

impl<S: Source<M>, W: Wait, M: Memory> BfcAllocator<'_, S, W, M> {
    /// How far the limit could be lowered now; see [`Bfc::pool_stats`].
    pub fn pool_stats(&self) -> PoolStats {
        self.bfc.with(Bfc::pool_stats)
    }

    /// Sets the limit and gives back what that needs and is free; see [`Bfc::adjust_over`]. Returns the
    /// bytes that stay above it for now.
    pub fn adjust(&self, limit_bytes: u64) -> u64 {
        drive::adjust(&mut &self.bfc, &self.source, limit_bytes)
    }

    /// Gives back what is free of the bytes held above the limit, as little more as may be. Returns the
    /// bytes that stay above it for now; they can go with a later call.
    pub fn release_excess(&self) -> u64 {
        self.source.release_excess(&mut &self.bfc)
    }
}

impl<S: SubAllocator, W: Wait> BfcAllocator<'_, S, W> {
    /// Gives the block another size without moving it, growing from the source behind it if need
    /// be; see [`Bfc::resize_over`]. The block is the caller's throughout, so no other thread can
    /// take it or what it has meanwhile; memory behind it may go to whoever is faster.
    ///
    /// # Errors
    /// Gives the block back as it was; see [`ResizeError`](crate::ResizeError).
    pub fn resize(
        &self,
        block: Block,
        to: impl Into<Resize>,
    ) -> Result<Block, Rejected<ResizeError>> {
        drive::resize(&mut &self.bfc, &self.source, block, &to.into())
    }

    /// Gives everything back that is free in whole regions or units at the end of the range.
    /// Returns the bytes given.
    pub fn trim(&self) -> u64 {
        drive::trim(&mut &self.bfc, &self.source)
    }
}

impl<S: Source<M>, W: Wait, M: Memory> BlockAllocator for BfcAllocator<'_, S, W, M> {
    /// O(1) while held memory serves; see [`Bfc::alloc`] and [`Bfc::advance`].
    fn alloc(&self, request: &Request) -> Result<Grant, AllocError> {
        match self.bfc.with(|bfc| bfc.alloc_now(request))? {
            Some(grant) => Ok(grant),
            None => drive::alloc(&mut &self.bfc, &self.source, M::Attempt::from(*request)),
        }
    }

    fn free_at(&self, block: Block, point: Option<StreamPoint>) -> Result<(), Rejected<FreeError>> {
        self.bfc.with(|bfc| match point {
            None => bfc.free(block),
            Some(point) => bfc.free_after(block, point),
        })
    }

    fn requested_bytes(&self, block: &Block) -> Option<u64> {
        self.bfc.with(|bfc| bfc.requested_bytes(block))
    }

    fn allocation_id(&self, block: &Block) -> Option<u64> {
        self.bfc.with(|bfc| bfc.allocation_id(block))
    }

    /// O(1), without the lock.
    fn owns(&self, block: &Block) -> bool {
        block.is_of(self.id)
    }

    fn stats(&self) -> Stats {
        self.bfc.with(|bfc| bfc.stats())
    }

    fn clear_stats(&self) {
        self.bfc.with(Bfc::clear_stats);
    }
}
