//! [`BfcAllocator`]: the algorithm behind a lock, driven over a sub-allocator.
//!
//! The lock is held for bookkeeping only; the sub-allocator is called without it. So other
//! threads allocate and free while one waits for the driver to map memory.

use super::Bfc;
use super::grow::GrowTicket;
use super::index::{AddressIndex, NoIndex};
use super::shrink::{LimitChange, ReleaseTicket};
use super::step::{Attempt, Step};
use crate::block::{Block, BlockAllocator, Grant, Request};
use crate::error::{AllocError, FreeRejected};
use crate::lane::{Epoch, Lane, Stamp};
use crate::stats::{PoolStats, Stats};
use crate::sub_allocator::SubAllocator;
use crate::sync::{Locked, Spin, Wait};

/// A BFC that grows from `S` and is shared by reference; `W` says how threads wait for its lock.
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
/// let allocator: BfcAllocator<_> = BfcAllocator::new(Bfc::new(config, &mut table)?, source);
/// let block = allocator.alloc(&Request::new(0x1800))?.block;
/// assert_eq!(allocator.stats().reserved_bytes, 0x2000);
/// allocator.free(block)?;
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
pub struct BfcAllocator<'t, S, I: AddressIndex = NoIndex, W: Wait = Spin> {
    bfc: Locked<Bfc<'t, I>, W>,
    source: S,
}

impl<'t, S: SubAllocator, I: AddressIndex, W: Wait> BfcAllocator<'t, S, I, W> {
    /// Drives `bfc` over `source`.
    pub fn new(bfc: Bfc<'t, I>, source: S) -> Self {
        Self {
            bfc: Locked::new(bfc),
            source,
        }
    }

    /// The sub-allocator.
    pub const fn source(&self) -> &S {
        &self.source
    }

    /// Runs `f` with the algorithm under the lock, for reports, dumps and look-ups. `f` must not
    /// use this allocator.
    pub fn with<R>(&self, f: impl FnOnce(&mut Bfc<'t, I>) -> R) -> R {
        self.bfc.with(f)
    }

    /// The algorithm, for whoever owns the allocator exclusively: no locking.
    pub fn get_mut(&mut self) -> &mut Bfc<'t, I> {
        self.bfc.get_mut()
    }

    /// The epochs of a lane up to this one are completed; see [`Bfc::complete`].
    pub fn complete(&self, lane: Lane, epoch: Epoch) {
        self.bfc.with(|bfc| bfc.complete(lane, epoch));
    }

    /// How far the limit could be lowered now.
    pub fn pool_stats(&self) -> PoolStats {
        self.bfc.with(Bfc::pool_stats)
    }

    /// Sets the limit and gives back what that needs and what is free. Nothing is granted above
    /// it from the start of this call on. The answer says what stays above it for now.
    ///
    /// What could not go back is given by the next [`adjust`](Self::adjust) or
    /// [`trim`](Self::trim). One sub-allocator call per range released.
    pub fn adjust(&self, limit_bytes: u64) -> LimitChange {
        let change = self.bfc.with(|bfc| bfc.set_limit(limit_bytes));
        if change.excess_bytes == 0 {
            return change;
        }
        while self.release(|bfc| bfc.excess_bytes()) {}
        self.bfc.with(|bfc| {
            let limit_bytes = bfc.end_shrink();
            LimitChange {
                limit_bytes,
                excess_bytes: bfc.excess_bytes(),
            }
        })
    }

    /// Gives everything back that is free in whole regions or units at the end of the range.
    /// Returns the bytes given.
    pub fn trim(&self) -> u64 {
        let before = self.stats().reserved_bytes;
        while self.release(|_| u64::MAX) {}
        before.saturating_sub(self.stats().reserved_bytes)
    }

    /// Releases one range towards what `wanted` says; whether there was one and it went.
    fn release(&self, wanted: impl Fn(&Bfc<'t, I>) -> u64) -> bool {
        let ticket = self.bfc.with(|bfc| {
            let wanted = wanted(bfc);
            bfc.take_releasable(wanted)
        });
        let Some(ticket) = ticket else {
            return false;
        };
        self.give_back(ticket)
    }

    /// Gives a range to the sub-allocator; whether it took it.
    fn give_back(&self, ticket: ReleaseTicket) -> bool {
        let outcome = self.source.release(ticket.range());
        self.bfc.with(|bfc| match outcome {
            Ok(()) => bfc.released(ticket),
            Err(_) => bfc.release_refused(ticket),
        });
        outcome.is_ok()
    }

    /// The slow way: steps until done.
    #[cold]
    fn drive(&self, request: &Request) -> Result<Grant, AllocError> {
        let mut attempt = Attempt::new(*request);
        loop {
            match self.bfc.with(|bfc| bfc.step(&mut attempt)) {
                Step::Ready(grant) => return Ok(grant),
                Step::Failed(error) => return Err(error),
                Step::Grow(ticket) => self.grow(&mut attempt, ticket),
                Step::Release(ticket) => {
                    if !self.give_back(ticket) {
                        attempt.stop_collecting();
                    }
                }
            }
        }
    }

    /// Asks the sub-allocator for the ticket's memory, and for less as long as that helps.
    fn grow(&self, attempt: &mut Attempt, mut ticket: GrowTicket) {
        loop {
            if let Ok(range) = self.source.grow(ticket.request()) {
                if let Err(rejected) = self.bfc.with(|bfc| bfc.commit(ticket, range)) {
                    attempt.growth_rejected(rejected.error);
                    // A range that is not taken back is the sub-allocator's loss; it was told.
                    self.source.release(rejected.range).ok();
                }
                return;
            }
            match self.bfc.with(|bfc| bfc.growth_refused(attempt, ticket)) {
                Some(smaller) => ticket = smaller,
                None => return,
            }
        }
    }
}

impl<S: SubAllocator, I: AddressIndex, W: Wait> BlockAllocator for BfcAllocator<'_, S, I, W> {
    /// O(1) while held memory serves; see [`Bfc::alloc`] and [`Bfc::step`].
    fn alloc(&self, request: &Request) -> Result<Grant, AllocError> {
        match self.bfc.with(|bfc| bfc.alloc_now(request))? {
            Some(grant) => Ok(grant),
            None => self.drive(request),
        }
    }

    fn free(&self, block: Block) -> Result<(), FreeRejected> {
        self.bfc.with(|bfc| bfc.free(block))
    }

    fn free_after(&self, block: Block, stamp: Stamp) -> Result<(), FreeRejected> {
        self.bfc.with(|bfc| bfc.free_after(block, stamp))
    }

    fn requested_bytes(&self, block: &Block) -> Option<u64> {
        self.bfc.with(|bfc| bfc.requested_bytes(block))
    }

    fn allocation_id(&self, block: &Block) -> Option<u64> {
        self.bfc.with(|bfc| bfc.allocation_id(block))
    }

    fn stats(&self) -> Stats {
        self.bfc.with(|bfc| bfc.stats())
    }
}
