//! The limit of a [`VmemAllocator`]'s host side at run time, by itself and under budgets; see [`crate::limits`].
//! The device's side has the limit of its allocator.
//!
//! Memory of the host goes back by whole regions, each one call of the driver.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_core::limits::{LimitAnswer, LimitRefusal};
use larder_core::{AddrRange, AllocError, ChunkState, MAX_REGIONS, PoolStats};

use super::host::VmemHost;
use super::{VmemAllocator, VmemConfig};
use crate::limits::{Budget, LimitEvent, LimitWatch, LimitedPool, OverBudget, TreeNode, set_own};
use crate::{DeviceAllocError, DeviceAllocator};

impl VmemAllocator {
    /// Makes an allocator whose host side is a pool of a budget: what it holds is charged there and to all
    /// budgets above. What the device's side holds is charged where its allocator was made.
    ///
    /// # Errors
    /// If the driver refuses, the device cannot use such memory of the host, or [`DeviceAllocError::Budgets`].
    pub fn in_budget(
        device: &DeviceAllocator,
        config: VmemConfig,
        budget: &Budget,
    ) -> Result<Self, DeviceAllocError> {
        Self::make(device, config, Some(budget))
    }

    /// Sets the limit of what the host's side holds, as
    /// [`DeviceAllocator::set_limit`](crate::DeviceAllocator::set_limit): the answer comes at once, idle regions
    /// above it go back now, the others as blocks are freed and their streams pass. Refused if there is no host
    /// side. Of managed memory no more is held than it may anyway. O(regions) and the calls.
    pub fn set_host_limit(&self, bytes: u64) -> LimitAnswer {
        let Some(host) = &self.0.host else {
            return LimitAnswer::Refused(LimitRefusal::Unknown);
        };
        set_own(&**host, bytes)
    }

    /// The limit of what the host's side holds, 0 if there is none; budgets above may allow less.
    pub fn host_limit_bytes(&self) -> u64 {
        let host = self.0.host.as_ref();
        host.map_or(0, |host| host.node.usage().config.hard_bytes)
    }

    /// What the host's side holds, and what of it would stay if its limit were set to 0 now. Memory that
    /// events say is out of use is noticed on the way. O(chunks).
    pub fn host_pool_stats(&self) -> PoolStats {
        let host = self.0.host.as_ref();
        host.map_or(PoolStats::default(), |host| host.pool_stats_now())
    }

    /// Calls `callback` when what was above a lowered [limit](Self::set_host_limit) has gone back, under the
    /// rules of [`Limits::watch`](crate::Limits::watch). `None` if there is no host side.
    pub fn watch_host_limit(
        &self,
        callback: impl Fn(&LimitEvent) + Send + Sync + 'static,
    ) -> Option<LimitWatch> {
        let host = self.0.host.as_ref()?;
        Some(Budget::of(&host.node).watch(callback))
    }
}

impl VmemHost {
    /// Called when a block was freed while the pool is shrinking, or one is wanted: what is idle now goes back.
    /// Nothing is waited for. Returns whether it was time to look.
    #[cold]
    pub(super) fn look_while_shrinking(&self, stream: &CudaStream, bytes: u64) -> bool {
        let none_live = || self.stats().live_bytes == 0;
        self.shrinking.freed(bytes, none_live, || {
            let before = self.node.usage().used_bytes;
            // In a capture no event may be asked.
            if self.streams.captures(stream) == Ok(false) {
                self.shrink_now();
            }
            self.node.usage().used_bytes < before
        })
    }

    /// Takes over what may be live, and gives back what is idle above it.
    fn shrink_now(&self) {
        if self.take_limit_over() > 0 {
            self.collect();
            self.pool.release_excess();
            self.take_limit_over();
        }
    }

    /// Takes over what may be live now; gives what is held above it.
    pub(super) fn take_limit_over(&self) -> u64 {
        // The ends of regions that are left out count for the budgets and not for the core.
        let left_out = self.pool.source().left_out_bytes();
        self.pool.with(|bfc| {
            // Read under the pool's lock: of two threads here the later has the newer bound.
            let (bound, own) = (self.node.may_hold(), self.node.usage().config.hard_bytes);
            let limit = match bound {
                u64::MAX => bound,
                bound => bound.saturating_sub(left_out),
            };
            let excess = bfc.set_limit(limit).excess_bytes;
            self.shrinking.set(excess > 0 || bound < own);
            excess
        })
    }

    fn pool_stats_now(&self) -> PoolStats {
        self.collect();
        // Room before the lock: nothing is asked of the host while it is held.
        let mut idle: Vec<AddrRange> = Vec::with_capacity(MAX_REGIONS);
        self.pool.with(|bfc| {
            bfc.for_each_region(|region| {
                if region.live_bytes == 0 && idle.len() < idle.capacity() {
                    idle.push(region.range);
                }
            });
            bfc.for_each_chunk(|chunk| {
                if let ChunkState::Free { pending: true } = chunk.state {
                    idle.retain(|range| !range.contains(chunk.range));
                }
            });
        });
        let held_for = |range| self.pool.source().held_for(range);
        let idle: u64 = idle.into_iter().map(held_for).sum();
        let pool_bytes = self.node.usage().used_bytes;
        PoolStats {
            pool_bytes,
            stable_bytes: pool_bytes.saturating_sub(idle),
        }
    }

    /// The budget's refusal, if a budget is why there is no memory.
    pub(super) fn budget_refusal(&self, reason: &AllocError) -> Option<OverBudget> {
        let refused = || self.pool.source().over_budget();
        self.node.refusal_behind(reason, refused)
    }
}

impl LimitedPool for VmemHost {
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
        self.shrink_now();
    }
}
