//! The limit of a [`VmemAllocator`]'s host side at run time, alone and under budgets; see [`crate::limits`].
//! The limit of the device's side is that of its allocator.
//!
//! Host memory is released in whole regions, with one driver call for each.

use larder_core::PoolStats;
use larder_core::limits::{BudgetError, LimitAnswer};

use super::{VmemAllocator, VmemConfig};
use crate::limits::{Budget, LimitEvent, LimitWatch, LimitedPool};
use crate::{DeviceAllocError, DeviceAllocator};

impl VmemAllocator {
    /// Makes an allocator whose host side is a pool of a budget: the memory that this side holds is charged
    /// to the budget and all its ancestors. Memory of the device's side is charged to the budget of its
    /// allocator, if any.
    ///
    /// # Errors
    /// [`DeviceAllocError::Budgets`]; if the driver refuses, or the device cannot use such host memory.
    pub fn in_budget(
        device: &DeviceAllocator,
        config: VmemConfig,
        budget: &Budget,
    ) -> Result<Self, DeviceAllocError> {
        Self::make(device, config, Some(budget))
    }

    /// Sets the limit of the host's side, like
    /// [`DeviceAllocator::set_limit`](crate::DeviceAllocator::set_limit). Returns immediately. Idle regions
    /// above the limit are released now, and others once their blocks are freed and the streams are done with
    /// them. Refused if there is no host side. Managed memory also keeps its own maximum. O(regions) and the
    /// driver calls.
    pub fn set_host_limit(&self, bytes: u64) -> LimitAnswer {
        let Some(host) = &self.0.host else {
            return LimitAnswer::Refused(BudgetError::Unknown);
        };
        host.set_limit(bytes)
    }

    /// Returns the limit of the host's side, or 0 if there is no host side; the budgets above may allow less.
    pub fn host_limit_bytes(&self) -> u64 {
        let host = self.0.host.as_ref();
        host.map_or(0, |host| host.limit_bytes())
    }

    /// Returns the bytes that the host's side holds, and the bytes that it would still hold if its limit were
    /// set to 0 now. Queries the streams' events first. O(chunks).
    pub fn host_pool_stats(&self) -> PoolStats {
        let host = self.0.host.as_ref();
        host.map_or(PoolStats::default(), |host| host.pool_stats())
    }

    /// Calls `callback` when the excess over a lowered [limit](Self::set_host_limit) has been released, under
    /// the rules of [`Limits::watch`](crate::Limits::watch). `None` if there is no host side.
    pub fn watch_host_limit(
        &self,
        callback: impl Fn(&LimitEvent) + Send + Sync + 'static,
    ) -> Option<LimitWatch> {
        let host = self.0.host.as_ref()?;
        Some(host.watch_limit(callback))
    }
}
