//! Carries out the plans of a [`RegionPool`]: calls the sub-allocator while the pool's lock is not held.

use super::grow::GrowTicket;
use super::grow_behind::{Placed, ResizeStep};
use super::grow_or_collect::RegionAttempt;
use super::{RegionPlan, RegionPool};
use crate::best_fit::BestFit;
use crate::block::{Block, Grant, Resize};
use crate::engine::ReleaseTicket;
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

/// Requests the ticket's memory from the sub-allocator. If it refuses, requests less, as long as that would help.
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

/// Resizes a block in place. If there is no room, memory after the block is requested from the sub-allocator.
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
            // Another thread may have freed memory after the block meanwhile.
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
            // The sub-allocator did not take the range back, so the pool holds it for other requests.
            pool.with(|pool| pool.commit_and_resize(ticket, range, block, to))
        }
    };
    if let Some(rejected) = committed.rejected {
        release_rejected(source, rejected);
    }
    committed.result
}

/// Releases a range that could not be accepted. A range that overlaps held memory is not released, because live blocks
/// may lie in it. If the sub-allocator refuses to take the range back, accounting for it is up to the sub-allocator.
fn release_rejected(source: &impl SubAllocator, rejected: Rejected<RegionError, AddrRange>) {
    if rejected.error != RegionError::Overlap {
        source.release(rejected.value).ok();
    }
}

/// Releases the ticket's range to the sub-allocator, and reports the outcome to the pool. Returns the bytes that were
/// taken back.
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

/// Offers the sub-allocator one range, to release some of the bytes that `wanted` returns. Returns the bytes that were
/// taken back, or `None` if there was nothing to offer.
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

/// Releases all free memory, but no more than was held at the start, because other threads may grow the pool as fast as
/// this thread releases memory. Returns the bytes released.
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
    /// Resizes the block without moving it, as [`BestFit::resize`] does. If the block is the last of the growing range,
    /// or only free memory lies after it, missing memory is requested from the source. The source gets one request, or
    /// two if it refuses the first.
    ///
    /// The block stays with the caller, so no other thread can take it or its contents. Free memory after it goes to
    /// the thread that is first.
    ///
    /// # Errors
    /// Returns the block unchanged; see [`ResizeError`]. A range from the source that lies elsewhere is released, or
    /// held if the source does not take it back.
    pub fn resize(
        &self,
        block: Block,
        to: impl Into<Resize>,
    ) -> Result<Block, Rejected<ResizeError>> {
        resize(&self.pool, &self.source, block, &to.into())
    }

    /// Releases all free memory that forms whole regions, including regions added by hand, or units at the end of the
    /// range. Returns the bytes released.
    pub fn trim(&self) -> u64 {
        trim(&self.pool, &self.source)
    }
}
