//! [`BudgetedPool`]: the core's best fit over a source, charged to a budget.

use core::mem::ManuallyDrop;
use std::sync::Arc;

use larder_core::{AllocError, BestFit, Cause, PoolStats, Shared, Source, Stats};

use super::peaks::Earlier;
use crate::driver::owed::Unwaited;
use crate::limits::over_limit::OverLimit;
use crate::limits::{OverBudget, TreeNode};
use crate::lock_wait::Yield;
use crate::with_tables::WithTables;
use crate::{Context, DeviceAllocError, DriverError};

/// The core's best fit, shared by threads.
pub(crate) type Core<S, P> = Shared<P, S, Yield>;

/// Where a pool's memory comes from: what is said about calls that were refused and about bytes that the
/// core does not know of.
pub(crate) trait PoolSource<P: BestFit>: Source<P> + Send + Sync + Sized {
    /// The newest refusal of the driver.
    fn last_error(&self) -> Option<DriverError>;

    /// The newest answer about new memory, if it was a budget's refusal.
    fn over_budget(&self) -> Option<OverBudget>;

    fn forget_over_budget(&self);

    /// Bytes that are held and charged and not the core's.
    fn left_out_bytes(&self) -> u64;

    /// Bytes that would go back if all that is idle did.
    fn idle_bytes(core: &Core<Self, P>) -> u64;
}

/// The core's best fit, with a limit that can move, budgets above it, and counters by intervals.
pub(crate) struct BudgetedPool<S: PoolSource<P>, P: BestFit> {
    /// What is held is charged to it.
    pub(crate) node: Arc<TreeNode>,
    pub(crate) over_limit: OverLimit,
    earlier: Earlier,
    /// What was not waited for, for the end.
    unwaited: Vec<Unwaited>,
    context: Context,
    /// Dropped in `drop`, before others hear of it.
    core: ManuallyDrop<WithTables<Core<S, P>>>,
}

impl<S: PoolSource<P>, P: BestFit> BudgetedPool<S, P> {
    pub(crate) fn new(
        context: &Context,
        core: WithTables<Core<S, P>>,
        node: Arc<TreeNode>,
    ) -> Self {
        Self {
            unwaited: Vec::new(),
            context: context.clone(),
            node,
            over_limit: OverLimit::default(),
            earlier: Earlier::default(),
            core: ManuallyDrop::new(core),
        }
    }

    /// Where the memory lives.
    pub(crate) const fn context(&self) -> &Context {
        &self.context
    }

    /// The core's allocator, which knows nothing of limits above it or of counters by intervals.
    #[inline]
    pub(crate) fn shared(&self) -> &Core<S, P> {
        &self.core
    }

    /// This ends, and the memory goes back behind work that could not be waited for.
    pub(crate) fn ends_behind(&mut self, unwaited: Vec<Unwaited>) {
        self.unwaited = unwaited;
    }

    /// Counters now.
    pub(crate) fn stats(&self) -> Stats {
        self.core.with(|bfc| self.earlier.with(bfc.stats()))
    }

    /// Starts the counters anew.
    pub(crate) fn clear_stats(&self) {
        self.core.with(|bfc| {
            self.earlier.clear();
            bfc.clear_stats();
        });
    }

    /// The most live bytes since this was last asked for.
    pub(crate) fn take_peak(&self) -> u64 {
        self.core.with(|bfc| {
            let peak = self.earlier.take(&bfc.stats());
            bfc.clear_stats();
            peak
        })
    }

    /// Reads the live limit anew. Returns what is held above it.
    pub(crate) fn refresh_limit(&self) -> u64 {
        let left_out = || self.core.source().left_out_bytes();
        apply_newest(left_out, |left_out| {
            self.core.with(|bfc| {
                // Read under the core's lock: of two threads here the later has the newer bound.
                let bound = self.node.live_limit();
                let limit = match bound {
                    u64::MAX => bound,
                    bound => bound.saturating_sub(left_out),
                };
                let excess = bfc.set_limit(limit);
                let usage = self.node.usage();
                let lowered = bound < usage.config.hard_bytes || usage.excess_bytes > 0;
                self.over_limit.set(excess > 0 || lowered);
                excess
            })
        })
    }

