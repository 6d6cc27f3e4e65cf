//! The calls of [`DeviceAllocator`] that most programs need: making one, allocating, freeing.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_core::{Block, Rejected};

use super::{DeviceAllocError, DeviceAllocator, DeviceConfig, DeviceFreeError};
use crate::driver::context::Context;
use crate::stream::pool::HostWait;

impl DeviceAllocator {
    /// Makes an allocator of all of the device's memory. Without virtual memory it takes
    /// [regions](super::DeviceBacking::Regions).
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn new(context: &Context) -> Result<Self, DeviceAllocError> {
        Self::with_config(context, DeviceConfig::new())
    }

    /// Makes an allocator with a configuration.
    ///
    /// # Errors
    /// If the driver refuses; [`DriverError::Unsupported`](crate::DriverError::Unsupported) if a peer cannot
    /// reach the memory or it cannot be shareable.
    pub fn with_config(context: &Context, config: DeviceConfig) -> Result<Self, DeviceAllocError> {
        Self::make(context, config, None)
    }

    /// Allocates for work queued on `stream` from now on. O(1) if free memory fits that was last used by this
    /// stream or by none; if another stream used it last, this stream waits for that one once. One driver
    /// call ([`check_captures`](DeviceConfig::check_captures)).
    ///
    /// # Errors
    /// [`DeviceAllocError`].
    #[inline]
    pub fn alloc(&self, stream: &Arc<CudaStream>, bytes: u64) -> Result<Block, DeviceAllocError> {
        self.0.alloc_for(stream, bytes, HostWait::MayBlock)
    }

    /// Frees a block. Work that uses it is queued on `stream` already, or is ordered before the work queued
    /// there now. O(1), no driver call.
    ///
    /// The host waits for a stream of another context, or for one more than can be distinguished.
    ///
    /// # Errors
    /// Returns the block if it is not one of this allocator's, or waiting was refused.
    #[inline]
    pub fn free(
        &self,
        stream: &Arc<CudaStream>,
        block: Block,
    ) -> Result<(), Rejected<DeviceFreeError>> {
        let inner = &*self.0;
        let Ok(stream_id) = inner.pool.streams().id(stream) else {
            return inner.free_elsewhere(stream, block);
        };
        let bytes = block.bytes();
        inner.free_on(stream_id, block)?;
        if inner.pool.over_limit().is_on() {
            inner.pool.freed_over_limit(Some(stream), bytes);
        }
        Ok(())
    }
}
