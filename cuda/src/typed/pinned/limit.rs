//! The limit of a [`PinnedAllocator`] at run time, alone and under budgets; see [`crate::limits`].
//!
//! Pinned memory is released in whole regions, with one driver call for each.

use std::sync::Arc;

use larder_core::limits::LimitAnswer;
use larder_core::{PoolStats, Stats};

use super::PinnedAllocator;
use super::pool::PinnedInner;
use crate::limits::{Budget, LimitEvent, LimitWatch, LimitedPool, TreeNode};
use crate::{Context, DeviceAllocError, PinnedConfig};

impl PinnedAllocator {
    /// Makes an allocator that is a pool of a budget: the memory that it holds is charged to this budget and
    /// all its ancestors.
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

    /// Sets the limit of held memory, like [`DeviceAllocator::set_limit`](crate::DeviceAllocator::set_limit).
    /// Returns immediately. Idle regions above the limit are released now, and others once their buffers are
    /// dropped and the streams are done with them. O(regions) and the driver calls.
    pub fn set_limit(&self, bytes: u64) -> LimitAnswer {
        self.0.set_limit(bytes)
    }

    /// Returns the limit of held memory; the budgets above may allow less.
    pub fn limit_bytes(&self) -> u64 {
        self.0.limit_bytes()
    }

    /// Returns the bytes held, and the bytes that would still be held if the limit were set to 0 now.
    /// O(regions + dropped buffers that wait for their streams).
    pub fn pool_stats(&self) -> PoolStats {
        self.0.pool_stats()
    }

    /// Calls `callback` when the excess over a lowered [limit](Self::set_limit) has been released, under the
    /// rules of [`Limits::watch`](crate::Limits::watch).
    pub fn watch_limit(
        &self,
        callback: impl Fn(&LimitEvent) + Send + Sync + 'static,
    ) -> LimitWatch {
        self.0.watch_limit(callback)
    }
}

impl PinnedInner {
    /// Releases idle memory, after a buffer was dropped while the pool is over its limit.
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
