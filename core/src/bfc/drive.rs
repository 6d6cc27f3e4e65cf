//! The thin loops between the algorithm and whoever makes its calls.
//!
//! Generic over how the algorithm is reached: exclusively, or through a lock that is let go
//! before each call. [`Bfc`]'s own methods and [`BfcAllocator`](super::BfcAllocator)
//! are these loops with one or the other.

use super::Bfc;
use super::grow::GrowTicket;
use super::grow_or_collect::Attempt;
use super::memory::{Memory, Progress, RegionPlan, Regions, Source};
use super::resize::{Placed, ResizeStep};
use super::shrink::ReleaseTicket;
use crate::block::{Block, Grant, Request, Resize};
use crate::error::{AllocError, RegionError, Rejected, ResizeError};
use crate::sub_allocator::SubAllocator;
use crate::sync::{Locked, Wait};
use crate::units::AddrRange;

/// A way to an algorithm, for a few lines at a time.
pub trait Reach<A> {
    /// Runs `f` with the algorithm.
    fn reach<R>(&mut self, f: impl FnOnce(&mut A) -> R) -> R;
}

impl<A> Reach<A> for A {
    fn reach<R>(&mut self, f: impl FnOnce(&mut A) -> R) -> R {
        f(self)
    }
}

impl<A, W: Wait> Reach<A> for &Locked<A, W> {
    fn reach<R>(&mut self, f: impl FnOnce(&mut A) -> R) -> R {
        self.with(f)
    }
}

/// Goes on with one allocation until it is done.
#[cold]
pub(super) fn alloc<'t, M: Memory, S: Source<M>>(
    bfc: &mut impl Reach<Bfc<'t, M>>,
    source: &S,
    mut attempt: M::Attempt,
) -> Result<Grant, AllocError> {
    loop {
        match bfc.reach(|bfc| bfc.advance(&mut attempt)) {
            Progress::Ready(grant) => return Ok(grant),
            Progress::Failed(error) => return Err(error),
            Progress::Plan(plan) => {
                if let Some(grant) = source.carry_out(bfc, &mut attempt, plan) {
                    return Ok(grant);
                }
            }
        }
    }
}

impl<S: SubAllocator> Source<Regions> for S {
    fn carry_out<'t>(
        &self,
        bfc: &mut impl Reach<Bfc<'t>>,
        attempt: &mut Attempt,
        plan: RegionPlan,
    ) -> Option<Grant> {
        match plan {
            RegionPlan::Grow(ticket) => grow(bfc, self, attempt, ticket),
            RegionPlan::Release(ticket) => {
                give_back(bfc, self, ticket);
            }
        }
        None
    }

    fn release_excess<'t>(&self, bfc: &mut impl Reach<Bfc<'t>>) -> u64 {
        bfc.reach(Bfc::forget_refusals);
        while release_one(bfc, self, Bfc::excess_bytes).is_some() {}
        bfc.reach(|bfc| bfc.excess_bytes())
    }
}

/// Asks the sub-allocator for the ticket's memory, and for less as long as that helps.
fn grow<'t>(
    bfc: &mut impl Reach<Bfc<'t>>,
    source: &impl SubAllocator,
    attempt: &mut Attempt,
    mut ticket: GrowTicket,
) {
    loop {
        if let Ok(range) = source.grow(ticket.request()) {
            if let Err(rejected) = bfc.reach(|bfc| bfc.commit(ticket, range)) {
                attempt.growth_rejected(rejected.error);
                release_rejected(source, rejected);
            }
            return;
        }
        match bfc.reach(|bfc| bfc.growth_refused(attempt, ticket)) {
            Some(smaller) => ticket = smaller,
            None => return,
        }
    }
}

/// Changes a block's size in place, asking the sub-allocator once for what is missing behind it.
pub(super) fn resize<'t>(
    bfc: &mut impl Reach<Bfc<'t>>,
    source: &impl SubAllocator,
    block: Block,
    to: &Resize,
) -> Result<Block, Rejected<ResizeError>> {
    match bfc.reach(|bfc| bfc.resize_or_grow(block, to)) {
        ResizeStep::Done(done) => done,
        ResizeStep::Grow(ticket, block) => grow_behind(bfc, source, ticket, block, to),
    }
}

