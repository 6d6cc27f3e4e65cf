//! [`StreamPinned`]: a pool of pinned memory beside one stream, as the core's [`BlockAllocator`].

use core::fmt;
use std::sync::{Arc, Mutex};

use cudarc::driver::CudaStream;
use larder_core::{
    AllocError, Block, BlockAllocator, FreeError, FreeRejected, Grant, Request, Stats, StreamId,
    StreamPoint,
};

use super::pool::PinnedAllocator;
use super::uses::PinnedUses;
use crate::DeviceAllocError;
use crate::driver::locked;

/// Pinned memory of a pool, for copies on one stream: what code for any allocator takes.
///
/// A block that is given is used by nobody, so the host may write to it at once. Stream 0 is the
/// stream, and there is no other:
/// * [`free`](BlockAllocator::free) takes back what no stream uses any more;
/// * [`free_after`](BlockAllocator::free_after) takes back what work queued on the stream still uses: the
///   block is given again, to anybody, once an event behind that work has passed. Until then it counts as
///   live. One or two driver calls with their contexts.
pub struct StreamPinned {
    memory: PinnedAllocator,
    stream: Arc<CudaStream>,
    error: Mutex<Option<DeviceAllocError>>,
}

impl PinnedAllocator {
    /// This pool's memory beside a stream, as the core's [`BlockAllocator`].
    ///
    /// # Errors
    /// [`DeviceAllocError::Stream`] for a stream of another context, or the default one that differs by
    /// thread.
    pub fn on(&self, stream: &Arc<CudaStream>) -> Result<StreamPinned, DeviceAllocError> {
        if !self.can_follow(stream) {
            return Err(DeviceAllocError::Stream);
        }
        Ok(StreamPinned {
            memory: self.clone(),
            stream: stream.clone(),
            error: Mutex::default(),
        })
    }
}

impl StreamPinned {
    /// The pool.
    pub const fn memory(&self) -> &PinnedAllocator {
        &self.memory
    }

    /// The stream.
    pub const fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// Why the newest refusal was one, with what the driver said: an [`AllocError`] has the numbers only.
    pub fn last_error(&self) -> Option<DeviceAllocError> {
        *locked(&self.error)
    }

    fn refuse(&self, error: DeviceAllocError) -> AllocError {
        *locked(&self.error) = Some(error);
        error.in_cores_words()
    }
}

impl BlockAllocator for StreamPinned {
    /// O(1) and no driver call while something fits and nothing dropped waits for its streams.
    ///
    /// Fails with [`AllocError::OtherStream`], and as the core.
    fn alloc(&self, request: &Request) -> Result<Grant, AllocError> {
        if request.stream != StreamId::MAIN {
            return Err(AllocError::OtherStream);
        }
        let block = self.memory.alloc_as(request);
        let block = block.map_err(|error| self.refuse(error))?;
        Ok(Grant { block, wait: None })
    }

    fn free(&self, block: Block) -> Result<(), FreeRejected> {
        self.memory.free_unused(block)
    }

    fn free_after(&self, block: Block, point: StreamPoint) -> Result<(), FreeRejected> {
        let error = if point.stream != StreamId::MAIN {
            FreeError::OtherStream
        } else if self.requested_bytes(&block).is_none() {
            FreeError::Unknown
        } else {
            let mut uses = PinnedUses::default();
            uses.note(self.memory.events(), &self.stream, true, true);
            self.memory.free(block, uses);
            return Ok(());
        };
        Err(FreeRejected { block, error })
    }

    fn requested_bytes(&self, block: &Block) -> Option<u64> {
        self.memory.pool().requested_bytes(block)
    }

    fn allocation_id(&self, block: &Block) -> Option<u64> {
        self.memory.pool().allocation_id(block)
    }

    fn owns(&self, block: &Block) -> bool {
        self.memory.pool().owns(block)
    }

    fn stats(&self) -> Stats {
        self.memory.stats()
    }

    /// Clears the counters of the whole pool.
    fn clear_stats(&self) {
        self.memory.clear_stats();
    }
}

impl fmt::Debug for StreamPinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamPinned")
            .field("memory", &self.memory)
            .field("stream", &self.stream.cu_stream())
            .finish_non_exhaustive()
    }
}
