//! The limit of a [`VmemAllocator`]'s host side at run time, alone and under budgets; see [`crate::limits`].
//! The device's side has the limit of its allocator.
//!
//! Host memory is released by whole regions, each one driver call.

use larder_core::PoolStats;
use larder_core::limits::{BudgetError, LimitAnswer};

use super::{VmemAllocator, VmemConfig};
use crate::limits::{Budget, LimitEvent, LimitWatch, LimitedPool};
use crate::{DeviceAllocError, DeviceAllocator};

impl VmemAllocator {
    /// Makes an allocator whose host side is a pool of a budget: the memory it holds is charged there and to
    /// all budgets above. Memory of the device's side is charged where its allocator was made.
    ///
    /// # Errors
    /// If the driver refuses, the device cannot use such host memory, or [`DeviceAllocError::Budgets`].
    pub fn in_budget(
        device: &DeviceAllocator,
        config: VmemConfig,
        budget: &Budget,
    ) -> Result<Self, DeviceAllocError> {
        Self::make(device, config, Some(budget))
    }

    /// Sets the limit of the host's side, as
    /// [`DeviceAllocator::set_limit`](crate::DeviceAllocator::set_limit): returns immediately, and releases
    /// idle regions above it now, the others as blocks are freed and their streams pass. Refused if there is
    /// no host side. Managed memory keeps its own maximum, too. O(regions) and the calls.
    pub fn set_host_limit(&self, bytes: u64) -> LimitAnswer {
        let Some(host) = &self.0.host else {
            return LimitAnswer::Refused(BudgetError::Unknown);
        };
        host.set_limit(bytes)
    }

    /// Returns the limit of the host's side, 0 if there is none; budgets above may allow less.
    pub fn host_limit_bytes(&self) -> u64 {
        let host = self.0.host.as_ref();
        host.map_or(0, |host| host.limit_bytes())
    }

    /// Returns the bytes that the host's side holds, and those of them that would stay if its limit were set
    /// to 0 now. Updates the state of events on the way. O(chunks).
    pub fn host_pool_stats(&self) -> PoolStats {
        let host = self.0.host.as_ref();
        host.map_or(PoolStats::default(), |host| host.pool_stats())
    }

    /// Calls `callback` when the excess over a lowered [limit](Self::set_host_limit) was released, under the
    /// rules of [`Limits::watch`](crate::Limits::watch). `None` if there is no host side.
    pub fn watch_host_limit(
        &self,
        callback: impl Fn(&LimitEvent) + Send + Sync + 'static,
    ) -> Option<LimitWatch> {
        let host = self.0.host.as_ref()?;
        Some(host.watch_limit(callback))
    }
}
