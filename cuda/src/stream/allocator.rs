//! [`StreamAllocator`]: memory in the order of streams, whichever memory it is.

use core::fmt;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_core::{Align, Block, Granule, Placement, Rejected, Request, Stats};

use crate::{Context, DeviceAllocError, DeviceFreeError};

/// What blocks start at a multiple of where nothing else is asked for: the driver aligns to no more.
pub(crate) const BLOCK_ALIGN: Align = Granule::DEFAULT.align();

/// Gives and takes memory in the order of streams. Every allocator of this crate is one, so that a program may
/// hold an `Arc<dyn StreamAllocator>` and choose when it runs.
///
/// Implementations are shared by reference and lock inside. A block goes back to the allocator that gave it. It is
/// a value without a destructor: one that is not freed is lost until its allocator goes.
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
    /// Where the memory lives.
    fn context(&self) -> &Context;

    /// Gives memory for work that is queued on `stream` from now on, as a request says: so many bytes, aligned as
    /// asked. The request's own stream and `freed_by` are not looked at.
    ///
    /// # Errors
    /// [`DeviceAllocError`]. Every block is as before.
    fn alloc_as(
        &self,
        stream: &Arc<CudaStream>,
        request: &Request,
    ) -> Result<Block, DeviceAllocError>;

    /// Gives memory at a multiple of 256 for work that is queued on `stream` from now on.
    ///
    /// # Errors
    /// [`DeviceAllocError`]. Every block is as before.
    fn alloc(&self, stream: &Arc<CudaStream>, bytes: u64) -> Result<Block, DeviceAllocError> {
        self.alloc_as(stream, &Request::new(bytes).aligned(BLOCK_ALIGN))
    }

    /// Takes a block back. Work that uses it is queued on `stream` already, or is ordered before what is queued
    /// there now.
    ///
    /// # Errors
    /// Gives the block back if it is not one of this allocator's, or if the driver refuses.
    fn free(&self, stream: &Arc<CudaStream>, block: Block)
    -> Result<(), Rejected<DeviceFreeError>>;

    /// Takes a block back that the host used last: no work that is queued uses it. Where only devices use memory
    /// that is a free like any other.
    ///
    /// # Errors
    /// Gives the block back if it is not one of this allocator's, or if the driver refuses.
    fn free_unused(
        &self,
        stream: &Arc<CudaStream>,
        block: Block,
    ) -> Result<(), Rejected<DeviceFreeError>> {
        self.free(stream, block)
    }

    /// What is known about a block; `None` if it is not one of this allocator's.
    fn info(&self, block: &Block) -> Option<BlockInfo>;

    /// Counters now.
    fn stats(&self) -> Stats;

    /// Starts the counters anew; see [`Stats::clear`]. Nothing where an allocator cannot.
    fn clear_stats(&self) {}

    /// What was given and not freed.
    fn live(&self) -> Live;
}

/// What a [`StreamAllocator`] knows about a block, beside what the block says itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct BlockInfo {
    /// Bytes that were asked for, of which [`Block::bytes`] were granted.
    pub requested_bytes: u64,
    /// Its number among all allocations, from 1 up; `None` where they are not numbered.
    pub allocation_id: Option<u64>,
    /// Whose memory it is.
    pub placement: Placement,
}

impl BlockInfo {
    /// Memory of a device without a number.
    pub(crate) const fn of_device(requested_bytes: u64) -> Self {
        Self {
            requested_bytes,
            allocation_id: None,
            placement: Placement::Device,
        }
    }
}

/// Blocks that were given and not freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Live {
    /// How many.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}
