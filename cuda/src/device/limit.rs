//! The limit of a [`DeviceAllocator`] at run time, alone and under budgets; see [`crate::limits`].
//!
//! While the allocator holds more than its limit or a budget above it allows, it is *over its limit*: a free,
//! an allocation that needs the driver, or the end of a step refreshes the live limit and releases as much as
//! possible.

use larder_core::limits::LimitAnswer;
use larder_core::{PoolStats, StreamId};

use super::{DeviceAllocError, DeviceAllocator, DeviceConfig, DeviceInner};
use crate::Context;
use crate::limits::{Budget, LimitEvent, LimitWatch, LimitedPool};

impl DeviceAllocator {
    /// Makes an allocator that is a pool of a budget: the memory it holds is charged to the budget and all its
    /// ancestors. The pool's own limit is that of the configuration.
    ///
    /// # Errors
    /// [`DeviceAllocError::Budgets`], or if the driver refuses.
    pub fn in_budget(
        context: &Context,
        config: DeviceConfig,
        budget: &Budget,
    ) -> Result<Self, DeviceAllocError> {
        Self::make(context, config, Some(budget))
    }

    /// Sets the limit of held memory, without waiting. From then on, nothing is granted above the limit: blocks
    /// are refused even if held memory could serve them. Idle memory above the limit is released now, as
    /// exactly as possible; the rest is released as blocks are freed and their streams reach their points.
    /// [Lent](crate::Loan) memory is recalled for it.
    ///
    /// A raised limit ends the effects of a lowered one. Under
    /// [`Backing::Budget`](larder_core::pages::Backing), no more than the page budget is held, whatever the
    /// limit. O(chunks), and the driver calls.
    pub fn set_limit(&self, bytes: u64) -> LimitAnswer {
        let answer = self.0.set_limit(bytes);
        self.0.pool.node().call_back_loans();
        answer
    }

    /// Returns the limit of held memory; budgets above may allow less.
    pub fn limit_bytes(&self) -> u64 {
        self.0.limit_bytes()
    }

    /// Returns the bytes held, and how many of them would stay if the limit were set to 0 now: the memory that
    /// blocks and queued work use. Updates the state of events first. O(chunks).
    pub fn pool_stats(&self) -> PoolStats {
        self.0.pool_stats()
    }

    /// Calls `callback` once the excess over a lowered [limit](Self::set_limit) is released, under the rules
    /// of [`Limits::watch`](crate::Limits::watch).
    pub fn watch_limit(
        &self,
        callback: impl Fn(&LimitEvent) + Send + Sync + 'static,
    ) -> LimitWatch {
        self.0.watch_limit(callback)
    }
}

impl DeviceInner {
    /// Releases excess memory after a free without a stream.
    pub(super) fn came_back(&self, bytes: u64) {
        if self.pool.over_limit().is_on() {
            self.pool.freed_over_limit(None, bytes);
        }
    }

    /// Releases excess memory after a free in the order of a stream.
    pub(super) fn came_back_on(&self, stream_id: StreamId, bytes: u64) {
        if self.pool.over_limit().is_on() {
            let stream = self.pool.streams().stream(stream_id);
            self.pool.freed_over_limit(stream.as_deref(), bytes);
        }
    }
}
