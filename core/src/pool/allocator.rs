//! [`PoolAllocator`]: the pool behind a lock, driven over a sub-allocator.
//!
//! The lock is held for bookkeeping only. A buffer that is to go back has left the pool's lists before
//! the lock is let go, so nobody can be given it while the sub-allocator takes it.

use super::{LeavingTicket, MissTicket, Pool, PoolCounters, PoolReport, PoolStep};
use crate::block::{Block, BlockAllocator, Grant, Request};
use crate::error::{AllocError, ConfigError, FreeError, Rejected};
use crate::stats::Stats;
use crate::stream::StreamPoint;
use crate::sub_allocator::SubAllocator;
use crate::sync::{Locked, Spin, Wait};
use crate::units::AddrRange;

/// A pool over `S`, shared by reference; `W` says how threads wait for its lock.
///
/// Dropping it gives nothing back to the source, because blocks may still be in use:
/// [`close`](Self::close) gives back what is idle and says what is out.
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
    /// Drives `pool` over `source`; threads spin for the lock.
    pub fn new(pool: Pool, source: S) -> Self {
        Self::with_wait(pool, source)
    }
}

impl<S: SubAllocator, W: Wait> PoolAllocator<S, W> {
    /// Drives `pool` over `source`; threads wait for the lock as `W` says. In a process a thread
    /// that holds the lock may be preempted, so `W` should yield there.
    pub fn with_wait(pool: Pool, source: S) -> Self {
        Self {
            pool: Locked::new(pool),
            source,
        }
    }

    /// Takes the allocator apart. What is held from the source stays out.
    pub fn into_parts(self) -> (Pool, S) {
        (self.pool.into_inner(), self.source)
    }

    /// Gives back what is idle and ends. Nothing is given back under a live block: the report says how
    /// many buffers stay out, and how many the sub-allocator did not take back.
    #[must_use = "buffers may still be out"]
    pub fn close(self) -> (PoolReport, S) {
        self.trim();
        let (pool, source) = self.into_parts();
        (pool.report(), source)
    }

    /// The sub-allocator.
    pub const fn source(&self) -> &S {
        &self.source
    }

    /// Runs `f` with the pool under the lock. `f` must not use this allocator; what it lets go goes
    /// back with the next free or [`trim`](Self::trim).
    pub fn with<R>(&self, f: impl FnOnce(&mut Pool) -> R) -> R {
        self.pool.with(f)
    }

    /// What the pool is called.
    pub fn name(&self) -> &'static str {
        self.pool.with(|pool| pool.name())
    }

    /// TensorFlow's counters.
    pub fn counters(&self) -> PoolCounters {
        self.pool.with(|pool| pool.counters())
    }

    /// What is held now.
    pub fn report(&self) -> PoolReport {
        self.pool.with(|pool| pool.report())
    }

    /// Sets both limits and gives back what stands above them; see [`Pool::set_limits`]. Returns the
    /// bytes.
    ///
    /// # Errors
    /// [`ConfigError::PoolLimit`] if a limit of 0 should rise; nothing has changed then.
    pub fn set_limits(&self, buffers: u32, bytes: u64) -> Result<u64, ConfigError> {
        self.pool.with(|pool| pool.set_limits(buffers, bytes))?;
        Ok(self.drain())
    }

    /// Ends a step and gives back what was idle too long; see [`Pool::end_step`]. Returns the bytes.
    pub fn end_step(&self) -> u64 {
        self.pool.with(Pool::end_step);
        self.drain()
    }

    /// Gives back all that is idle. Returns the bytes.
    pub fn trim(&self) -> u64 {
        self.pool.with(Pool::trim);
        self.drain()
    }

    /// Gives back all that is idle and begins the counters anew. Returns the bytes.
    pub fn clear(&self) -> u64 {
        self.pool.with(Pool::clear);
        self.drain()
    }

    /// Gives back what is to leave, whoever let it go. Returns the bytes taken.
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

    /// One buffer: the bytes taken, and the next.
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

    /// The pool's answer. Where its table is full, one idle buffer after another goes back until one
    /// was taken, and then, once, all that were not.
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
                // One that is not taken back is the sub-allocator's loss: it was told.
                self.source.release(rejected.value).ok();
                Err(rejected.error)
            }
        }
    }
}

impl<S: SubAllocator, W: Wait> BlockAllocator for PoolAllocator<S, W> {
    /// O(1) expected where a buffer of the size is kept. Otherwise one call of the sub-allocator, and
    /// before failing for want of memory one for each kept buffer and another; for want of a record, one for each idle buffer, the oldest first,
    /// until one is taken.
    fn alloc(&self, request: &Request) -> Result<Grant, AllocError> {
        match self.step(request)? {
            PoolStep::Ready(grant) => Ok(grant),
            PoolStep::Grow(ticket) => self.grow(ticket),
        }
    }

    /// Keeps the buffer; evicts without the lock, one call of the sub-allocator for each buffer that stands above
    /// the limits then: one large buffer may evict many small ones. With a point always refused: a pool has no streams, see
    /// [`Pool::free_after`].
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
