//! Makes the calls of plans on a driver, without the pool's lock, and adds methods for pages to [`Shared`].
//!
//! Several plans may be under way at the same time, because each plan owns the records that it touches.

use super::{AddressReservation, PageAttempt, PageCall, PagePlan, PagePool, PageStats};
use crate::best_fit::BestFit;
use crate::block::{Block, ChunkHandle, Grant};
use crate::error::AllocError;
use crate::shared::{Shared, Source};
use crate::stream::{StreamId, StreamPoint};
use crate::sub_allocator::SubAllocError;
use crate::sync::{Locked, Wait};
use crate::units::AddrRange;

/// A device's driver, or a substitute, which creates and maps memory. Calls are rare and slow, and several threads may
/// make them at the same time.
///
/// The allocator trusts that a call that returns `Ok` was made, and that a call that returns an error was not.
pub trait PageDriver {
    /// Makes one call.
    ///
    /// # Errors
    /// If the driver refused the call; nothing has changed then.
    fn call(&self, call: PageCall) -> Result<(), SubAllocError>;
}

impl<D: PageDriver + ?Sized> PageDriver for &D {
    fn call(&self, call: PageCall) -> Result<(), SubAllocError> {
        (**self).call(call)
    }
}

static_assertions::assert_obj_safe!(PageDriver);

impl<'t, D: PageDriver> Source<PagePool<'t>> for D {
    fn carry_out<W: Wait>(
        &self,
        pool: &Locked<PagePool<'t>, W>,
        attempt: &mut PageAttempt,
        mut plan: PagePlan,
    ) -> Option<Grant> {
        make_calls(pool, self, &mut plan);
        let succeeded = plan.succeeded();
        let grant = pool.with(|pool| pool.finish(plan));
        if grant.is_none() && !succeeded {
            attempt.plan_failed();
        }
        grant
    }

    fn release_excess<W: Wait>(&self, pool: &Locked<PagePool<'t>, W>) -> u64 {
        let excess = pool.with(|pool| pool.excess_bytes());
        release(pool, self, excess);
        pool.with(|pool| pool.excess_bytes())
    }
}

fn make_calls<W: Wait>(
    pool: &Locked<PagePool<'_>, W>,
    driver: &impl PageDriver,
    plan: &mut PagePlan,
) {
    let mut next = pool.with(|pool| pool.next_call(plan));
    while let Some(call) = next {
        let outcome = driver.call(call);
        next = pool.with(|pool| {
            match outcome {
                Ok(()) => pool.done(plan),
                Err(SubAllocError) => pool.refused(plan),
            }
            pool.next_call(plan)
        });
    }
}

/// Releases idle memory, and returns the bytes released. Several plans may be needed, because each search is bounded.
/// If there is less idle memory than `wanted_bytes`, cached mappings are also unmapped.
fn release<W: Wait>(
    pool: &Locked<PagePool<'_>, W>,
    driver: &impl PageDriver,
    wanted_bytes: u64,
) -> u64 {
    let mut bytes = 0;
    while bytes < wanted_bytes {
        let plan = pool.with(|pool| pool.plan_release(wanted_bytes - bytes));
        let more = give_back(pool, driver, plan);
        if more == 0 {
            let mut left = pool.with(|pool| pool.searches_for_cached());
            while left > 0 {
                let plan = pool.with(PagePool::plan_forgetting);
                give_back(pool, driver, plan);
                left -= 1;
            }
            break;
        }
        bytes += more;
    }
    bytes
}

/// Carries out a plan that releases memory. Returns the bytes released.
fn give_back<W: Wait>(
    pool: &Locked<PagePool<'_>, W>,
    driver: &impl PageDriver,
    plan: Option<PagePlan>,
) -> u64 {
    let Some(mut plan) = plan else { return 0 };
    make_calls(pool, driver, &mut plan);
    let bytes = plan.released_bytes();
    pool.with(|pool| pool.finish(plan));
    bytes
}

impl<D: PageDriver, W: Wait> Shared<PagePool<'_>, D, W> {
    /// Allocates a block at exactly this place, and maps and moves pages if needed; see [`PageAttempt::at`].
    ///
    /// # Errors
    /// [`AllocError::PlaceTaken`] if a part of the place is in use, and the errors of any other allocation.
    pub fn alloc_at(
        &self,
        range: AddrRange,
        near: Option<ChunkHandle>,
        stream: Option<StreamId>,
    ) -> Result<Block, AllocError> {
        let attempt = PageAttempt::at(range, near, stream);
        Ok(self.finish(attempt)?.block)
    }

    /// Commits whole pages of reserved addresses: returns the block there, and the point of another stream that it must
    /// wait for; see [`PageAttempt::commit`].
    ///
    /// # Errors
    /// [`AllocError::PlaceTaken`] if these are no whole pages of the reservation without a block; otherwise the errors
    /// of any allocation.
    pub fn commit(
        &self,
        reservation: &AddressReservation,
        pages: AddrRange,
        stream: StreamId,
    ) -> Result<Grant, AllocError> {
        self.finish(PageAttempt::commit(reservation, pages, stream))
    }

    /// Puts memory behind the unmapped addresses of a range, for later blocks. Idle pages outside `layout` move there
    /// first, and new memory is created only while the pool holds at most `max_bytes`. If a point is given, the later
    /// blocks are for its stream, and memory that only this stream's work uses, up to the point's event, may move too.
    ///
    /// Returns whether all of the range now has memory, except reserved addresses. Returns `false` if a part of the range
    /// is outside the pool's addresses. O(chunks), plus the calls.
    pub fn back(
        &self,
        range: AddrRange,
        layout: AddrRange,
        max_bytes: u64,
        point: Option<StreamPoint>,
    ) -> bool {
        let plans = self
            .pool
            .with(|pool| pool.plan_backing(range, layout, max_bytes, point));
        let Some(plans) = plans else {
            return false;
        };
        let mut is_backed = true;
        for mut plan in plans {
            if is_backed {
                make_calls(&self.pool, &self.source, &mut plan);
                is_backed = plan.succeeded();
                self.pool.with(|pool| pool.finish(plan));
            } else {
                self.pool.with(|pool| pool.abandon(plan));
            }
        }
        is_backed
    }

    /// Releases `bytes` bytes of idle memory, and returns the bytes released. If there is less, all of it is released,
    /// and the cached mappings of moved pages are unmapped. See [`PagePool::plan_release`].
    pub fn release(&self, bytes: u64) -> u64 {
        release(&self.pool, &self.source, bytes)
    }

    /// Returns the counters of pages and handles.
    pub fn page_stats(&self) -> PageStats {
        self.pool.with(PagePool::page_stats)
    }
}