#[cold]
fn grow_behind<'t>(
    bfc: &mut impl Reach<Bfc<'t>>,
    source: &impl SubAllocator,
    mut ticket: GrowTicket,
    block: Block,
    to: &Resize,
) -> Result<Block, Rejected<ResizeError>> {
    let range = loop {
        if let Ok(range) = source.grow(ticket.request()) {
            break range;
        }
        match bfc.reach(|bfc| bfc.retry_smaller(ticket)) {
            Some(smaller) => ticket = smaller,
            // Others may have freed something meanwhile.
            None => return bfc.reach(|bfc| bfc.resize(block, *to)),
        }
    };
    let committed = match bfc.reach(|bfc| bfc.commit_behind(ticket, range, block, to)) {
        Placed::Committed(committed) => committed,
        Placed::Elsewhere(ticket, block) => {
            if source.release(range).is_ok() {
                return bfc.reach(|bfc| {
                    bfc.abort(ticket);
                    bfc.resize(block, *to)
                });
            }
            // Not taken back, so it is held for others.
            bfc.reach(|bfc| bfc.commit_and_resize(ticket, range, block, to))
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
fn give_back<'t>(
    bfc: &mut impl Reach<Bfc<'t>>,
    source: &impl SubAllocator,
    ticket: ReleaseTicket,
) -> u64 {
    let range = ticket.range();
    if source.release(range).is_ok() {
        bfc.reach(|bfc| bfc.released(ticket));
        return range.bytes();
    }
    bfc.reach(|bfc| bfc.release_refused(ticket));
    0
}

/// Offers one range towards the bytes that `wanted` says: the bytes taken, or `None` if there was
/// nothing to offer.
fn release_one<'t>(
    bfc: &mut impl Reach<Bfc<'t>>,
    source: &impl SubAllocator,
    wanted: impl Fn(&Bfc<'t>) -> u64,
) -> Option<u64> {
    let ticket = bfc.reach(|bfc| match (wanted(bfc), source.takes_ends()) {
        (wanted, true) => bfc.take_releasable(wanted),
        (wanted, false) => bfc.take_releasable_region(wanted),
    })?;
    Some(give_back(bfc, source, ticket))
}

/// Sets the limit and releases what is above it. Returns the bytes that stay above it for now.
pub(super) fn adjust<'t, M: Memory, S: Source<M>>(
    bfc: &mut impl Reach<Bfc<'t, M>>,
    source: &S,
    limit_bytes: u64,
) -> u64 {
    match bfc.reach(|bfc| bfc.set_limit(limit_bytes)) {
        0 => 0,
        _ => source.release_excess(bfc),
    }
}

/// Releases all that is free, but no more than was held at the start: others may grow as fast as
/// this releases. Returns the bytes.
pub(super) fn trim<'t>(bfc: &mut impl Reach<Bfc<'t>>, source: &impl SubAllocator) -> u64 {
    let before = bfc.reach(|bfc| {
        bfc.forget_refusals();
        bfc.reserved_bytes()
    });
    let mut released = 0;
    while released < before {
        match release_one(bfc, source, |_| u64::MAX) {
            Some(bytes) => released += bytes,
            None => break,
        }
    }
    released
}

impl<M: Memory> Bfc<'_, M> {
    /// Gives memory; where nothing held serves, `source` makes the calls. Cost as
    /// [`alloc`](Self::alloc) while something held serves.
    ///
    /// # Errors
    /// [`AllocError`]. No block has been given then and every block is as before; on the way memory
    /// may have come from or gone back to `source`, and free chunks joined.
    #[inline]
    pub fn alloc_over(
        &mut self,
        source: &impl Source<M>,
        request: &Request,
    ) -> Result<Grant, AllocError> {
        let need = self.need(request)?;
        match self.search_now(need, request) {
            Some(found) => self.take(found, need, request),
            None => alloc(self, source, M::Attempt::from(*request)),
        }
    }

    /// Sets the limit and gives back to `source` what that needs and is free. Holds from the
    /// start of this call, as [`set_limit`](Self::set_limit). Returns the bytes that stay above it for
    /// now.
    ///
    /// What could not go back now goes with the next call. One sub-allocator call a range. Regions
    /// added by hand go to `source` too.
    pub fn adjust_over(&mut self, source: &impl Source<M>, limit_bytes: u64) -> u64 {
        adjust(self, source, limit_bytes)
    }
}

impl Bfc<'_> {
    /// Gives the block another size without moving it, as [`resize`](Self::resize); if the block is
    /// the last of the growing range, or only free memory lies behind it, what is missing is got
    /// from `source`. One sub-allocator call, or two if it refuses the first.
    ///
    /// # Errors
    /// Gives the block back as it was; see [`ResizeError`]. Memory that
    /// `source` gave elsewhere goes back to it, or is held if it does not take it.
    pub fn resize_over(
        &mut self,
        source: &impl SubAllocator,
        block: Block,
        to: impl Into<Resize>,
    ) -> Result<Block, Rejected<ResizeError>> {
        resize(self, source, block, &to.into())
    }

    /// Gives everything back to `source` that is free in whole regions or units at the end of the
    /// range, regions added by hand included. Returns the bytes given.
    pub fn trim_over(&mut self, source: &impl SubAllocator) -> u64 {
        trim(self, source)
    }
}
