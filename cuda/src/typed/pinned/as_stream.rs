//! [`PinnedAllocator`] as a [`StreamAllocator`], and as the [`StreamMemory`] of one stream.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_core::{BestFit, Block, BlockAllocator, Placement, Rejected, Request, Stats};

use super::pool::PinnedAllocator;
use super::uses::PinnedUses;
use crate::stream::allocator::{BlockInfo, Live, StreamAllocator};
use crate::{Context, DeviceAllocError, DeviceFreeError, StreamMemory};

impl PinnedAllocator {
    /// Returns this pool's memory for use by one stream, as the core's [`BlockAllocator`].
    ///
    /// # Errors
    /// [`DeviceAllocError::Stream`] for a stream of another context, or the per-thread default stream.
    pub fn on(
        &self,
        stream: &Arc<CudaStream>,
    ) -> Result<StreamMemory<PinnedAllocator>, DeviceAllocError> {
        if !self.can_follow(stream) {
            return Err(DeviceAllocError::Stream);
        }
        Ok(StreamMemory::over(self, stream))
    }
}

/// No stream uses a new block, so the host may write to it immediately.
impl StreamAllocator for PinnedAllocator {
    fn context(&self) -> &Context {
        self.events().context()
    }

    /// O(1) and no driver call while a free chunk fits and no freed block waits for its streams.
    fn alloc_as(&self, _: &Arc<CudaStream>, request: &Request) -> Result<Block, DeviceAllocError> {
        self.take(request)
    }

    /// The block can be reused on any stream once an event after the queued work has completed. Until then,
    /// the block counts as live. Costs one or two driver calls, and those that make the context current. The
    /// host waits if the stream is of another context or is the per-thread default stream.
    fn free(
        &self,
        stream: &Arc<CudaStream>,
        block: Block,
    ) -> Result<(), Rejected<DeviceFreeError>> {
        if self.pool().requested_bytes(&block).is_none() {
            return Err(DeviceFreeError::unknown(block));
        }
        if !self.can_follow(stream) {
            let block = self.context().wait_before_free(stream, block)?;
            return self.free_unused(stream, block);
        }
        let mut uses = PinnedUses::default();
        uses.note(self.events(), stream, true, true);
        self.take_back(block, uses);
        Ok(())
    }

    fn free_unused(
        &self,
        _: &Arc<CudaStream>,
        block: Block,
    ) -> Result<(), Rejected<DeviceFreeError>> {
        self.pool().free(block).map_err(DeviceFreeError::from_core)
    }

    fn info(&self, block: &Block) -> Option<BlockInfo> {
        Some(BlockInfo {
            requested_bytes: self.pool().requested_bytes(block)?,
            allocation_id: self.pool().allocation_id(block),
            placement: Placement::Host,
        })
    }

    fn stats(&self) -> Stats {
        Self::stats(self)
    }

    fn clear_stats(&self) {
        Self::clear_stats(self);
    }

    /// Blocks that wait for streams count as live.
    fn live(&self) -> Live {
        self.0.pool.shared().with(|pool| Live {
            blocks: u64::from(pool.report().used_chunks),
            bytes: pool.stats().live_bytes,
        })
    }
}
