//! What stands behind the chunks: ranges of a sub-allocator ([`Regions`]), or pages that a driver maps
//! ([`Paged`](super::paged::Paged)). And [`Progress`], one transition of an allocation over either.
//!
//! An allocation that nothing held serves is a loop ([`drive`](super::drive)): under the lock
//! [`Bfc::advance`] gives a plan, without it the calls of the plan are made, and [`Bfc::advance`] goes on.

use super::Bfc;
use super::check::Violation;
use super::drive::Reach;
use super::grow::GrowTicket;
use super::grow_or_collect::Attempt;
use super::report::ChunkInfo;
use super::shrink::ReleaseTicket;
use crate::block::{Grant, Request};
use crate::error::AllocError;
use crate::stats::PoolStats;

/// What an allocation comes to.
#[derive(Debug)]
#[must_use]
pub enum Progress<P> {
    /// Done: the block.
    Ready(Grant),
    /// Calls are to be made, those of the plan; then [`Bfc::advance`] again.
    Plan(P),
    /// Done: there is no memory.
    Failed(AllocError),
}

/// What stands behind the chunks of a [`Bfc`]: [`Regions`] or [`Paged`](super::paged::Paged). No other
/// crate has one of its own: the methods are the core's.
pub trait Memory: Sized {
    /// How far one allocation has come. Belongs to the thread that allocates.
    type Attempt: From<Request>;
    /// Calls to make, and leave to make them.
    type Plan;

    /// Whether a free chunk may have no memory behind some of it.
    #[doc(hidden)]
    const HOLLOW: bool = false;

    /// See [`Bfc::advance`].
    #[doc(hidden)]
    fn advance(bfc: &mut Bfc<'_, Self>, attempt: &mut Self::Attempt) -> Progress<Self::Plan>;

    /// A block of so many bytes came back.
    #[doc(hidden)]
    #[inline(always)]
    fn note_freed(&mut self, bytes: u64) {
        let _ = bytes;
    }

    /// See [`Bfc::pool_stats`].
    #[doc(hidden)]
    fn pool_stats(bfc: &mut Bfc<'_, Self>) -> PoolStats;

    /// Whether memory stands behind these granules of a region, for chunks that may lack some.
    #[doc(hidden)]
    fn is_backed(bfc: &Bfc<'_, Self>, start: u32, end: u32) -> bool {
        let _ = (bfc, start, end);
        true
    }

    /// Calls `f` with what a chunk is, a piece at a time.
    #[doc(hidden)]
    fn for_each_piece(bfc: &Bfc<'_, Self>, chunk: ChunkInfo, f: &mut impl FnMut(ChunkInfo)) {
        let _ = bfc;
        f(chunk);
    }

    /// Walks the invariants that are this memory's own.
    #[doc(hidden)]
    fn check(bfc: &Bfc<'_, Self>) -> Result<(), Violation> {
        let _ = bfc;
        Ok(())
    }
}

/// Makes the calls of plans: whoever is a [`SubAllocator`](crate::SubAllocator) for [`Regions`], a
/// [`PageDriver`](super::paged::PageDriver) for [`Paged`](super::paged::Paged).
pub trait Source<M: Memory> {
    /// Makes the calls of a plan, none of them under a lock, and reports each. The block, if the plan
    /// itself has it.
    #[doc(hidden)]
    fn carry_out<'t>(
        &self,
        bfc: &mut impl Reach<Bfc<'t, M>>,
        attempt: &mut M::Attempt,
        plan: M::Plan,
    ) -> Option<Grant>;

    /// Gives back what is idle of the bytes held above the limit. Returns the bytes that stay above it.
    #[doc(hidden)]
    fn release_excess<'t>(&self, bfc: &mut impl Reach<Bfc<'t, M>>) -> u64;
}

/// Ranges of a [`SubAllocator`](crate::SubAllocator), got and given back as a whole or at an end.
#[derive(Debug)]
pub struct Regions;

/// One call to a sub-allocator.
#[derive(Debug)]
pub enum RegionPlan {
    /// Ask for memory, then [`Bfc::commit`], or [`Bfc::growth_refused`].
    Grow(GrowTicket),
    /// Give memory back, then [`Bfc::released`] or [`Bfc::release_refused`].
    Release(ReleaseTicket),
}

impl Memory for Regions {
    type Attempt = Attempt;
    type Plan = RegionPlan;

    fn advance(bfc: &mut Bfc<'_>, attempt: &mut Attempt) -> Progress<RegionPlan> {
        bfc.step_regions(attempt)
    }

    fn pool_stats(bfc: &mut Bfc<'_>) -> PoolStats {
        bfc.pool_stats_of_regions()
    }
}

impl<M: Memory> Bfc<'_, M> {
    /// Goes on with an allocation until it is done or needs calls.
    ///
    /// Cost as [`alloc`](Self::alloc); O(chunks) when memory is short.
    pub fn advance(&mut self, attempt: &mut M::Attempt) -> Progress<M::Plan> {
        M::advance(self, attempt)
    }

    /// How far the limit could be lowered now: what is held, and what of it cannot go back because a
    /// block, queued work or a pin uses it. Of regions that means whole ones, and units at the free end
    /// of the newest; of pages, handles. O(chunks).
    pub fn pool_stats(&mut self) -> PoolStats {
        M::pool_stats(self)
    }
}
