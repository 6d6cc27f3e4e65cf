//! The limit of a [`PinnedAllocator`] at run time, by itself and under budgets; see [`crate::limits`].
//!
//! Pinned memory goes back by whole regions, each one call of the driver.

use std::sync::Arc;

use larder_core::limits::LimitAnswer;
use larder_core::{AddrRange, AllocError, MAX_REGIONS, PoolStats};

use super::PinnedAllocator;
use super::pool::PinnedInner;
use crate::limits::{Budget, LimitEvent, LimitWatch, LimitedPool, OverBudget, TreeNode, set_own};
use crate::{Context, DeviceAllocError, PinnedConfig};

impl PinnedAllocator {
    /// Makes an allocator that is a pool of a budget: what it holds is charged there and to all budgets
    /// above.
    ///
    /// # Errors
    /// [`DeviceAllocError::Budgets`].
    pub fn in_budget(
        context: &Context,
        config: PinnedConfig,
        limit_bytes: u64,
        budget: &Budget,
    ) -> Result<Self, DeviceAllocError> {
        Self::make(context, config, limit_bytes, Some(budget))
    }

    /// Sets the limit of what is held, as [`DeviceAllocator::set_limit`](crate::DeviceAllocator::set_limit):
    /// the answer comes at once, idle regions above it go back now, the others as buffers are dropped and the
    /// streams that use them pass. O(regions) and the calls.
    pub fn set_limit(&self, bytes: u64) -> LimitAnswer {
        set_own(&*self.0, bytes)
    }

    /// The limit of what is held; budgets above may allow less.
    pub fn limit_bytes(&self) -> u64 {
        self.0.node.usage().config.hard_bytes
    }

    /// What is held, and what of it would stay if the limit were set to 0 now. O(regions + buffers
    /// that wait for their streams).
    pub fn pool_stats(&self) -> PoolStats {
        self.0.pool_stats_now()
    }

    /// Calls `callback` when what was above a lowered [limit](Self::set_limit) has gone back, under the rules
    /// of [`Limits::watch`](crate::Limits::watch).
    pub fn watch_limit(
        &self,
        callback: impl Fn(&LimitEvent) + Send + Sync + 'static,
    ) -> LimitWatch {
        Budget::of(&self.0.node).watch(callback)
    }

    /// Called when a buffer was dropped while the pool is shrinking: what is idle now goes back.
    #[cold]
    pub(super) fn freed_while_shrinking(&self, bytes: u64) {
        let inner = &*self.0;
        let none_live = || inner.none_live();
        let looked = inner.shrinking.freed(bytes, none_live, || {
            let before = inner.node.usage().used_bytes;
            inner.poll();
            inner.shrink();
            inner.node.usage().used_bytes < before
        });
        if looked {
            inner.node.shared().notify();
        }
    }
}

impl PinnedInner {
    /// Takes over what may be live, and gives back what is idle above it. Nothing is waited for.
    pub(super) fn shrink(&self) {
        if self.take_limit_over() > 0 {
            self.poll();
            self.pool.release_excess();
            self.take_limit_over();
        }
    }

    /// Takes over what may be live now; gives what is held above it.
    pub(super) fn take_limit_over(&self) -> u64 {
        // The ends of regions that are left out count for the budgets and not for the core.
        let left_out = self.pool.source().ranges().left_out_bytes();
        self.pool.with(|bfc| {
            // Read under the pool's lock: of two threads here the later has the newer bound.
            let (bound, own) = (self.node.may_hold(), self.node.usage().config.hard_bytes);
            let limit = if own == u64::MAX && bound == own {
                own
            } else {
                bound.saturating_sub(left_out)
            };
            let excess = bfc.set_limit(limit).excess_bytes;
            self.shrinking.set(excess > 0 || bound < own);
            excess
        })
    }

    fn pool_stats_now(&self) -> PoolStats {
        self.poll();
        // Room before the lock: nothing is asked of the host while it is held.
        let mut idle: Vec<AddrRange> = Vec::with_capacity(MAX_REGIONS);
        self.pool.with(|bfc| {
            bfc.for_each_region(|region| {
                if region.live_bytes == 0 && idle.len() < idle.capacity() {
                    idle.push(region.range);
                }
            });
        });
        let ranges = self.pool.source().ranges();
        let idle: u64 = idle.into_iter().map(|range| ranges.held_for(range)).sum();
        let pool_bytes = self.node.usage().used_bytes;
        PoolStats {
            pool_bytes,
            stable_bytes: pool_bytes.saturating_sub(idle),
        }
    }

    /// The budget's refusal, if a budget is why there is no memory.
    pub(super) fn budget_refusal(&self, reason: &AllocError) -> Option<OverBudget> {
        let refused = || self.pool.source().ranges().over_budget();
        self.node.refusal_behind(reason, refused)
    }
}

impl LimitedPool for PinnedInner {
    fn node(&self) -> &Arc<TreeNode> {
        &self.node
    }

    fn take_limit(&self) {
        self.shrinking.begin();
        self.take_limit_over();
    }

    fn pool_stats(&self) -> PoolStats {
        self.pool_stats_now()
    }

    fn shrink(&self) {
        Self::shrink(self);
    }
}
