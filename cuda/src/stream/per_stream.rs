//! [`PerStream`]: allocators that serve one stream each, for all streams that allocate, over one device's memory.
//!
//! * EACH1 none goes before all do.
//! * EACH2 a block goes back to the one that gave it, whose stream comes behind the stream that frees it.
//!
//! There are at most as many as the device's allocator has streams, 256: it refuses one stream more.

use core::fmt;
use std::sync::{Arc, Mutex};

use cudarc::driver::CudaStream;
use larder_core::{AllocError, Block, Rejected, Request, Stats};

use crate::driver::locked;
use crate::stream::allocator::{BlockInfo, Live, StreamAllocator};
use crate::{Context, DeviceAllocError, DeviceAllocator, DeviceFreeError};

/// Memory of one stream over a device's allocator.
pub(crate) trait OneStream: fmt::Debug + Send + Sync + Sized {
    /// How one is made.
    type Config: Copy + Send + Sync;

    /// Makes one for a stream.
    fn make(
        memory: &DeviceAllocator,
        stream: &Arc<CudaStream>,
        config: Self::Config,
    ) -> Result<Self, DeviceAllocError>;

    /// The stream.
    fn stream(&self) -> &Arc<CudaStream>;

    /// Gives memory for work that is queued on the stream from now on.
    fn alloc_as(&self, request: &Request) -> Result<Block, DeviceAllocError>;

    /// Takes a block back in the order of the stream.
    fn free(&self, block: Block) -> Result<(), Rejected<DeviceFreeError>>;

    /// Bytes that were asked for; `None` if the block is not one of these.
    fn requested_bytes(&self, block: &Block) -> Option<u64>;

    /// What all of them gave and did not get back.
    fn live(memory: &DeviceAllocator, all: &[Arc<Self>]) -> Live;
}

/// A [`OneStream`] for each stream that allocated.
pub(crate) struct PerStream<M: OneStream> {
    /// Held for a look, and while a stream's tables are made; never during a check, an allocation or a free.
    members: Mutex<Vec<Arc<M>>>,
    config: M::Config,
    memory: DeviceAllocator,
}

impl<M: OneStream> PerStream<M> {
    /// Nothing is made for a stream yet.
    pub(crate) const fn new(memory: DeviceAllocator, config: M::Config) -> Self {
        Self {
            members: Mutex::new(Vec::new()),
            config,
            memory,
        }
    }

    /// That of a stream, if it allocated.
    pub(crate) fn of(&self, stream: &CudaStream) -> Option<Arc<M>> {
        let members = locked(&self.members);
        members
            .iter()
            .find(|one| **one.stream() == *stream)
            .cloned()
    }

    /// All of them; streams in the order of their first allocation.
    pub(crate) fn all(&self) -> Vec<Arc<M>> {
        locked(&self.members).clone()
    }

    /// Which gave a block.
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
            // Guards alone would be a block.
            return Err(DeviceAllocError::reason(AllocError::ZeroSize));
        }
        self.make(stream)?.alloc_as(request)
    }

    /// Takes a block back where it came from (EACH2). On another stream that costs an event and a wait of the device
    /// more, and a look at the others' tables.
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

    /// Counters of the device's allocator.
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
