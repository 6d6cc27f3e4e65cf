//! The limit of a [`VmemAllocator`]'s host side at run time, by itself and under budgets; see [`crate::limits`].
//! The device's side has the limit of its allocator.
//!
//! Memory of the host goes back by whole regions, each one call of the driver.

use larder_core::PoolStats;
use larder_core::limits::{BudgetError, LimitAnswer};

use super::{VmemAllocator, VmemConfig};
use crate::limits::{Budget, LimitEvent, LimitWatch, LimitedPool};
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
            return LimitAnswer::Refused(BudgetError::Unknown);
        };
        host.set_limit(bytes)
    }

    /// The limit of what the host's side holds, 0 if there is none; budgets above may allow less.
    pub fn host_limit_bytes(&self) -> u64 {
        let host = self.0.host.as_ref();
        host.map_or(0, |host| host.limit_bytes())
    }

    /// What the host's side holds, and what of it would stay if its limit were set to 0 now. Memory that
    /// events say is out of use is noticed on the way. O(chunks).
    pub fn host_pool_stats(&self) -> PoolStats {
        let host = self.0.host.as_ref();
        host.map_or(PoolStats::default(), |host| host.pool_stats())
    }

    /// Calls `callback` when what was above a lowered [limit](Self::set_host_limit) has gone back, under the
    /// rules of [`Limits::watch`](crate::Limits::watch). `None` if there is no host side.
    pub fn watch_host_limit(
        &self,
        callback: impl Fn(&LimitEvent) + Send + Sync + 'static,
    ) -> Option<LimitWatch> {
        let host = self.0.host.as_ref()?;
        Some(host.watch_limit(callback))
    }
}
