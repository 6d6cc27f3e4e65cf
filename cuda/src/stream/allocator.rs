//! [`StreamAllocator`]: memory of any kind in the order of streams.

use core::fmt;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_core::{Align, Block, Granule, Placement, Rejected, Request, Stats};

use crate::{Context, DeviceAllocError, DeviceFreeError};

/// Default alignment of blocks, and the maximum that the driver guarantees.
pub(crate) const BLOCK_ALIGN: Align = Granule::DEFAULT.align();

/// Allocates and frees in the order of streams. Every allocator of this crate implements this trait, so a
/// program may hold an `Arc<dyn StreamAllocator>` and choose the allocator at run time.
///
/// Implementations are shared by reference and lock internally. A block is freed to the allocator that it
/// came from. A block is a value without a destructor: if it is not freed, it is leaked until its allocator
/// is dropped.
///
/// ```no_run
/// use std::sync::Arc;
/// use larder_cuda::{Context, DeviceAllocator, DriverPool, StreamAllocator};
///
/// let context = Context::new(0)?;
/// let memory: Arc<dyn StreamAllocator> = match std::env::args().len() {
///     1 => Arc::new(DeviceAllocator::new(&context)?),
///     _ => Arc::new(DriverPool::new(&context)?),
/// };
/// let stream = context.cudarc().new_stream()?;
/// let block = memory.alloc(&stream, 1 << 20)?;
/// memory.free(&stream, block)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait StreamAllocator: fmt::Debug + Send + Sync {
    /// Returns the context of the memory.
    fn context(&self) -> &Context;

    /// Allocates for work that is queued on `stream` from now on, with the size and alignment of a request.
    /// The request's own stream and `freed_by` are ignored.
    ///
    /// # Errors
    /// [`DeviceAllocError`]. No block changes.
    fn alloc_as(
        &self,
        stream: &Arc<CudaStream>,
        request: &Request,
    ) -> Result<Block, DeviceAllocError>;

    /// Allocates at a multiple of 256 for work that is queued on `stream` from now on.
    ///
    /// # Errors
    /// [`DeviceAllocError`]. No block changes.
    fn alloc(&self, stream: &Arc<CudaStream>, bytes: u64) -> Result<Block, DeviceAllocError> {
        self.alloc_as(stream, &Request::new(bytes).aligned(BLOCK_ALIGN))
    }

    /// Frees a block. Work that uses the block must already be queued on `stream`, or be ordered before the
    /// work that is queued there from now on.
    ///
    /// # Errors
    /// Returns the block if it is not one of this allocator's, or the driver refuses.
    fn free(&self, stream: &Arc<CudaStream>, block: Block)
    -> Result<(), Rejected<DeviceFreeError>>;

    /// Frees a block that no queued work uses, since the host used it last. For memory that only devices use
    /// this is the same as [`free`](Self::free).
    ///
    /// # Errors
    /// Returns the block if it is not one of this allocator's, or the driver refuses.
    fn free_unused(
        &self,
        stream: &Arc<CudaStream>,
        block: Block,
    ) -> Result<(), Rejected<DeviceFreeError>> {
        self.free(stream, block)
    }

    /// Returns information about a block; `None` if it is not one of this allocator's.
    fn info(&self, block: &Block) -> Option<BlockInfo>;

    /// Returns the counters.
    fn stats(&self) -> Stats;

    /// Restarts the counters; see [`Stats::clear`]. Does nothing if the allocator cannot restart them.
    fn clear_stats(&self) {}

    /// Returns the number and bytes of the blocks that are allocated and not freed.
    fn live(&self) -> Live;
}

/// Information from a [`StreamAllocator`] about a block, in addition to the block's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct BlockInfo {
    /// Bytes requested, for which [`Block::bytes`] were granted.
    pub requested_bytes: u64,
    /// The block's number among all allocations, from 1 up; `None` if allocations are not numbered.
    pub allocation_id: Option<u64>,
    /// The kind of memory.
    pub placement: Placement,
}

impl BlockInfo {
    /// Makes the information about a block of device memory that has no number.
    pub(crate) const fn of_device(requested_bytes: u64) -> Self {
        Self {
            requested_bytes,
            allocation_id: None,
            placement: Placement::Device,
        }
    }
}

/// The number and bytes of the blocks that are allocated and not freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Live {
    /// Number of blocks.
    pub blocks: u64,
    /// Bytes of the blocks.
    pub bytes: u64,
}
