//! The limit of a [`PinnedAllocator`] at run time, by itself and under budgets; see [`crate::limits`].
//!
//! Pinned memory goes back by whole regions, each one call of the driver.

use std::sync::Arc;

use larder_core::limits::LimitAnswer;
use larder_core::{PoolStats, Stats};

use super::PinnedAllocator;
use super::pool::PinnedInner;
use crate::limits::{Budget, LimitEvent, LimitWatch, LimitedPool, TreeNode};
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
        self.0.set_limit(bytes)
    }

    /// The limit of what is held; budgets above may allow less.
    pub fn limit_bytes(&self) -> u64 {
        self.0.limit_bytes()
    }

    /// What is held, and what of it would stay if the limit were set to 0 now. O(regions + buffers
    /// that wait for their streams).
    pub fn pool_stats(&self) -> PoolStats {
        self.0.pool_stats()
    }

    /// Calls `callback` when what was above a lowered [limit](Self::set_limit) has gone back, under the rules
    /// of [`Limits::watch`](crate::Limits::watch).
    pub fn watch_limit(
        &self,
        callback: impl Fn(&LimitEvent) + Send + Sync + 'static,
    ) -> LimitWatch {
        self.0.watch_limit(callback)
    }
}

impl PinnedInner {
    /// Called when a buffer was dropped while the pool is over its limit: what is idle now goes
    /// back.
    pub(super) fn freed_over_limit(&self, bytes: u64) {
        self.pool
            .freed_over_limit(bytes, || self.none_live(), || self.shrink());
    }

    /// See [`BudgetedPool::shrink`](crate::stream::pool::BudgetedPool::shrink).
    pub(super) fn shrink(&self) {
        self.pool.shrink(|| self.poll());
    }
}

impl LimitedPool for PinnedInner {
    fn node(&self) -> &Arc<TreeNode> {
        &self.pool.node
    }

    fn refresh_limit(&self) {
        self.pool.over_limit.begin();
        self.pool.refresh_limit();
    }

    fn pool_stats(&self) -> PoolStats {
        self.poll();
        self.pool.pool_stats()
    }

    fn shrink(&self) {
        self.pool.over_limit.begin();
        Self::shrink(self);
    }

    fn stats(&self) -> Stats {
        self.pool.stats()
    }

    fn take_peak(&self) -> u64 {
        self.pool.take_peak()
    }
}
