//! The calls that a [`RegionPool`]'s plans ask for, made to a sub-allocator without the pool's lock.

use super::grow::GrowTicket;
use super::grow_behind::{Placed, ResizeStep};
use super::grow_or_collect::RegionAttempt;
use super::shrink::ReleaseTicket;
use super::{RegionPlan, RegionPool};
use crate::best_fit::BestFit;
use crate::block::{Block, Grant, Resize};
use crate::error::{RegionError, Rejected, ResizeError};
use crate::shared::{Shared, Source};
use crate::sub_allocator::SubAllocator;
use crate::sync::{Locked, Wait};
use crate::units::AddrRange;

impl<'t, S: SubAllocator> Source<RegionPool<'t>> for S {
    fn carry_out<W: Wait>(
        &self,
        pool: &Locked<RegionPool<'t>, W>,
        attempt: &mut RegionAttempt,
        plan: RegionPlan,
    ) -> Option<Grant> {
        match plan {
            RegionPlan::Grow(ticket) => grow(pool, self, attempt, ticket),
            RegionPlan::Release(ticket) => {
                give_back(pool, self, ticket);
            }
        }
        None
    }

    fn release_excess<W: Wait>(&self, pool: &Locked<RegionPool<'t>, W>) -> u64 {
        pool.with(RegionPool::forget_refusals);
        while release_one(pool, self, |pool| pool.excess_bytes()).is_some() {}
        pool.with(|pool| pool.excess_bytes())
    }
}

/// Asks the sub-allocator for the ticket's memory, and for less as long as that helps.
fn grow<W: Wait>(
    pool: &Locked<RegionPool<'_>, W>,
    source: &impl SubAllocator,
    attempt: &mut RegionAttempt,
    mut ticket: GrowTicket,
) {
    loop {
        if let Ok(range) = source.grow(ticket.request()) {
            if let Err(rejected) = pool.with(|pool| pool.commit(ticket, range)) {
                attempt.growth_rejected(rejected.error);
                release_rejected(source, rejected);
            }
            return;
        }
        match pool.with(|pool| pool.growth_refused(attempt, ticket)) {
            Some(smaller) => ticket = smaller,
            None => return,
        }
    }
}

/// Changes a block's size in place, asking the sub-allocator once for what is missing behind it.
fn resize<W: Wait>(
    pool: &Locked<RegionPool<'_>, W>,
    source: &impl SubAllocator,
    block: Block,
    to: &Resize,
) -> Result<Block, Rejected<ResizeError>> {
    match pool.with(|pool| pool.resize_or_grow(block, to)) {
        ResizeStep::Done(done) => done,
        ResizeStep::Grow(ticket, block) => grow_behind(pool, source, ticket, block, to),
    }
}

#[cold]
fn grow_behind<W: Wait>(
    pool: &Locked<RegionPool<'_>, W>,
    source: &impl SubAllocator,
    mut ticket: GrowTicket,
    block: Block,
    to: &Resize,
) -> Result<Block, Rejected<ResizeError>> {
    let range = loop {
        if let Ok(range) = source.grow(ticket.request()) {
            break range;
        }
        match pool.with(|pool| pool.retry_smaller(ticket)) {
            Some(smaller) => ticket = smaller,
            // Others may have freed something meanwhile.
            None => return pool.with(|pool| pool.resize(block, *to)),
        }
    };
    let committed = match pool.with(|pool| pool.commit_behind(ticket, range, block, to)) {
        Placed::Committed(committed) => committed,
        Placed::Elsewhere(ticket, block) => {
            if source.release(range).is_ok() {
                return pool.with(|pool| {
                    pool.abort(ticket);
                    pool.resize(block, *to)
                });
            }
            // Not taken back, so it is held for others.
            pool.with(|pool| pool.commit_and_resize(ticket, range, block, to))
        }
    };
    if let Some(rejected) = committed.rejected {
        release_rejected(source, rejected);
    }
    committed.result
}

/// Gives a range back that could not be held. Giving an overlapping one back would take memory from
/// under live blocks. Any other that is not taken back is the sub-allocator's loss: it was told.
fn release_rejected(source: &impl SubAllocator, rejected: Rejected<RegionError, AddrRange>) {
    if rejected.error != RegionError::Overlap {
        source.release(rejected.value).ok();
    }
}

/// Gives a range to the sub-allocator, or learns that it does not take it. Returns the bytes taken.
fn give_back<W: Wait>(
    pool: &Locked<RegionPool<'_>, W>,
    source: &impl SubAllocator,
    ticket: ReleaseTicket,
) -> u64 {
    let range = ticket.range();
    if source.release(range).is_ok() {
        pool.with(|pool| pool.released(ticket));
        return range.bytes();
    }
    pool.with(|pool| pool.release_refused(ticket));
    0
}

/// Offers one range towards the bytes that `wanted` says: the bytes taken, or `None` if there was
/// nothing to offer.
fn release_one<W: Wait>(
    pool: &Locked<RegionPool<'_>, W>,
    source: &impl SubAllocator,
    wanted: impl Fn(&RegionPool<'_>) -> u64,
) -> Option<u64> {
    let ticket = pool.with(|pool| match (wanted(pool), source.takes_ends()) {
        (wanted, true) => pool.take_releasable(wanted),
        (wanted, false) => pool.take_releasable_region(wanted),
    })?;
    Some(give_back(pool, source, ticket))
}

/// Releases all that is free, but no more than was held at the start: others may grow as fast as
/// this releases. Returns the bytes.
fn trim<W: Wait>(pool: &Locked<RegionPool<'_>, W>, source: &impl SubAllocator) -> u64 {
    let before = pool.with(|pool| {
        pool.forget_refusals();
        pool.chunks.reserved_bytes()
    });
    let mut released = 0;
    while released < before {
        match release_one(pool, source, |_| u64::MAX) {
            Some(bytes) => released += bytes,
            None => break,
        }
    }
    released
}

impl<S: SubAllocator, W: Wait> Shared<RegionPool<'_>, S, W> {
    /// Gives the block another size without moving it, as [`BestFit::resize`]; if the block is the last of
    /// the growing range, or only free memory lies behind it, what is missing is got from the source. One
    /// sub-allocator call, or two if it refuses the first.
    ///
    /// The block is the caller's throughout, so no other thread can take it or what it has meanwhile; memory
    /// behind it may go to whoever is faster.
    ///
    /// # Errors
    /// Gives the block back as it was; see [`ResizeError`]. Memory that the source gave elsewhere goes back
    /// to it, or is held if it does not take it.
    pub fn resize(
        &self,
        block: Block,
        to: impl Into<Resize>,
    ) -> Result<Block, Rejected<ResizeError>> {
        resize(&self.pool, &self.source, block, &to.into())
    }

    /// Gives everything back that is free in whole regions or units at the end of the range, regions added by
    /// hand included. Returns the bytes given.
    pub fn trim(&self) -> u64 {
        trim(&self.pool, &self.source)
    }
}
