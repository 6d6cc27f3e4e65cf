//! [`DeviceAllocator`] as a [`StreamAllocator`], and as [`StreamMemory`] for one stream.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_core::{Block, Placement, Rejected, Request, Stats};

use super::{DeviceAllocError, DeviceAllocator, DeviceFreeError, DeviceInner, Small};
use crate::stream::allocator::{BLOCK_ALIGN, BlockInfo, Live, StreamAllocator};
use crate::stream::pool::HostWait;
use crate::{Context, DeviceAccess, StreamMemory};

impl StreamAllocator for DeviceAllocator {
    fn context(&self) -> &Context {
        self.0.pool.context()
    }

    /// Allocates a block that is numbered with all others of the core, or a block of a capture's window. Even
    /// small blocks come from the core, not from the stream's arena.
    fn alloc_as(
        &self,
        stream: &Arc<CudaStream>,
        request: &Request,
    ) -> Result<Block, DeviceAllocError> {
        self.0.alloc_in_core(stream, request, HostWait::MayBlock)
    }

    fn alloc(&self, stream: &Arc<CudaStream>, bytes: u64) -> Result<Block, DeviceAllocError> {
        Self::alloc(self, stream, bytes)
    }

    fn free(
        &self,
        stream: &Arc<CudaStream>,
        block: Block,
    ) -> Result<(), Rejected<DeviceFreeError>> {
        Self::free(self, stream, block)
    }

    fn info(&self, block: &Block) -> Option<BlockInfo> {
        let inner = &*self.0;
        if !block.is_of(inner.id) {
            return Some(BlockInfo::of_device(inner.requested_bytes(block)?));
        }
        let blocks = inner.pool.blocks();
        Some(BlockInfo {
            requested_bytes: blocks.requested_bytes(block)?,
            allocation_id: blocks.allocation_id(block),
            placement: Placement::Device,
        })
    }

    fn stats(&self) -> Stats {
        self.0.stats()
    }

    fn clear_stats(&self) {
        Self::clear_stats(self);
    }

    /// Sums the counts of all streams. O(streams).
    fn live(&self) -> Live {
        let given = |sum: u64, stream: &super::StreamStats| {
            sum.saturating_add(stream.allocations)
                .saturating_sub(stream.frees)
        };
        Live {
            blocks: self.streams().iter().fold(0, given),
            bytes: self.0.stats().live_bytes,
        }
    }
}

impl DeviceAllocator {
    /// Returns this allocator's memory for one stream, as the core's
    /// [`BlockAllocator`](larder_core::BlockAllocator).
    ///
    /// # Errors
    /// [`DeviceAllocError::Stream`], [`DeviceAllocError::Streams`].
    pub fn on(&self, stream: &Arc<CudaStream>) -> Result<StreamMemory, DeviceAllocError> {
        self.add_stream(stream)?;
        Ok(StreamMemory::over(self, stream))
    }

    /// Allocates for work queued on `stream` from now on without blocking the host, for a caller that has
    /// other memory to fall back on.
    pub(crate) fn alloc_without_host_wait(
        &self,
        stream: &Arc<CudaStream>,
        request: &Request,
    ) -> Result<Block, DeviceAllocError> {
        // Arenas, too, align to `BLOCK_ALIGN`.
        if request.may_wait && request.align <= BLOCK_ALIGN {
            return self
                .0
                .alloc_for(stream, request.bytes, HostWait::HasFallback);
        }
        self.0.alloc_in_core(stream, request, HostWait::HasFallback)
    }

    /// Returns access to this allocator's memory in the order of a stream.
    pub(crate) fn access_on(&self, stream: &Arc<CudaStream>) -> DeviceAccess {
        let pages = self.0.pool.pages();
        let reach = pages.map(|pages| pages.shared().source().addresses());
        DeviceAccess::in_order(self.context(), stream, reach)
    }
}

impl DeviceInner {
    /// Allocates from the core, or from a capture's window.
    fn alloc_in_core(
        &self,
        stream: &Arc<CudaStream>,
        request: &Request,
        host: HostWait,
    ) -> Result<Block, DeviceAllocError> {
        let stream_id = self.pool.streams().id(stream)?;
        let request = Request {
            stream: stream_id,
            freed_by: None,
            ..*request
        };
        self.alloc_routed(stream, stream_id, &request, Small::IsInCore, host)
    }
}
