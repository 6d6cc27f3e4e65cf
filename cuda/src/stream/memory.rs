//! [`StreamMemory`]: a [`StreamAllocator`] for one stream, as the core's [`BlockAllocator`].

use core::fmt;
use std::sync::{Arc, Mutex};

use cudarc::driver::CudaStream;
use larder_core::{
    AllocError, Block, BlockAllocator, FreeError, Grant, Rejected, Request, Stats, StreamId,
    StreamPoint,
};

use crate::driver::locked;
use crate::{DeviceAccess, DeviceAllocError, DeviceAllocator, DeviceFreeError, StreamAllocator};

/// An allocator's memory in the order of one stream, for the core's decorators and other generic code. A
/// clone is the same memory with its own [`last_error`](Self::last_error).
///
/// The stream has the number 0, and there is no other: requests and points of other streams are refused.
/// * An allocation is for work that is queued on the stream from now on. If the memory needs a wait, the
///   stream itself waits, so [`Grant::wait`] is always `None`. A request [without a
///   wait](Request::without_wait) gets only memory that no other stream still uses. `freed_by` is ignored.
/// * [`free_after`](BlockAllocator::free_after) is a free in the order of the stream: queued work may still
///   use the block. The free already covers all work queued so far, so the point adds nothing and is ignored.
/// * [`free`](BlockAllocator::free) of device memory does the same. For pinned memory, `free` takes a block
///   that no stream uses any more, so that the host may write to it immediately; with a stream point, the
///   block stays live until an event after the queued work is done.
/// * Small blocks of a [`DeviceAllocator`] come from the core instead of the stream's arena, so all blocks
///   are numbered in one order, and aligned as requested. A block of a capture's window has no number.
/// * The counters are those of the whole allocator, over all its streams.
///
/// The allocator can free blocks of this memory, and this memory can free blocks of the allocator.
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
pub struct StreamMemory<A = DeviceAllocator> {
    memory: A,
    stream: Arc<CudaStream>,
    error: Mutex<Option<DeviceAllocError>>,
}

impl<A: StreamAllocator + Clone> StreamMemory<A> {
    /// Makes an adapter for a stream that the allocator can serve.
    pub(crate) fn over(memory: &A, stream: &Arc<CudaStream>) -> Self {
        Self {
            memory: memory.clone(),
            stream: stream.clone(),
            error: Mutex::default(),
        }
    }
}

impl<A> StreamMemory<A> {
    /// Returns the allocator.
    pub const fn memory(&self) -> &A {
        &self.memory
    }

    /// Returns the stream.
    pub const fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// Returns the newest refusal with the driver's error, which an [`AllocError`] does not have.
    pub fn last_error(&self) -> Option<DeviceAllocError> {
        locked(&self.error).clone()
    }
}

impl StreamMemory {
    /// Returns an access to this memory. Fills stay in the stream's queue, ahead of every later use of the
    /// memory; a read waits for the stream.
    ///
    /// # Safety
    /// The caller keeps the promise of [`DeviceAccess::new`]; addresses outside the allocator's memory are
    /// refused.
    pub unsafe fn access(&self) -> DeviceAccess {
        self.memory.access_on(&self.stream)
    }
}

/// Converts a refusal to the core's error.
fn to_core_error(rejected: Rejected<DeviceFreeError>) -> Rejected<FreeError> {
    let error = match rejected.error {
        DeviceFreeError::Block(error) => error,
        // Occurs only for a stream that the allocator does not know.
        DeviceFreeError::Driver(_) => FreeError::OtherStream,
    };
    Rejected {
        value: rejected.value,
        error,
    }
}

impl<A: StreamAllocator> BlockAllocator for StreamMemory<A> {
    /// Fails with [`AllocError::OtherStream`] for another stream; with [`AllocError::Access`] if the driver
    /// refused a call that the memory needed before its first use, or the stream is being captured; otherwise
    /// with the core's errors. The cost is that of [`StreamAllocator::alloc_as`].
    fn alloc(&self, request: &Request) -> Result<Grant, AllocError> {
        if request.stream != StreamId::MAIN {
            return Err(AllocError::OtherStream);
        }
        let given = self.memory.alloc_as(&self.stream, request);
        let block = given.map_err(|error| {
            let reason = error.to_core_error();
            *locked(&self.error) = Some(error);
            reason
        })?;
        Ok(Grant { block, wait: None })
    }

    fn free_at(&self, block: Block, point: Option<StreamPoint>) -> Result<(), Rejected<FreeError>> {
        let freed = match point {
            None => self.memory.free_unused(&self.stream, block),
            Some(point) if point.stream == StreamId::MAIN => self.memory.free(&self.stream, block),
            Some(_) => {
                return Err(Rejected::new(block, FreeError::OtherStream));
            }
        };
        freed.map_err(to_core_error)
    }

    fn requested_bytes(&self, block: &Block) -> Option<u64> {
        Some(self.memory.info(block)?.requested_bytes)
    }

    fn allocation_id(&self, block: &Block) -> Option<u64> {
        self.memory.info(block)?.allocation_id
    }

    fn stats(&self) -> Stats {
        self.memory.stats()
    }

    /// Clears the counters of the whole allocator.
    fn clear_stats(&self) {
        self.memory.clear_stats();
    }
}

impl<A: StreamAllocator + Clone> Clone for StreamMemory<A> {
    fn clone(&self) -> Self {
        Self::over(&self.memory, &self.stream)
    }
}

impl<A: fmt::Debug> fmt::Debug for StreamMemory<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamMemory")
            .field("memory", &self.memory)
            .field("stream", &self.stream.cu_stream())
            .finish_non_exhaustive()
    }
}
