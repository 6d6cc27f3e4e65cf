//! The methods of [`DeviceAllocator`] that most programs need: creating an allocator, allocating, freeing.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_core::{Block, Rejected};

use super::{DeviceAllocError, DeviceAllocator, DeviceConfig, DeviceFreeError};
use crate::driver::context::Context;
use crate::stream::pool::HostWait;

impl DeviceAllocator {
    /// Makes an allocator for all of the device's memory. If there is no virtual memory, it uses
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
    /// reach the memory, or the memory cannot be made shareable.
    pub fn with_config(context: &Context, config: DeviceConfig) -> Result<Self, DeviceAllocError> {
        Self::make(context, config, None)
    }

    /// Allocates a block for work queued on `stream` from now on. O(1) if free memory that was last used by
    /// this stream, or by none, fits; if another stream used it last, this stream waits once for that stream,
    /// on the device. Makes one driver call, which [checks for a capture](DeviceConfig::check_captures).
    ///
    /// # Errors
    /// [`DeviceAllocError`].
    #[inline]
    pub fn alloc(&self, stream: &Arc<CudaStream>, bytes: u64) -> Result<Block, DeviceAllocError> {
        self.0.alloc_for(stream, bytes, HostWait::MayBlock)
    }

    /// Frees a block. All work that uses it must already be queued on `stream`, or be ordered before work
    /// queued there. O(1), no driver call.
    ///
    /// If the stream belongs to another context, or is one more than the allocator can distinguish, the host
    /// waits for it.
    ///
    /// # Errors
    /// Returns the block if it is not one of this allocator's, or if the wait was refused.
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
