//! Buffers taken apart into numbers, for programs that cannot store a [`DeviceBuffer`].

use std::sync::Arc;

use cudarc::driver::{CudaStream, DeviceRepr, sys};
use larder_core::{Block, FreeError, RawBlock, StreamId};

use super::make::bytes_of;
use super::{DeviceBuffer, Uses, check_align};
use crate::driver::locked;
use crate::{DeviceAllocError, DeviceAllocator, Returned};

/// The parts of a [`DeviceBuffer`] as plain numbers, from [`DeviceBuffer::leak`]. The memory stays allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct RawDeviceBuffer {
    /// The memory; `None` for a buffer of no bytes.
    pub block: Option<RawBlock>,
    /// Number of values.
    pub len: usize,
}

impl RawDeviceBuffer {
    /// Returns the address of the first value; 0 for a buffer of no bytes.
    pub fn address(&self) -> sys::CUdeviceptr {
        self.block.map_or(0, |block| block.addr.get())
    }
}

/// The reason why foreign memory could not become a buffer, or a side of a
/// [`SyncedMemory`](crate::typed::synced::SyncedMemory). The memory is unchanged.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdoptError {
    /// The block is another allocator's, or was freed.
    #[error("{0}")]
    Block(FreeError),
    /// The block is too small for the values.
    #[error(
        "the values need {bytes} bytes, but {block_bytes} were allocated: pass the parts unchanged"
    )]
    Room {
        /// Bytes of the values.
        bytes: u64,
        /// Bytes of the block.
        block_bytes: u64,
    },
    /// The number of values is wrong.
    #[error("{len} values where {needed} are needed")]
    Len {
        /// Number of values given.
        len: usize,
        /// Number of values needed.
        needed: usize,
    },
    /// The memory belongs to another device or context.
    #[error("the memory is another context's: copy it")]
    Device,
    /// The stream cannot be used, or the size overflows.
    #[error("{0}")]
    Alloc(DeviceAllocError),
}

impl<T> DeviceBuffer<T> {
    /// Takes the buffer apart. The buffer's stream waits for all other streams that use the buffer, so work
    /// that is queued on it from now on may use the memory. Only a buffer made from the parts frees the
    /// memory.
    ///
    /// # Errors
    /// Returns the buffer if its stream could not be ordered after the other streams.
    #[expect(clippy::result_large_err, reason = "the buffer itself comes back")]
    pub fn leak(mut self) -> Result<RawDeviceBuffer, Returned<Self, DeviceAllocError>> {
        if self.block.is_some()
            && let Err(error) = self.order_own_stream()
        {
            return Err(Returned { value: self, error });
        }
        Ok(RawDeviceBuffer {
            block: self.block.take().map(Block::into_raw),
            len: self.len,
        })
    }

    /// Makes a buffer from its parts. Dropping the buffer frees the memory. `stream` is the buffer's stream
    /// from now on.
    ///
    /// # Safety
    /// The parts came from [`leak`](Self::leak) on a buffer of `memory` with the same type of values, and no
    /// other buffer was made from them since. Work that uses the memory is already queued on `stream`, or is
    /// ordered before the work that is queued there from now on.
    ///
    /// # Errors
    /// If no such block is in use, the block is too small, or the stream cannot be added to the allocator.
    pub unsafe fn from_raw(
        memory: &DeviceAllocator,
        stream: &Arc<CudaStream>,
        raw: RawDeviceBuffer,
    ) -> Result<Self, AdoptError>
    where
        T: DeviceRepr,
    {
        check_align::<T>();
        let bytes = bytes_of::<T>(raw.len).map_err(AdoptError::Alloc)?;
        let (block, origin) = match raw.block {
            Some(block) => {
                let origin = memory
                    .known_streams()
                    .id(stream)
                    .map_err(AdoptError::Alloc)?;
                // After an error the block stays allocated, since it has no destructor.
                let (block, block_bytes) = memory.restore(block).map_err(AdoptError::Block)?;
                if bytes > block_bytes {
                    return Err(AdoptError::Room { bytes, block_bytes });
                }
                (Some(block), origin)
            }
            None if bytes > 0 => {
                let block_bytes = 0;
                return Err(AdoptError::Room { bytes, block_bytes });
            }
            None => (None, StreamId::MAIN),
        };
        Ok(Self::of_block(
            memory,
            stream,
            origin,
            raw.address(),
            raw.len,
            block,
        ))
    }

    /// Makes a buffer over memory that is not a block of `memory`. The buffer does not free it.
    ///
    /// # Safety
    /// The values exist, in memory that work of the stream's context may use, as long as the buffer and the
    /// work queued with it. Earlier uses are ordered before work that is queued on `stream` from now on.
    ///
    /// # Errors
    /// The errors of [`DeviceAllocator::add_stream`].
    pub(crate) unsafe fn over(
        memory: &DeviceAllocator,
        stream: &Arc<CudaStream>,
        address: sys::CUdeviceptr,
        len: usize,
    ) -> Result<Self, DeviceAllocError> {
        // SAFETY: the caller promises the same values, memory and order.
        unsafe { Self::of_parts(memory, stream, address, len, None) }
    }

    /// Makes a buffer over memory. If a block is passed, the buffer frees it.
    ///
    /// # Safety
    /// The caller keeps the promise of [`over`](Self::over); the block, if any, is a block of `memory` that
    /// contains the values.
    ///
    /// # Errors
    /// The errors of [`DeviceAllocator::add_stream`]; none if the stream has allocated from `memory`.
    pub(crate) unsafe fn of_parts(
        memory: &DeviceAllocator,
        stream: &Arc<CudaStream>,
        address: sys::CUdeviceptr,
        len: usize,
        block: Option<Block>,
    ) -> Result<Self, DeviceAllocError> {
        let origin = memory.known_streams().id(stream)?;
        Ok(Self::of_block(memory, stream, origin, address, len, block))
    }

    /// Makes the buffer's stream wait for all other streams that use the buffer, so that work queued on it
    /// from now on may use the memory.
    ///
    /// # Errors
    /// If the driver refuses.
    pub(crate) fn order_own_stream(&self) -> Result<(), DeviceAllocError> {
        self.order_stream(&self.shared.stream)
    }

    /// Makes a stream wait for all other streams that use the buffer, so that work queued on it from now on may
    /// use the memory.
    ///
    /// # Errors
    /// If the stream cannot be added to the allocator, or the driver refuses.
    pub(crate) fn order_stream(&self, stream: &Arc<CudaStream>) -> Result<(), DeviceAllocError> {
        self.shared.order(stream, false, Uses::write)
    }

    /// Notes that a part of the memory is new, and ready for work queued on a stream.
    pub(crate) fn is_ready_on(&self, stream_id: StreamId) {
        locked(&self.shared.uses).add_writer(stream_id);
    }
}
