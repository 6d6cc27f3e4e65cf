//! The limit of a [`DeviceAllocator`] at run time, by itself and under budgets; see [`crate::limits`].
//!
//! While more is held than the limit or one above it allows, the allocator is *over its limit*: a
//! free, an allocation that needs the driver and the end of a step refresh the live limit and give
//! back what they can.

use larder_core::limits::LimitAnswer;
use larder_core::{PoolStats, StreamId};

use super::{DeviceAllocError, DeviceAllocator, DeviceConfig, DeviceInner};
use crate::Context;
use crate::limits::{Budget, LimitEvent, LimitWatch, LimitedPool};

impl DeviceAllocator {
    /// Makes an allocator that is a pool of a budget: what it holds is charged there and to all budgets above. Its own
    /// limit is the configuration's.
    ///
    /// # Errors
    /// If the driver refuses, or [`DeviceAllocError::Budgets`].
    pub fn in_budget(
        context: &Context,
        config: DeviceConfig,
        budget: &Budget,
    ) -> Result<Self, DeviceAllocError> {
        Self::make(context, config, Some(budget))
    }

    /// Sets the limit of what is held. The answer comes at once; from then on nothing is granted above the limit:
    /// blocks are refused even where held memory could serve them. Idle memory above it goes back now, as little too
    /// much as may be; the rest as blocks are freed and their streams pass. Nothing is waited for.
    ///
    /// A raised limit ends what a lowered one wanted. Under [`Backing::Budget`](larder_core::pages::Backing)
    /// no more is held than that says, whatever the limit. O(chunks) and the calls.
    pub fn set_limit(&self, bytes: u64) -> LimitAnswer {
        self.0.set_limit(bytes)
    }

    /// The limit of what is held; budgets above may allow less.
    pub fn limit_bytes(&self) -> u64 {
        self.0.limit_bytes()
    }

    /// What is held, and what of it would stay if the limit were set to 0 now: what blocks use, and queued
    /// work. Memory that events say is out of use is noticed on the way. O(chunks).
    pub fn pool_stats(&self) -> PoolStats {
        self.0.pool_stats()
    }

    /// Calls `callback` when what was above a lowered [limit](Self::set_limit) has gone back, under the rules of
    /// [`Limits::watch`](crate::Limits::watch).
    pub fn watch_limit(
        &self,
        callback: impl Fn(&LimitEvent) + Send + Sync + 'static,
    ) -> LimitWatch {
        self.0.watch_limit(callback)
    }
}

impl DeviceInner {
    /// Called when a block was freed that no stream uses, or none that is known.
    pub(super) fn came_back(&self, bytes: u64) {
        if self.pool.over_limit().is_on() {
            self.pool.freed_over_limit(None, bytes);
        }
    }

    /// Called when a block was freed in the order of a stream.
    pub(super) fn came_back_on(&self, stream_id: StreamId, bytes: u64) {
        if self.pool.over_limit().is_on() {
            let stream = self.pool.streams().stream(stream_id);
            self.pool.freed_over_limit(stream.as_deref(), bytes);
        }
    }
}