    /// What is held, and what of it would stay if the limit were 0.
    pub(crate) fn pool_stats(&self) -> PoolStats {
        let pool_bytes = self.node.usage().used_bytes;
        PoolStats {
            pool_bytes,
            stable_bytes: pool_bytes.saturating_sub(S::idle_bytes(&self.core)),
        }
    }

    /// The error of an allocation, where so many live bytes are idle and a device may have so many at most.
    pub(crate) fn refusal(
        &self,
        reason: AllocError,
        idle_bytes: u64,
        device_bytes: impl FnOnce() -> u64,
    ) -> DeviceAllocError {
        let source = self.core.source();
        if let Some(refused) = self.node.refusal_behind(&reason, || source.over_budget()) {
            return DeviceAllocError::Budget(refused);
        }
        let AllocError::OutOfMemory(mut out) = reason else {
            return DeviceAllocError::Memory {
                reason,
                driver: None,
            };
        };
        out.live_bytes = out.live_bytes.saturating_sub(idle_bytes);
        out.free_bytes = out.free_bytes.saturating_add(idle_bytes);
        if let Cause::Addresses | Cause::SubAllocator = out.cause {
            let device_bytes = device_bytes();
            if out.requested_bytes > device_bytes {
                out.cause = Cause::Device {
                    mib: u32::try_from(device_bytes >> 20).unwrap_or(u32::MAX),
                };
            }
        }
        DeviceAllocError::Memory {
            reason: AllocError::OutOfMemory(out),
            driver: source.last_error(),
        }
    }

    /// Called when so many bytes were freed, or some are wanted, while the pool is over its limit:
    /// shrinks, if it is time to look. Whether it was.
    pub(crate) fn look(&self, bytes: u64, none_live: impl Fn() -> bool, shrink: impl Fn()) -> bool {
        self.over_limit.freed(bytes, none_live, || {
            let before = self.node.usage().used_bytes;
            shrink();
            self.node.usage().used_bytes < before
        })
    }

    /// Refreshes the live limit, from which on nothing is granted above it. Then gives back what is
    /// idle above it, once `collect` has made free what no work uses any more. Nothing is waited for.
    pub(crate) fn shrink(&self, collect: impl FnOnce()) {
        let is_above = self.refresh_limit() > 0;
        if is_above {
            collect();
            self.core.release_excess();
        }
        // What the driver did not take is charged still, though the core holds it no more.
        let is_owed = self.context.deferred_frees() > 0 && self.node.is_in_excess();
        if is_owed {
            self.context.settle_at_once();
        }
        if is_above || is_owed {
            // What has gone back lifts it.
            self.refresh_limit();
        }
    }
}

impl<S: PoolSource<P>, P: BestFit> Drop for BudgetedPool<S, P> {
    fn drop(&mut self) {
        let unwaited = core::mem::take(&mut self.unwaited);
        let core = &mut self.core;
        // SAFETY: dropped once, here, and not used again.
        let end = || unsafe { ManuallyDrop::drop(core) };
        self.context.owe(unwaited, end);
        self.node.shared().notify();
    }
}

/// Applies a number that other threads change, and then apply too. It is read before the lock under which it is
/// applied; where it has changed since, it is applied again, so that no older number stays.
fn apply_newest<R>(read: impl Fn() -> u64, mut apply: impl FnMut(u64) -> R) -> R {
    let mut number = read();
    loop {
        let answer = apply(number);
        let now = read();
        if now == number {
            return answer;
        }
        number = now;
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::apply_newest;

    #[test]
    fn a_number_that_another_thread_changes_and_applies_in_between_is_what_stays() {
        let (number, applied, others) = (Cell::new(0), Cell::new(None), Cell::new(0));
        let answer = apply_newest(
            || number.get(),
            |read| {
                // The other thread is faster, twice.
                if others.get() < 2 {
                    others.set(others.get() + 1);
                    number.set(number.get() + 6);
                    applied.set(Some(number.get()));
                }
                applied.set(Some(read));
                read
            },
        );
        assert_eq!((answer, applied.get()), (12, Some(12)));
    }
}
