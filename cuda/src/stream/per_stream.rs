//! [`PerStream`]: one allocator for each stream that allocates, over one device's memory.
//!
//! * EACH1 every allocator lives as long as the set of them.
//! * EACH2 a block is freed to the allocator that it came from, whose stream waits for the stream that frees
//!   the block.
//!
//! There are at most 256 of these allocators, since the device's allocator refuses further streams.

use core::fmt;
use std::sync::{Arc, Mutex};

use cudarc::driver::CudaStream;
use larder_core::{AllocError, Block, Rejected, Request, Stats};

use crate::driver::locked;
use crate::stream::allocator::{BlockInfo, Live, StreamAllocator};
use crate::{Context, DeviceAllocError, DeviceAllocator, DeviceFreeError};

/// Memory of one stream over a device's allocator.
pub(crate) trait OneStream: fmt::Debug + Send + Sync + Sized {
    /// Configuration of one stream's memory.
    type Config: Copy + Send + Sync;

    /// Makes the memory of a stream.
    fn make(
        memory: &DeviceAllocator,
        stream: &Arc<CudaStream>,
        config: Self::Config,
    ) -> Result<Self, DeviceAllocError>;

    /// Returns the stream.
    fn stream(&self) -> &Arc<CudaStream>;

    /// Allocates for work queued on the stream from now on.
    fn alloc_as(&self, request: &Request) -> Result<Block, DeviceAllocError>;

    /// Frees a block in the order of the stream.
    fn free(&self, block: Block) -> Result<(), Rejected<DeviceFreeError>>;

    /// Returns the bytes requested; `None` if the block is not from this stream's memory.
    fn requested_bytes(&self, block: &Block) -> Option<u64>;

    /// Returns the number and bytes of the blocks in use, over all streams.
    fn live(memory: &DeviceAllocator, all: &[Arc<Self>]) -> Live;
}

/// A [`OneStream`] for each stream that has allocated.
pub(crate) struct PerStream<M: OneStream> {
    /// The streams' memories. Locked for a search, and while a stream's tables are made; never during a
    /// check, an allocation or a free.
    members: Mutex<Vec<Arc<M>>>,
    config: M::Config,
    memory: DeviceAllocator,
}

impl<M: OneStream> PerStream<M> {
    /// Makes a set without members.
    pub(crate) const fn new(memory: DeviceAllocator, config: M::Config) -> Self {
        Self {
            members: Mutex::new(Vec::new()),
            config,
            memory,
        }
    }

    /// Returns the member of a stream, if the stream has allocated.
    pub(crate) fn of(&self, stream: &CudaStream) -> Option<Arc<M>> {
        let members = locked(&self.members);
        members
            .iter()
            .find(|one| **one.stream() == *stream)
            .cloned()
    }

    /// Returns all members, in the order of their streams' first allocations.
    pub(crate) fn all(&self) -> Vec<Arc<M>> {
        locked(&self.members).clone()
    }

    /// Returns the member that a block came from.
    pub(crate) fn owner(&self, block: &Block) -> Option<Arc<M>> {
        let all = self.all();
        all.into_iter()
            .find(|one| one.requested_bytes(block).is_some())
    }

    fn make(&self, stream: &Arc<CudaStream>) -> Result<Arc<M>, DeviceAllocError> {
        let mut members = locked(&self.members);
        if let Some(one) = members.iter().find(|one| **one.stream() == **stream) {
            return Ok(one.clone());
        }
        let made = Arc::new(M::make(&self.memory, stream, self.config)?);
        members.push(made.clone());
        Ok(made)
    }
}

impl<M: OneStream> StreamAllocator for PerStream<M> {
    fn context(&self) -> &Context {
        self.memory.context()
    }

    fn alloc_as(
        &self,
        stream: &Arc<CudaStream>,
        request: &Request,
    ) -> Result<Block, DeviceAllocError> {
        if request.bytes == 0 {
            // Refused here: with guards added, the request would no longer be empty and would get a block.
            return Err(DeviceAllocError::reason(AllocError::ZeroSize));
        }
        self.make(stream)?.alloc_as(request)
    }

    /// Frees a block to its member (EACH2). On another stream that costs an additional event, a wait on the
    /// device, and a search of the other members' tables.
    fn free(
        &self,
        stream: &Arc<CudaStream>,
        block: Block,
    ) -> Result<(), Rejected<DeviceFreeError>> {
        let own = self.of(stream);
        if let Some(own) = own.filter(|own| own.requested_bytes(&block).is_some()) {
            return own.free(block);
        }
        let Some(owner) = self.owner(&block) else {
            return Err(DeviceFreeError::unknown(block));
        };
        let ordered = self.memory.order_after(owner.stream(), stream);
        let ordered = ordered.or_else(|_| self.memory.context().wait_for(stream));
        match ordered {
            Ok(()) => owner.free(block),
            Err(error) => Err(DeviceFreeError::driver(block, error)),
        }
    }

    fn info(&self, block: &Block) -> Option<BlockInfo> {
        let requested_bytes = self.owner(block)?.requested_bytes(block)?;
        Some(BlockInfo::of_device(requested_bytes))
    }

    /// Returns the counters of the device's allocator.
    fn stats(&self) -> Stats {
        self.memory.stats()
    }

    fn clear_stats(&self) {
        self.memory.clear_stats();
    }

    fn live(&self) -> Live {
        M::live(&self.memory, &self.all())
    }
}

impl<M: OneStream> fmt::Debug for PerStream<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerStream")
            .field("memory", &self.memory)
            .field("members", &self.all())
            .finish_non_exhaustive()
    }
}
