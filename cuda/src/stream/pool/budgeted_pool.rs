//! [`BudgetedPool`]: the core's best fit over a source, charged to a budget.

use core::mem::ManuallyDrop;
use std::sync::Arc;

use larder_core::{AllocError, BestFit, Cause, Shared, Source, Stats};

use super::peaks::Earlier;
use crate::driver::owed::Unwaited;
use crate::limits::over_limit::OverLimit;
use crate::limits::{OverBudget, TreeNode};
use crate::lock_wait::Yield;
use crate::with_tables::WithTables;
use crate::{Context, DeviceAllocError, DriverError};

/// The core's best fit, shared by threads.
pub(crate) type SharedPool<S, P> = Shared<P, S, Yield>;

/// The source of a pool's memory, with the refusals of its calls and the bytes that the core does not count.
pub(crate) trait PoolSource<P: BestFit>: Source<P> + Send + Sync + Sized {
    /// Returns the newest refusal of the driver.
    fn last_error(&self) -> Option<DriverError>;

    /// Returns a budget's refusal, if a budget refused the newest request for memory.
    fn over_budget(&self) -> Option<OverBudget>;

    fn forget_over_budget(&self);

    /// Returns the bytes that are held and charged outside the core.
    fn left_out_bytes(&self) -> u64;

    /// Returns the bytes of idle memory, which could be released.
    fn idle_bytes(core: &SharedPool<Self, P>) -> u64;
}

/// The core's best fit with a live limit, budgets above it, and counters for intervals.
pub(crate) struct BudgetedPool<S: PoolSource<P>, P: BestFit> {
    /// Node to which held memory is charged.
    pub(crate) node: Arc<TreeNode>,
    pub(crate) over_limit: OverLimit,
    earlier: Earlier,
    /// Work that could not be waited for and may still use the memory when this is dropped.
    unwaited: Vec<Unwaited>,
    context: Context,
    /// Dropped in `drop`, before others are notified.
    core: ManuallyDrop<WithTables<SharedPool<S, P>>>,
}

impl<S: PoolSource<P>, P: BestFit> BudgetedPool<S, P> {
    pub(crate) fn new(
        context: &Context,
        core: WithTables<SharedPool<S, P>>,
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

    /// Returns the context of the memory.
    pub(crate) const fn context(&self) -> &Context {
        &self.context
    }

    /// Returns the core's allocator, which does not know the budgets and has no counters for intervals.
    #[inline]
    pub(crate) fn shared(&self) -> &SharedPool<S, P> {
        &self.core
    }

    /// Sets the work that could not be waited for. When this is dropped, the memory is freed after that work.
    pub(crate) fn ends_behind(&mut self, unwaited: Vec<Unwaited>) {
        self.unwaited = unwaited;
    }

    /// Returns the counters.
    pub(crate) fn stats(&self) -> Stats {
        self.core.with(|locked| self.earlier.with(locked.stats()))
    }

    /// Restarts the counters.
    pub(crate) fn clear_stats(&self) {
        self.core.with(|locked| {
            self.earlier.clear();
            locked.clear_stats();
        });
    }

    /// Returns the peak of live bytes since the last call.
    pub(crate) fn take_peak(&self) -> u64 {
        self.core.with(|locked| {
            let peak = self.earlier.take(&locked.stats());
            locked.clear_stats();
            peak
        })
    }

    /// Makes the error of an allocation on a device of `device_bytes`, where `idle_bytes` of the live bytes
    /// are idle.
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
