//! The calls of plans, made by a driver, and what [`PagedAllocator`] has beyond a
//! [`BfcAllocator`] of regions.
//!
//! The lock is held for bookkeeping only; the driver is called without it. Several plans may be
//! under way at once: each owns what it touches.

use super::{Bfc, PageCall, PagePlan, PageStats, Paged, PagedAttempt, PagedBfc};
use crate::bfc::drive::{self, Reach};
use crate::bfc::{BfcAllocator, Source};
use crate::block::{Block, ChunkHandle, Grant};
use crate::error::AllocError;
use crate::stream::{StreamId, StreamPoint};
use crate::sub_allocator::SubAllocError;
use crate::sync::{Spin, Wait};
use crate::units::AddrRange;
use heapless::Vec;

/// Gaps that [`PagedBfc::back_over`] fills at most.
const MAX_GAPS: usize = 64;

/// Maps memory: a device's driver, or what stands in for one. Calls are rare and slow; several
/// threads may make them at once.
///
/// The allocator trusts that a call which answers `Ok` was made and one that answers an error was
/// not.
pub trait PageDriver {
    /// Makes one call.
    ///
    /// # Errors
    /// If the driver refused it; nothing has changed then.
    fn call(&self, call: PageCall) -> Result<(), SubAllocError>;
}

impl<D: PageDriver + ?Sized> PageDriver for &D {
    fn call(&self, call: PageCall) -> Result<(), SubAllocError> {
        (**self).call(call)
    }
}

static_assertions::assert_obj_safe!(PageDriver);

impl<'p, D: PageDriver> Source<Paged<'p>> for D {
    fn carry_out<'t>(
        &self,
        bfc: &mut impl Reach<Bfc<'t, Paged<'p>>>,
        attempt: &mut PagedAttempt,
        mut plan: PagePlan,
    ) -> Option<Grant> {
        make_calls(bfc, self, &mut plan);
        let succeeded = plan.succeeded();
        let grant = bfc.reach(|bfc| bfc.finish(plan));
        if grant.is_none() && !succeeded {
            attempt.plan_failed();
        }
        grant
    }

    fn release_excess<'t>(&self, bfc: &mut impl Reach<Bfc<'t, Paged<'p>>>) -> u64 {
        let excess = bfc.reach(|bfc| bfc.excess_bytes());
        release(bfc, self, excess);
        bfc.reach(|bfc| bfc.excess_bytes())
    }
}

fn make_calls<'t, 'p>(
    paged: &mut impl Reach<Bfc<'t, Paged<'p>>>,
    driver: &impl PageDriver,
    plan: &mut PagePlan,
) {
    let mut next = paged.reach(|paged| paged.next_call(plan));
    while let Some(call) = next {
        let outcome = driver.call(call);
        next = paged.reach(|paged| {
            match outcome {
                Ok(()) => paged.done(plan),
                Err(SubAllocError) => paged.refused(plan),
            }
            paged.next_call(plan)
        });
    }
}

/// Gives idle memory back, in as many plans as that takes, so that no search is long. If there is not as much as is
/// wanted, cached mappings go too. Gives the bytes.
fn release<'t, 'p>(
    paged: &mut impl Reach<Bfc<'t, Paged<'p>>>,
    driver: &impl PageDriver,
    wanted_bytes: u64,
) -> u64 {
    let mut bytes = 0;
    while bytes < wanted_bytes {
        let plan = paged.reach(|paged| paged.plan_release(wanted_bytes - bytes));
        let more = give_back(paged, driver, plan);
        if more == 0 {
            let mut left = paged.reach(|paged| paged.searches_for_cached());
            while left > 0 {
                let plan = paged.reach(|paged| paged.plan_forgetting());
                give_back(paged, driver, plan);
                left -= 1;
            }
            break;
        }
        bytes += more;
    }
    bytes
}

/// Carries a plan out that gives memory back; gives the bytes.
fn give_back<'t, 'p>(
    paged: &mut impl Reach<Bfc<'t, Paged<'p>>>,
    driver: &impl PageDriver,
    plan: Option<PagePlan>,
) -> u64 {
    let Some(mut plan) = plan else { return 0 };
    make_calls(paged, driver, &mut plan);
    let bytes = plan.released_bytes();
    paged.reach(|paged| paged.finish(plan));
    bytes
}

/// Memory to be put behind a range of a layout.
struct LayoutBacking {
    range: AddrRange,
    layout: AddrRange,
    /// No more is held for it.
    max_bytes: u64,
    /// The stream it is for, and what its queued work may use memory until; of no stream, what moves is
    /// used by none.
    point: Option<StreamPoint>,
}

impl LayoutBacking {
    fn over<'t, 'p>(
        &self,
        paged: &mut impl Reach<Bfc<'t, Paged<'p>>>,
        driver: &impl PageDriver,
    ) -> bool {
        let Some(plans) = paged.reach(|paged| self.plan(paged)) else {
            return false;
        };
        let mut mapped = true;
        for mut plan in plans {
            if mapped {
                make_calls(paged, driver, &mut plan);
                mapped = paged.reach(|paged| self.finish(paged, plan));
            } else {
                paged.reach(|paged| paged.abandon(plan));
            }
        }
        mapped
    }

