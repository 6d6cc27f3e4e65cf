//! [`PoolAllocator`]: a pool behind a lock, over a sub-allocator.
//!
//! The lock is held only for bookkeeping. A buffer to release leaves the pool's lists before the lock is released, so
//! no request can get it while the sub-allocator takes it back.

use super::{LeavingTicket, MissTicket, Pool, PoolCounters, PoolReport, PoolStep};
use crate::block::{Block, BlockAllocator, Grant, Request};
use crate::error::{AllocError, ConfigError, FreeError, Rejected};
use crate::stats::Stats;
use crate::stream::StreamPoint;
use crate::sub_allocator::SubAllocator;
use crate::sync::{Locked, Spin, Wait};
use crate::units::AddrRange;

/// A pool over the sub-allocator `S`, shared by reference. `W` is how threads wait for its lock.
///
/// Dropping it releases nothing to the sub-allocator, because blocks may still be in use. [`close`](Self::close)
/// releases idle buffers and reports those in use.
///
/// ```
/// use larder_core::pool::{Pool, PoolAllocator, PoolConfig};
/// use larder_core::{Addr, AddrRange, BlockAllocator, FixedRange, Request};
/// let source = FixedRange::new(AddrRange::new(Addr::new(0x10000), 0x8000).unwrap());
/// let pool = Pool::new(PoolConfig::default(), 8)?;
/// let allocator = PoolAllocator::new(pool, source);
/// let block = allocator.alloc(&Request::new(1000))?.block;
/// let addr = block.addr();
/// allocator.free(block)?;
/// assert_eq!(allocator.alloc(&Request::new(1000))?.block.addr(), addr);
/// assert_eq!(allocator.close().0.out_buffers, 1);
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
pub struct PoolAllocator<S, W: Wait = Spin> {
    pool: Locked<Pool, W>,
    source: S,
}

impl<S: SubAllocator> PoolAllocator<S> {
    /// Creates an allocator over `pool` and `source`. Threads that wait for the lock spin.
    pub fn new(pool: Pool, source: S) -> Self {
        Self::with_wait(pool, source)
    }
}

impl<S: SubAllocator, W: Wait> PoolAllocator<S, W> {
    /// Creates an allocator over `pool` and `source`. `W` is how threads wait for the lock. In a process, a thread that
    /// holds the lock may be preempted, so `W` should yield the processor.
    pub fn with_wait(pool: Pool, source: S) -> Self {
        Self {
            pool: Locked::new(pool),
            source,
        }
    }

    /// Converts the allocator to its parts. Memory held from the sub-allocator stays held.
    pub fn into_parts(self) -> (Pool, S) {
        (self.pool.into_inner(), self.source)
    }

    /// Releases idle buffers and ends the allocator. Buffers with live blocks stay. The report has their number, and
    /// the number of buffers that the sub-allocator did not take back.
    #[must_use = "buffers may still be out"]
    pub fn close(self) -> (PoolReport, S) {
        self.trim();
        let (pool, source) = self.into_parts();
        (pool.report(), source)
    }

    /// Returns the sub-allocator.
    pub const fn source(&self) -> &S {
        &self.source
    }

    /// Runs `f` on the pool under the lock. `f` must not use this allocator. If it lets buffers leave, the next free or
    /// [`trim`](Self::trim) releases them.
    pub fn with<R>(&self, f: impl FnOnce(&mut Pool) -> R) -> R {
        self.pool.with(f)
    }

