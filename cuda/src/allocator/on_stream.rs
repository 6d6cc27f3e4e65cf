//! [`StreamMemory`]: a device's allocator for one stream, as the core's [`BlockAllocator`].

use core::fmt;
use std::sync::{Arc, Mutex};

use cudarc::driver::CudaStream;
use larder_core::{
    AllocError, Block, BlockAllocator, FreeError, FreeRejected, Grant, Request, Stats, StreamId,
    StreamPoint,
};

use super::{DeviceAllocError, DeviceAllocator, DeviceFreeError, DeviceInner, HostWait, Small};
use crate::DeviceAccess;
use crate::driver::locked;

/// A device's memory in the order of one stream: what the core's decorators, and code for any
/// allocator, take. A clone is the same memory with an own [`last_error`](Self::last_error).
///
/// Stream 0 is the stream, and there is no other: requests and points of others are refused.
/// * An allocation gives memory for work queued on the stream from now on; what it must wait for, the
///   stream waits for, so [`Grant::wait`] is always `None`. A request [without a
///   wait](Request::without_wait) gets memory that no other stream used last.
/// * A free is in the order of the stream: work that is queued may still use the block. So a free after a
///   point is a free: no event of the stream lies behind what is queued on it. `freed_by` is not looked at.
/// * Small blocks come from where the others come from and not from the stream's arena, so all are
///   numbered in one order, and aligned as asked. Numbers are those of the [`DeviceAllocator`]; a block
///   of a capture's window has none.
/// * Counters are those of the whole allocator, all its streams together.
///
/// Blocks may go back through the [`DeviceAllocator`] too, and its blocks through this.
///
/// ```no_run
/// use larder_core::{Align, BlockAllocator, Request};
/// use larder_cuda::{Context, DeviceAllocator};
///
/// let context = Context::new(0)?;
/// let memory = DeviceAllocator::new(&context)?;
/// let stream = context.cudarc().new_stream()?;
/// let memory = memory.on(&stream)?;
/// let align = Align::new(4096).unwrap();
/// let block = memory.alloc(&Request::new(1000).aligned(align))?.block;
/// memory.free(block)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct StreamMemory {
    memory: DeviceAllocator,
    stream: Arc<CudaStream>,
    error: Mutex<Option<DeviceAllocError>>,
}

impl DeviceAllocator {
    /// This allocator's memory for one stream, as the core's [`BlockAllocator`].
    ///
    /// # Errors
    /// [`DeviceAllocError::Stream`], [`DeviceAllocError::Streams`].
    pub fn on(&self, stream: &Arc<CudaStream>) -> Result<StreamMemory, DeviceAllocError> {
        self.add_stream(stream)?;
        Ok(StreamMemory {
            memory: self.clone(),
            stream: stream.clone(),
            error: Mutex::default(),
        })
    }
}

impl StreamMemory {
    /// The device's allocator.
    pub const fn memory(&self) -> &DeviceAllocator {
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

    /// Reads and writes this memory. Fills stay in the stream's queue, where everything that the memory is
    /// used for comes behind them; a read waits for the stream.
    ///
    /// # Safety
    /// The caller keeps the promise of [`DeviceAccess::new`]; addresses outside the allocator's are refused.
    pub unsafe fn access(&self) -> DeviceAccess {
        self.own_access()
    }

    /// Access for a decorator, which names bytes of blocks it holds only.
    pub(crate) fn own_access(&self) -> DeviceAccess {
        let reach = self.memory.0.pool.source().addresses();
        DeviceAccess::in_order(self.memory.context(), &self.stream, reach)
    }

    fn refuse(&self, error: DeviceAllocError) -> AllocError {
        *locked(&self.error) = Some(error);
        error.in_cores_words()
    }
}

impl BlockAllocator for StreamMemory {
    /// O(1) and no driver call while something fits that this stream, or none, used last (but for the
    /// question whether it captures, if [that is asked](crate::DeviceConfig::check_captures)).
    ///
    /// Fails with [`AllocError::OtherStream`], with [`AllocError::Access`] if the driver refused a call that
    /// the memory needed before its first use or the stream captures, and as the core.
    fn alloc(&self, request: &Request) -> Result<Grant, AllocError> {
        if request.stream != StreamId::MAIN {
            return Err(AllocError::OtherStream);
        }
        let block = self.memory.0.alloc_in_core(&self.stream, request);
        let block = block.map_err(|error| self.refuse(error))?;
        Ok(Grant { block, wait: None })
    }

    fn free(&self, block: Block) -> Result<(), FreeRejected> {
        self.memory.free(&self.stream, block).map_err(|rejected| {
            let error = match rejected.error {
                DeviceFreeError::Block(error) => error,
                // Only for a stream without a number.
                DeviceFreeError::Driver(_) => FreeError::OtherStream,
            };
            let block = rejected.block;
            FreeRejected { block, error }
        })
    }

    fn free_after(&self, block: Block, point: StreamPoint) -> Result<(), FreeRejected> {
        if point.stream != StreamId::MAIN {
            let error = FreeError::OtherStream;
            return Err(FreeRejected { block, error });
        }
        self.free(block)
    }

    fn requested_bytes(&self, block: &Block) -> Option<u64> {
        self.memory.requested_bytes(block)
    }

    fn allocation_id(&self, block: &Block) -> Option<u64> {
        self.memory.0.allocation_id(block)
    }

    /// Without a lock for a block of the core.
    fn owns(&self, block: &Block) -> bool {
        block.is_of(self.memory.0.id) || self.requested_bytes(block).is_some()
    }

    fn stats(&self) -> Stats {
        self.memory.stats()
    }

    /// Clears the counters of the whole allocator.
    fn clear_stats(&self) {
        self.memory.clear_stats();
    }
}

impl DeviceInner {
    /// Gives memory that is the core's, or of a capture's window.
    fn alloc_in_core(
        &self,
        stream: &Arc<CudaStream>,
        request: &Request,
    ) -> Result<Block, DeviceAllocError> {
        let stream_id = self.streams.id(stream)?;
        let request = Request {
            stream: stream_id,
            freed_by: None,
            ..*request
        };
        self.alloc_routed(
            stream,
            stream_id,
            &request,
            Small::IsInCore,
            HostWait::Waits,
        )
    }

    /// The number of a block of the core.
    fn allocation_id(&self, block: &Block) -> Option<u64> {
        let is_own = block.is_of(self.id);
        is_own.then(|| self.pool.allocation_id(block)).flatten()
    }
}

impl Clone for StreamMemory {
    fn clone(&self) -> Self {
        Self {
            memory: self.memory.clone(),
            stream: self.stream.clone(),
            error: Mutex::default(),
        }
    }
}

impl fmt::Debug for StreamMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamMemory")
            .field("memory", &self.memory)
            .field("stream", &self.stream.cu_stream())
            .finish_non_exhaustive()
    }
}
