//! The thin loops between plans and a driver, and [`PagedAllocator`]: the algorithm behind a lock.
//!
//! The lock is held for bookkeeping only; the driver is called without it. Several plans may be
//! under way at once: each owns what it touches.

use super::{PagePlan, PageStats, PageStep, PagedAttempt, PagedBfc, PagedStep};
use crate::bfc::LimitChange;
use crate::bfc::drive::Reach;
use crate::bfc::index::{AddressIndex, NoIndex};
use crate::block::{AllocatorId, Block, BlockAllocator, ChunkHandle, Grant, Request};
use crate::error::{AllocError, FreeError, FreeRejected};
use crate::stats::{PoolStats, Stats};
use crate::stream::{EventNumber, StreamId, StreamPoint};
use crate::sub_allocator::SubAllocError;
use crate::sync::{Locked, Spin, Wait};
use crate::units::{Addr, AddrRange};
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
    fn call(&self, step: PageStep) -> Result<(), SubAllocError>;
}

impl<D: PageDriver + ?Sized> PageDriver for &D {
    fn call(&self, step: PageStep) -> Result<(), SubAllocError> {
        (**self).call(step)
    }
}

static_assertions::assert_obj_safe!(PageDriver);

#[cold]
fn alloc<'t, I: AddressIndex>(
    paged: &mut impl Reach<PagedBfc<'t, I>>,
    driver: &impl PageDriver,
    mut attempt: PagedAttempt,
) -> Result<Grant, AllocError> {
    loop {
        match paged.reach(|paged| paged.step(&mut attempt)) {
            PagedStep::Ready(grant) => return Ok(grant),
            PagedStep::Failed(error) => return Err(error),
            PagedStep::Plan(mut plan) => {
                make_calls(paged, driver, &mut plan);
                let succeeded = plan.succeeded();
                match paged.reach(|paged| paged.finish(plan)) {
                    Some(grant) => return Ok(grant),
                    None if succeeded => {}
                    None => attempt.plan_failed(),
                }
            }
        }
    }
}

fn make_calls<'t, I: AddressIndex>(
    paged: &mut impl Reach<PagedBfc<'t, I>>,
    driver: &impl PageDriver,
    plan: &mut PagePlan,
) {
    let mut call = paged.reach(|paged| paged.next_step(plan));
    while let Some(step) = call {
        let outcome = driver.call(step);
        call = paged.reach(|paged| {
            match outcome {
                Ok(()) => paged.done(plan),
                Err(SubAllocError) => paged.refused(plan),
            }
            paged.next_step(plan)
        });
    }
}

/// Carries a plan out that gives memory back; gives the bytes.
fn give_back<'t, I: AddressIndex>(
    paged: &mut impl Reach<PagedBfc<'t, I>>,
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
struct Back {
    range: AddrRange,
    layout: AddrRange,
    /// No more is held for it.
    max_bytes: u64,
    /// The stream it is for, and what its queued work may use memory until; of no stream, what moves is
    /// used by none.
    point: Option<StreamPoint>,
}

impl Back {
    fn over<'t, I: AddressIndex>(
        &self,
        paged: &mut impl Reach<PagedBfc<'t, I>>,
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
    fn plan<I: AddressIndex>(
        &self,
        paged: &mut PagedBfc<'_, I>,
    ) -> Option<Vec<PagePlan, MAX_GAPS>> {
        if !paged.config.addresses.contains(self.range) {
            return None;
        }
        let limit = paged.bfc.limit_bytes;
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
    fn finish<I: AddressIndex>(&self, paged: &mut PagedBfc<'_, I>, plan: PagePlan) -> bool {
        let before = paged.bfc.counters;
        let Some(grant) = paged.finish(plan) else {
            return false;
        };
        let freed = match self.point {
            Some(point) => paged.bfc.free_after(grant.block, point),
            None => paged.bfc.free(grant.block),
        };
        debug_assert!(freed.is_ok(), "a block given just now");
        let counters = &mut paged.bfc.counters;
        counters.last_id = before.last_id;
        counters.peak_live = before.peak_live;
        counters.largest = before.largest;
        true
    }
}

impl<I: AddressIndex> PagedBfc<'_, I> {
    /// Gives memory, mapping and moving pages by `driver` if need be. Cost as
    /// [`alloc_now`](Self::alloc_now) while something mapped fits.
    ///
    /// # Errors
    /// [`AllocError`]. Every block is as before.
    #[inline]
    pub fn alloc_over(
        &mut self,
        driver: &impl PageDriver,
        request: &Request,
    ) -> Result<Grant, AllocError> {
        let need = self.bfc.need(request)?;
        match self.bfc.search_now(need, request) {
            Some(found) => self.bfc.take(found, need, request),
            None => alloc(self, driver, PagedAttempt::new(*request)),
        }
    }

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
        Ok(alloc(self, driver, PagedAttempt::at(range, near))?.block)
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
        let back = Back {
            range,
            layout,
            max_bytes,
            point,
        };
        back.over(self, driver)
    }

    /// Gives `bytes` of idle memory back, or what there is; gives the bytes. See
    /// [`plan_release`](Self::plan_release).
    pub fn release_over(&mut self, driver: &impl PageDriver, bytes: u64) -> u64 {
        let plan = self.plan_release(bytes);
        give_back(self, driver, plan)
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
pub struct PagedAllocator<'t, D, I: AddressIndex = NoIndex, W: Wait = Spin> {
    paged: Locked<PagedBfc<'t, I>, W>,
    driver: D,
    /// What its blocks carry, readable without the lock.
    id: AllocatorId,
}

