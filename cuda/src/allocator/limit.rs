//! The limit of a [`DeviceAllocator`] at run time, by itself and under budgets; see [`crate::limits`].
//!
//! While the limit is not met, or one above it is not, it is in *motion*: a free, an allocation that needs
//! the driver and the end of a step look again what may be live and what can go back.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_core::limits::LimitAnswer;
use larder_core::{AllocError, Cause, Lane, PoolStats};

use super::slow::Host;
use super::{DeviceAllocError, DeviceAllocator, DeviceConfig, Inner};
use crate::Context;
use crate::limits::{Budget, LimitEvent, LimitWatch, Node, Pool};

impl DeviceAllocator {
    /// As [`with_config`](Self::with_config), as a pool of a budget: what it holds is charged there and to
    /// all above. Its own limit is the configuration's.
    ///
    /// # Errors
    /// As [`new`](Self::new), and [`DeviceAllocError::Budgets`].
    pub fn in_budget(
        context: &Context,
        config: DeviceConfig,
        budget: &Budget,
    ) -> Result<Self, DeviceAllocError> {
        Self::make(context, config, Some(budget))
    }

    /// Sets the limit of what is held. The answer comes at once; from then on nothing is granted above the
    /// limit: blocks are refused even where held memory could serve them. Idle memory above it goes back now, as little
    /// too much as may be; the rest as blocks come home and their streams pass. Nothing is waited for.
    ///
    /// A raised limit ends what a lowered one wanted. Under [`Backing::Budget`](larder_core::paged::Backing)
    /// no more is held than that says, whatever the limit. O(chunks) and the calls.
    pub fn set_limit(&self, bytes: u64) -> LimitAnswer {
        let inner = &*self.0;
        let answer = inner.node.set_alone(bytes);
        if let LimitAnswer::Refused(_) = answer {
            return answer;
        }
        inner.motion.begin();
        inner.shrink();
        let held = inner.node.usage().used_bytes;
        inner.node.shared().tell();
        LimitAnswer::with_excess(held.saturating_sub(bytes))
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

    /// Calls `callback` when what was above a lowered [limit](Self::set_limit) has gone back; as
    /// [`Limits::watch`](crate::Limits::watch).
    pub fn watch_limit(
        &self,
        callback: impl Fn(&LimitEvent) + Send + Sync + 'static,
    ) -> LimitWatch {
        Budget::of(&self.0.node).watch(callback)
    }

    /// The same of a block that came home in the order of a lane.
    #[cold]
    pub(super) fn freed_in_motion_on(&self, lane: Lane, bytes: u64) {
        if let Some(stream) = self.0.streams.stream(lane) {
            self.freed_in_motion(&stream, bytes);
        }
    }

    /// A block came home while the limit is in motion: what is idle now goes back. Nothing is waited for.
    #[cold]
    pub(super) fn freed_in_motion(&self, stream: &CudaStream, bytes: u64) {
        let inner = &*self.0;
        let last = inner.stats().live_bytes == 0;
        let Some(looking) = inner.motion.note_free(bytes, last) else {
            return;
        };
        // In a capture no event may be asked.
        if inner.streams.captures(stream) == Ok(false) {
            let before = inner.node.usage().used_bytes;
            inner.shrink();
            inner.motion.looked(inner.node.usage().used_bytes < before);
        }
        drop(looking);
        inner.node.shared().tell();
    }
}

impl Inner {
    /// An allocation needs the driver while the limit is in motion: what is idle goes back first, if it is
    /// time to look; and what has gone back since, here or in other pools, lifts the bound.
    pub(super) fn allocates_in_motion(&self) {
        match self.motion.note_free(0, false) {
            Some(looking) => {
                let before = self.node.usage().used_bytes;
                self.shrink();
                self.motion.looked(self.node.usage().used_bytes < before);
                drop(looking);
            }
            None => {
                self.take_limit_over();
            }
        }
    }

    /// Takes over what may be live, and gives back what is idle above it. Nothing is waited for.
    pub(super) fn shrink(&self) {
        if self.take_limit_over() > 0 {
            self.collect(Host::Waits);
            self.pool.release_excess();
            self.take_limit_over();
        }
    }

    /// Takes over what may be live now; gives what is held above it.
    pub(super) fn take_limit_over(&self) -> u64 {
        self.pool.with(|paged| {
            // Read under the pool's lock: of two threads here the later has the newer bound.
            let bound = self.node.may_hold();
            let excess = paged.set_limit(bound).excess_bytes;
            self.motion.set(excess > 0 || bound < self.own_limit());
            excess
        })
    }

    fn own_limit(&self) -> u64 {
        self.node.usage().config.hard_bytes
    }

    fn pool_stats_now(&self) -> PoolStats {
        self.collect(Host::Waits);
        let core = self.pool.pool_stats();
        let idle = core.pool_bytes.saturating_sub(core.stable_bytes);
        let pool_bytes = self.node.usage().used_bytes;
        PoolStats {
            pool_bytes,
            stable_bytes: pool_bytes.saturating_sub(idle),
        }
    }

    /// The budget's words, if a budget is why there is no memory.
    pub(super) fn budget_refusal(&self, reason: &AllocError) -> Option<DeviceAllocError> {
        let AllocError::OutOfMemory(out) = reason else {
            return None;
        };
        let refused = match out.cause {
            Cause::Limit => self.node.above_in_excess(out.rounded_bytes),
            _ => {
                let refused = self.pool.driver().over_budget();
                refused.filter(|refused| !refused.own)
            }
        };
        refused.map(DeviceAllocError::Budget)
    }
}

impl Pool for Inner {
    fn node(&self) -> &Arc<Node> {
        &self.node
    }

    fn take_limit(&self) {
        self.motion.begin();
        self.take_limit_over();
    }

    fn pool_stats(&self) -> PoolStats {
        self.pool_stats_now()
    }

    fn shrink(&self) {
        Self::shrink(self);
    }
}
