//! The limit of a [`DeviceAllocator`] at run time, by itself and under budgets; see [`crate::limits`].
//!
//! While the limit is not met, or one above it is not, the allocator is *shrinking*: a free, an allocation that needs
//! the driver and the end of a step look again what may be live and what can go back.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_core::limits::LimitAnswer;
use larder_core::{AllocError, PoolStats, StreamId};

use super::slow::HostWait;
use super::{DeviceAllocError, DeviceAllocator, DeviceConfig, DeviceInner};
use crate::Context;
use crate::limits::{Budget, LimitEvent, LimitWatch, LimitedPool, TreeNode, set_own};

impl DeviceAllocator {
    /// Makes an allocator that is a pool of a budget: what it holds is charged there and to all budgets above. Its own
    /// limit is the configuration's.
    ///
    /// # Errors
    /// If the driver refuses, the device cannot map memory, or [`DeviceAllocError::Budgets`].
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
    /// A raised limit ends what a lowered one wanted. Under [`Backing::Budget`](larder_core::paged::Backing)
    /// no more is held than that says, whatever the limit. O(chunks) and the calls.
    pub fn set_limit(&self, bytes: u64) -> LimitAnswer {
        set_own(&*self.0, bytes)
    }

    /// The limit of what is held; budgets above may allow less.
    pub fn limit_bytes(&self) -> u64 {
        self.0.node.usage().config.hard_bytes
    }

    /// What is held, and what of it would stay if the limit were set to 0 now: what blocks use, and queued
    /// work. Memory that events say is out of use is noticed on the way. O(chunks).
    pub fn pool_stats(&self) -> PoolStats {
        self.0.pool_stats_now()
    }

    /// Calls `callback` when what was above a lowered [limit](Self::set_limit) has gone back, under the rules of
    /// [`Limits::watch`](crate::Limits::watch).
    pub fn watch_limit(
        &self,
        callback: impl Fn(&LimitEvent) + Send + Sync + 'static,
    ) -> LimitWatch {
        Budget::of(&self.0.node).watch(callback)
    }
}

impl DeviceInner {
    /// Called when a block was freed that no stream uses, or none that is known.
    pub(super) fn came_back(&self, bytes: u64) {
        if self.shrinking.is_on() {
            self.freed_while_shrinking(None, bytes);
        }
    }

    /// Called when a block was freed in the order of a stream.
    pub(super) fn came_back_on(&self, stream_id: StreamId, bytes: u64) {
        if self.shrinking.is_on() {
            self.freed_while_shrinking(self.streams.stream(stream_id).as_deref(), bytes);
        }
    }

    /// Called when a block was freed while the allocator is shrinking: what is idle now goes back. Nothing is waited
    /// for.
    #[cold]
    pub(super) fn freed_while_shrinking(&self, stream: Option<&CudaStream>, bytes: u64) {
        // In a capture no event may be asked.
        let captures = || stream.is_some_and(|stream| self.streams.captures(stream) != Ok(false));
        let looked = self.look_while_shrinking(bytes, || {
            if !captures() {
                self.shrink();
            }
        });
        if looked {
            self.node.shared().notify();
        }
    }

    /// Shrinks if it is time to look. Returns whether it was.
    fn look_while_shrinking(&self, bytes: u64, shrink: impl Fn()) -> bool {
        let none_live = || self.stats().live_bytes <= self.deferred.bytes();
        self.shrinking.freed(bytes, none_live, || {
            let before = self.node.usage().used_bytes;
            shrink();
            self.node.usage().used_bytes < before
        })
    }

    /// Called when an allocation needs the driver while the allocator is shrinking: what is idle goes back first, if it
    /// is time to look; and what has gone back since, here or in other pools, lifts the bound.
    pub(super) fn allocates_while_shrinking(&self) {
        if !self.look_while_shrinking(0, || self.shrink()) {
            self.take_limit_over();
        }
    }

    /// Takes over what may be live, and gives back what is idle above it. Nothing is waited for.
    pub(super) fn shrink(&self) {
        if self.take_limit_over() > 0 {
            self.collect(HostWait::Waits);
            self.pool.release_excess();
            self.take_limit_over();
        }
        // What the driver did not take is charged still.
        let context = self.context();
        if context.deferred_frees() > 0 && self.node.is_in_excess() {
            context.settle();
            self.take_limit_over();
        }
    }

    /// Takes over what may be live now; gives what is held above it.
    pub(super) fn take_limit_over(&self) -> u64 {
        self.pool.with(|paged| {
            // Read under the pool's lock: of two threads here the later has the newer bound.
            let bound = self.node.may_hold();
            let excess = paged.set_limit(bound).excess_bytes;
            let usage = self.node.usage();
            let lowered = bound < usage.config.hard_bytes || usage.excess_bytes > 0;
            self.shrinking.set(excess > 0 || lowered);
            excess
        })
    }

    fn pool_stats_now(&self) -> PoolStats {
        self.collect(HostWait::Waits);
        let core = self.pool.pool_stats();
        let idle = core.pool_bytes.saturating_sub(core.stable_bytes);
        let pool_bytes = self.node.usage().used_bytes;
        PoolStats {
            pool_bytes,
            stable_bytes: pool_bytes.saturating_sub(idle),
        }
    }

    /// The budget's refusal, if a budget is why there is no memory.
    pub(super) fn budget_refusal(&self, reason: &AllocError) -> Option<DeviceAllocError> {
        let refused = || self.pool.source().over_budget();
        let refused = self.node.refusal_behind(reason, refused);
        refused.map(DeviceAllocError::Budget)
    }
}

impl LimitedPool for DeviceInner {
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