    /// Returns the pool's name.
    pub fn name(&self) -> &'static str {
        self.pool.with(|pool| pool.name())
    }

    /// Returns TensorFlow's counters.
    pub fn counters(&self) -> PoolCounters {
        self.pool.with(|pool| pool.counters())
    }

    /// Returns the current contents.
    pub fn report(&self) -> PoolReport {
        self.pool.with(|pool| pool.report())
    }

    /// Sets both limits and releases the buffers above them; see [`Pool::set_limits`]. Returns the bytes released.
    ///
    /// # Errors
    /// [`ConfigError::PoolLimit`] if a limit of 0 is configured to rise; nothing has changed then.
    pub fn set_limits(&self, buffers: u32, bytes: u64) -> Result<u64, ConfigError> {
        self.pool.with(|pool| pool.set_limits(buffers, bytes))?;
        Ok(self.drain())
    }

    /// Ends a step and releases buffers that were idle for too long; see [`Pool::end_step`]. Returns the bytes
    /// released.
    pub fn end_step(&self) -> u64 {
        self.pool.with(Pool::end_step);
        self.drain()
    }

    /// Releases all idle buffers. Returns the bytes released.
    pub fn trim(&self) -> u64 {
        self.pool.with(Pool::trim);
        self.drain()
    }

    /// Releases all idle buffers and resets the counters. Returns the bytes released.
    pub fn clear(&self) -> u64 {
        self.pool.with(Pool::clear);
        self.drain()
    }

    /// Releases all leaving buffers, including those of other threads. Returns the bytes released.
    fn drain(&self) -> u64 {
        let mut bytes = 0;
        let mut next = self.pool.with(Pool::take_leaving);
        while let Some(ticket) = next {
            let (taken, after) = self.give_back(ticket);
            bytes += taken;
            next = after;
        }
        bytes
    }

    /// Releases one buffer. Returns the bytes released, and the next ticket.
    fn give_back(&self, ticket: LeavingTicket) -> (u64, Option<LeavingTicket>) {
        let taken = self.source.release(ticket.range()).is_ok();
        self.pool.with(|pool| {
            let bytes = if taken {
                pool.released(ticket)
            } else {
                pool.release_refused(ticket);
                0
            };
            (bytes, pool.take_leaving())
        })
    }

    /// Returns the pool's answer. If the table is full, offers idle buffers to the sub-allocator, one after another,
    /// until it takes one. If it takes none, offers all stuck buffers once.
    fn step(&self, request: &Request) -> Result<PoolStep, AllocError> {
        let mut offered = false;
        loop {
            let step = self.pool.with(|pool| pool.alloc(request));
            if !matches!(step, Err(AllocError::TableFull { .. })) {
                return step;
            }
            let more = self.pool.with(|pool| {
                pool.make_room() || !core::mem::replace(&mut offered, true) && pool.offer_stuck()
            });
            if !more {
                return step;
            }
            self.drain();
        }
    }

    #[cold]
    fn grow(&self, ticket: MissTicket) -> Result<Grant, AllocError> {
        if let Ok(range) = self.source.grow(ticket.request()) {
            return self.commit(ticket, range);
        }
        if self.pool.with(Pool::trim) {
            self.drain();
            if let Ok(range) = self.source.grow(ticket.request()) {
                return self.commit(ticket, range);
            }
        }
        Err(self.pool.with(|pool| pool.abort(ticket)))
    }

    fn commit(&self, ticket: MissTicket, range: AddrRange) -> Result<Grant, AllocError> {
        match self.pool.with(|pool| pool.commit(ticket, range)) {
            Ok(grant) => Ok(grant),
            Err(rejected) => {
                // If the sub-allocator does not take its range back, that memory is lost to it, and not to the pool.
                self.source.release(rejected.value).ok();
                Err(rejected.error)
            }
        }
    }
}

impl<S: SubAllocator, W: Wait> BlockAllocator for PoolAllocator<S, W> {
    /// Expected O(1) if a buffer of the size is cached, otherwise one call of the sub-allocator. If memory is short,
    /// makes one call for each cached buffer, and one more before it fails. If no record is left, makes one call for
    /// each idle buffer, the oldest first, until the sub-allocator takes one.
    fn alloc(&self, request: &Request) -> Result<Grant, AllocError> {
        match self.step(request)? {
            PoolStep::Ready(grant) => Ok(grant),
            PoolStep::Grow(ticket) => self.grow(ticket),
        }
    }

    /// Caches the buffer. Then evicts the buffers that exceed the limits, with one call of the sub-allocator for each,
    /// and without the lock. One large buffer may evict many small ones. A free with a point is always refused, because
    /// a pool has no streams; see [`Pool::free_after`].
    fn free_at(&self, block: Block, point: Option<StreamPoint>) -> Result<(), Rejected<FreeError>> {
        let mut next = self.pool.with(|pool| {
            match point {
                None => pool.free(block)?,
                Some(point) => pool.free_after(block, point)?,
            }
            Ok(pool.take_leaving())
        })?;
        while let Some(ticket) = next {
            next = self.give_back(ticket).1;
        }
        Ok(())
    }

    fn requested_bytes(&self, block: &Block) -> Option<u64> {
        self.pool.with(|pool| pool.requested_bytes(block))
    }

    fn allocation_id(&self, block: &Block) -> Option<u64> {
        self.pool.with(|pool| pool.allocation_id(block))
    }

    fn stats(&self) -> Stats {
        self.pool.with(|pool| pool.stats())
    }

    fn clear_stats(&self) {
        self.pool.with(Pool::clear_stats);
    }
}
