//! [`Shared`]: a pool behind a lock, and the loop that carries out its plans with the source.
//!
//! The lock is held for bookkeeping only, not during calls of the source. So other threads allocate and free while
//! one waits for the driver to map memory.

use crate::best_fit::{BestFit, Progress};
use crate::block::{AllocatorId, Block, BlockAllocator, Grant, Request};
use crate::error::{AllocError, FreeError, Rejected};
use crate::stats::{PoolStats, Stats};
use crate::stream::{EventNumber, StreamId, StreamPoint};
use crate::sync::{Locked, Spin, Wait};

/// A source of memory, which makes the calls of a pool's plans: every [`SubAllocator`](crate::SubAllocator) for a
/// [`RegionPool`](crate::RegionPool), every [`PageDriver`](crate::pages::PageDriver) for a
/// [`PagePool`](crate::pages::PagePool).
pub trait Source<P: BestFit> {
    /// Makes the calls of a plan, without the lock, and reports each. Returns the block, if the plan itself yields
    /// it.
    #[doc(hidden)]
    fn carry_out<W: Wait>(
        &self,
        pool: &Locked<P, W>,
        attempt: &mut P::Attempt,
        plan: P::Plan,
    ) -> Option<Grant>;

    /// Releases the idle part of the bytes held above the limit. Returns the bytes that stay above it.
    #[doc(hidden)]
    fn release_excess<W: Wait>(&self, pool: &Locked<P, W>) -> u64;
}

/// A pool whose memory comes from `S`, shared by reference; `W` is how threads wait for its lock.
///
/// Dropping it releases nothing to the source, because blocks may still be in use: free them and release idle memory
/// first.
///
/// ```
/// use larder_core::{
///     Addr, AddrRange, BlockAllocator, Chunk, FixedRange, Growth, RegionConfig, RegionPool,
///     Request, Shared,
/// };
/// let mut table = [Chunk::VACANT; 64];
/// let config = RegionConfig {
///     growth: Growth::Range { unit_bytes: 0x1000, ahead_divisor: None },
///     ..RegionConfig::default()
/// };
/// let source = FixedRange::new(AddrRange::new(Addr::new(0x10000), 0x8000).unwrap());
/// let allocator = Shared::new(RegionPool::new(config, &mut table)?, source);
/// let block = allocator.alloc(&Request::new(0x1800))?.block;
/// assert_eq!(allocator.stats().reserved_bytes, 0x2000);
/// allocator.free(block)?;
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
pub struct Shared<P, S, W: Wait = Spin> {
    pub(crate) pool: Locked<P, W>,
    pub(crate) source: S,
    /// The id that its blocks carry, readable without the lock.
    pub(crate) id: AllocatorId,
}

impl<P: BestFit, S: Source<P>> Shared<P, S> {
    /// Creates an allocator over `pool` and `source`; threads spin for the lock.
    pub fn new(pool: P, source: S) -> Self {
        Self::with_wait(pool, source)
    }
}

impl<P: BestFit, S: Source<P>, W: Wait> Shared<P, S, W> {
    /// Creates an allocator over `pool` and `source`; `W` is how threads wait for the lock. In a process a thread
    /// that holds the lock may be preempted, so `W` should yield there.
    pub fn with_wait(pool: P, source: S) -> Self {
        Self {
            id: pool.id(),
            pool: Locked::new(pool),
            source,
        }
    }

    /// Converts the allocator to its parts. Memory held from the source stays held.
    pub fn into_parts(self) -> (P, S) {
        (self.pool.into_inner(), self.source)
    }

    /// Returns the source: the sub-allocator or the driver.
    pub const fn source(&self) -> &S {
        &self.source
    }

    /// Returns the lock, for a process that forks while other threads run.
    #[doc(hidden)]
    pub const fn lock(&self) -> &Locked<P, W> {
        &self.pool
    }

    /// Runs `f` on the pool under the lock, for reports, dumps and look-ups. `f` must not use this allocator, nor put
    /// another pool in its place.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(&mut P) -> R) -> R {
        self.pool.with(f)
    }

    /// Returns the pool without locking: the exclusive reference excludes other threads.
    pub fn get_mut(&mut self) -> &mut P {
        self.pool.get_mut()
    }

    /// Reports that the events of `stream` up to `event` are completed; see [`BestFit::complete`].
    pub fn complete(&self, stream: StreamId, event: EventNumber) {
        self.pool.with(|pool| pool.complete(stream, event));
    }

    /// Returns how far the limit could be lowered now; see [`BestFit::pool_stats`].
    pub fn pool_stats(&self) -> PoolStats {
        self.pool.with(P::pool_stats)
    }

    /// Sets the limit and releases the idle part of the excess. The limit takes effect at the start of this call; see
    /// [`BestFit::set_limit`]. Returns the bytes that stay above it for now.
    ///
    /// The next call releases the rest of the excess. Regions that were added by hand are released to the source too.
    pub fn adjust(&self, limit_bytes: u64) -> u64 {
        match self.pool.with(|pool| pool.set_limit(limit_bytes)) {
            0 => 0,
            _ => self.release_excess(),
        }
    }

    /// Releases the idle part of the bytes held above the limit, and as little more as possible. Returns the bytes
    /// that stay above it for now; a later call can release them.
    pub fn release_excess(&self) -> u64 {
        self.source.release_excess(&self.pool)
    }

    /// Continues one allocation until it is done.
    #[cold]
    pub(crate) fn finish(&self, mut attempt: P::Attempt) -> Result<Grant, AllocError> {
        loop {
            match self.pool.with(|pool| pool.advance(&mut attempt)) {
                Progress::Ready(grant) => return Ok(grant),
                Progress::Failed(error) => return Err(error),
                Progress::Plan(plan) => {
                    let given = self.source.carry_out(&self.pool, &mut attempt, plan);
                    if let Some(grant) = given {
                        return Ok(grant);
                    }
                }
            }
        }
    }
}

impl<P: BestFit, S: Source<P>, W: Wait> BlockAllocator for Shared<P, S, W> {
    /// O(1) while held memory serves; see [`BestFit::alloc`] and [`BestFit::advance`].
    fn alloc(&self, request: &Request) -> Result<Grant, AllocError> {
        match self.pool.with(|pool| pool.try_alloc_now(request)) {
            Some(grant) => Ok(grant),
            None => self.finish(P::Attempt::from(*request)),
        }
    }

    fn free_at(&self, block: Block, point: Option<StreamPoint>) -> Result<(), Rejected<FreeError>> {
        self.pool.with(|pool| match point {
            None => pool.free(block),
            Some(point) => pool.free_after(block, point),
        })
    }

    fn requested_bytes(&self, block: &Block) -> Option<u64> {
        self.pool.with(|pool| pool.requested_bytes(block))
    }

    fn allocation_id(&self, block: &Block) -> Option<u64> {
        self.pool.with(|pool| pool.allocation_id(block))
    }

    /// O(1), without the lock.
    fn owns(&self, block: &Block) -> bool {
        block.is_of(self.id)
    }

    fn stats(&self) -> Stats {
        self.pool.with(|pool| pool.stats())
    }

    fn clear_stats(&self) {
        self.pool.with(P::clear_stats);
    }
}