impl<'t, D: PageDriver, I: AddressIndex> PagedAllocator<'t, D, I> {
    /// Drives `paged` by `driver`; threads spin for the lock.
    pub fn new(paged: PagedBfc<'t, I>, driver: D) -> Self {
        Self::with_wait(paged, driver)
    }
}

impl<'t, D: PageDriver, I: AddressIndex, W: Wait> PagedAllocator<'t, D, I, W> {
    /// Drives `paged` by `driver`; threads wait for the lock as `W` says.
    pub fn with_wait(paged: PagedBfc<'t, I>, driver: D) -> Self {
        Self {
            id: paged.id(),
            paged: Locked::new(paged),
            driver,
        }
    }

    /// Takes the allocator apart.
    pub fn into_parts(self) -> (PagedBfc<'t, I>, D) {
        (self.paged.into_inner(), self.driver)
    }

    /// The driver.
    pub const fn driver(&self) -> &D {
        &self.driver
    }

    /// Runs `f` with the algorithm under the lock. `f` must not use this allocator, nor put another
    /// [`PagedBfc`] in its place.
    pub fn with<R>(&self, f: impl FnOnce(&mut PagedBfc<'t, I>) -> R) -> R {
        self.paged.with(f)
    }

    /// Frees the block that starts at an address; see [`PagedBfc::free_addr`].
    ///
    /// # Errors
    /// [`FreeError::Unknown`] if no block starts there, or there is no index.
    pub fn free_addr(&self, addr: Addr) -> Result<u64, FreeError> {
        self.paged.with(|paged| paged.free_addr(addr))
    }

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
        Ok(alloc(&mut &self.paged, &self.driver, attempt)?.block)
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
        let back = Back {
            range,
            layout,
            max_bytes,
            point: Some(point),
        };
        back.over(&mut &self.paged, &self.driver)
    }

    /// Tells that the events of `stream` up to this one are completed.
    pub fn complete(&self, stream: StreamId, event: EventNumber) {
        self.paged.with(|paged| paged.complete(stream, event));
    }

    /// A step of the program ends; see [`PagedBfc::end_step`].
    pub fn end_step(&self) {
        self.paged.with(PagedBfc::end_step);
    }

    /// Sets the limit and gives back what is idle above it. What cannot go now goes with a later
    /// call.
    pub fn adjust(&self, limit_bytes: u64) -> LimitChange {
        let _ = self.paged.with(|paged| paged.set_limit(limit_bytes));
        LimitChange {
            limit_bytes,
            excess_bytes: self.release_excess(),
        }
    }

    /// Gives back what is idle of the bytes held above the limit, as little more as may be. Returns the
    /// bytes that stay above it for now.
    pub fn release_excess(&self) -> u64 {
        let plan = self
            .paged
            .with(|paged| paged.plan_release(paged.excess_bytes()));
        give_back(&mut &self.paged, &self.driver, plan);
        self.paged.with(|paged| paged.excess_bytes())
    }

    /// How far the limit could be lowered now; see [`PagedBfc::pool_stats`].
    pub fn pool_stats(&self) -> PoolStats {
        self.paged.with(PagedBfc::pool_stats)
    }

    /// Gives idle memory back; see [`PagedBfc::plan_release`]. Returns the bytes.
    pub fn release(&self, bytes: u64) -> u64 {
        let plan = self.paged.with(|paged| paged.plan_release(bytes));
        give_back(&mut &self.paged, &self.driver, plan)
    }

    /// Gives back what the last `steps` steps did not need. Returns the bytes.
    pub fn release_unneeded(&self, steps: usize) -> u64 {
        let plan = self.paged.with(|paged| paged.plan_release_unneeded(steps));
        give_back(&mut &self.paged, &self.driver, plan)
    }

    /// Counters of pages.
    pub fn page_stats(&self) -> PageStats {
        self.paged.with(PagedBfc::page_stats)
    }
}

impl<D: PageDriver, I: AddressIndex, W: Wait> BlockAllocator for PagedAllocator<'_, D, I, W> {
    /// O(1) while something mapped fits; see [`PagedBfc::step`].
    fn alloc(&self, request: &Request) -> Result<Grant, AllocError> {
        match self.paged.with(|paged| paged.alloc_now(request))? {
            Some(grant) => Ok(grant),
            None => alloc(&mut &self.paged, &self.driver, PagedAttempt::new(*request)),
        }
    }

    fn free(&self, block: Block) -> Result<(), FreeRejected> {
        self.paged.with(|paged| paged.free(block))
    }

    fn free_after(&self, block: Block, point: StreamPoint) -> Result<(), FreeRejected> {
        self.paged.with(|paged| paged.free_after(block, point))
    }

    fn requested_bytes(&self, block: &Block) -> Option<u64> {
        self.paged.with(|paged| paged.requested_bytes(block))
    }

    fn allocation_id(&self, block: &Block) -> Option<u64> {
        self.paged.with(|paged| paged.allocation_id(block))
    }

    /// O(1), without the lock.
    fn owns(&self, block: &Block) -> bool {
        block.is_of(self.id)
    }

    fn stats(&self) -> Stats {
        self.paged.with(|paged| paged.stats())
    }

    fn clear_stats(&self) {
        self.paged.with(PagedBfc::clear_stats);
    }
}