    /// All plans are made before the first call, so that nothing has moved if one cannot be made.
    fn plan(&self, paged: &mut Bfc<'_, Paged<'_>>) -> Option<Vec<PagePlan, MAX_GAPS>> {
        if !paged.memory.config.addresses.contains(self.range) {
            return None;
        }
        let limit = paged.limit_bytes;
        paged.set_limit(limit.min(self.max_bytes));
        let mut plans: Vec<PagePlan, MAX_GAPS> = Vec::new();
        let stream = self.point.map(|point| point.stream);
        let mut from = self.range.start();
        let mut planned = true;
        while planned
            && let Some(rest) =
                AddrRange::new(from, self.range.end().get().saturating_sub(from.get()))
            && let Some(unmapped) = paged.first_unmapped(rest)
        {
            from = unmapped.end();
            planned = match paged.plan_backing(unmapped, self.layout, stream) {
                Some(plan) => plans.push(plan).map_err(|plan| paged.abandon(plan)).is_ok(),
                None => false,
            };
        }
        if !planned {
            plans.drain(..).for_each(|plan| paged.abandon(plan));
        }
        paged.set_limit(limit);
        planned.then_some(plans)
    }

    /// The block that stood in for those to come is nobody's: it is free again, and was never counted.
    fn finish(&self, paged: &mut Bfc<'_, Paged<'_>>, plan: PagePlan) -> bool {
        let (before, freed_bytes) = (paged.counters, paged.memory.freed_bytes);
        let Some(grant) = paged.finish(plan) else {
            return false;
        };
        let freed = match self.point {
            Some(point) => paged.free_after(grant.block, point),
            None => paged.free(grant.block),
        };
        debug_assert!(freed.is_ok(), "a block given just now");
        paged.memory.freed_bytes = freed_bytes;
        let counters = &mut paged.counters;
        counters.last_id = before.last_id;
        counters.peak_live = before.peak_live;
        counters.largest = before.largest;
        true
    }
}

impl Bfc<'_, Paged<'_>> {
    /// Gives the block at exactly this place, mapping and moving pages by `driver` if need be; see
    /// [`PagedAttempt::at`].
    ///
    /// # Errors
    /// [`AllocError::PlaceTaken`] if some of the place is in use, and as
    /// [`alloc_over`](Self::alloc_over).
    pub fn alloc_at_over(
        &mut self,
        driver: &impl PageDriver,
        range: AddrRange,
        near: Option<ChunkHandle>,
    ) -> Result<Block, AllocError> {
        Ok(drive::alloc(self, driver, PagedAttempt::at(range, near))?.block)
    }

    /// Puts memory behind the unmapped addresses of a range, for blocks that will come; idle pages
    /// outside of `layout` move first, as for a block, and no more than `max_bytes` are held for it.
    /// Whether all of it is there then; never for a range that is not all inside the addresses. No
    /// block is counted. O(chunks) and the calls.
    ///
    /// With a point, the blocks will come on its stream, and memory may move that only this stream's work
    /// uses, up to that event.
    pub fn back_over(
        &mut self,
        driver: &impl PageDriver,
        range: AddrRange,
        layout: AddrRange,
        max_bytes: u64,
        point: Option<StreamPoint>,
    ) -> bool {
        let back = LayoutBacking {
            range,
            layout,
            max_bytes,
            point,
        };
        back.over(self, driver)
    }

    /// Gives `bytes` of idle memory back, or what there is; then the old mappings of what moved go too. Gives the
    /// bytes. See [`plan_release`](Self::plan_release).
    pub fn release_over(&mut self, driver: &impl PageDriver, bytes: u64) -> u64 {
        release(self, driver, bytes)
    }

    /// Gives back what the last `steps` steps did not need; see
    /// [`plan_release_unneeded`](Self::plan_release_unneeded).
    pub fn release_unneeded_over(&mut self, driver: &impl PageDriver, steps: usize) -> u64 {
        let plan = self.plan_release_unneeded(steps);
        give_back(self, driver, plan)
    }
}

/// A [`PagedBfc`] that is shared by reference and calls `D`; `W` says how threads wait for its
/// lock.
///
/// Dropping it gives nothing back to the driver, because blocks may still be in use: free them and
/// [`release`](Self::release) first.
pub type PagedAllocator<'t, D, W = Spin> = BfcAllocator<'t, D, W, Paged<'t>>;

impl<D: PageDriver, W: Wait> PagedAllocator<'_, D, W> {
    /// Gives the block at exactly this place for use on a stream, mapping and moving pages if need be;
    /// see [`PagedAttempt::at_on`].
    ///
    /// # Errors
    /// [`AllocError::PlaceTaken`] if some of the place is in use, and as for any block.
    pub fn alloc_at(
        &self,
        range: AddrRange,
        near: Option<ChunkHandle>,
        stream: StreamId,
    ) -> Result<Block, AllocError> {
        let attempt = PagedAttempt::at_on(range, near, stream);
        Ok(drive::alloc(&mut &self.bfc, &self.source, attempt)?.block)
    }

    /// Puts memory behind the unmapped addresses of a range, for blocks that will come on a stream; see
    /// [`PagedBfc::back_over`]. Memory that the stream's queued work uses until `point` may move.
    pub fn back(
        &self,
        range: AddrRange,
        layout: AddrRange,
        max_bytes: u64,
        point: StreamPoint,
    ) -> bool {
        let back = LayoutBacking {
            range,
            layout,
            max_bytes,
            point: Some(point),
        };
        back.over(&mut &self.bfc, &self.source)
    }

    /// A step of the program ends; see [`PagedBfc::end_step`].
    pub fn end_step(&self) {
        self.bfc.with(PagedBfc::end_step);
    }

    /// Gives idle memory back; see [`PagedBfc::plan_release`]. Returns the bytes.
    pub fn release(&self, bytes: u64) -> u64 {
        release(&mut &self.bfc, &self.source, bytes)
    }

    /// Counters of pages.
    pub fn page_stats(&self) -> PageStats {
        self.bfc.with(PagedBfc::page_stats)
    }
}
