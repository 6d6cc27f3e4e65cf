//! Buffers taken apart, for programs that keep them where a value cannot be kept.

use std::sync::Arc;

use cudarc::driver::{CudaStream, DeviceRepr, sys};
use larder_core::{Block, FreeError, RawBlock, StreamId};

use super::make::bytes_of;
use super::{DeviceBuffer, Uses, check_align};
use crate::{DeviceAllocError, DeviceAllocator, Returned};

/// A [`DeviceBuffer`] taken apart by [`DeviceBuffer::leak`]: plain numbers. The memory stays allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct RawDeviceBuffer {
    /// The memory; none for a buffer of no bytes.
    pub block: Option<RawBlock>,
    /// How many values.
    pub len: usize,
}

impl RawDeviceBuffer {
    /// The address of the first value; 0 for a buffer of no bytes.
    pub fn address(&self) -> sys::CUdeviceptr {
        self.block.map_or(0, |block| block.addr.get())
    }
}

/// Why memory from elsewhere was not made a buffer, or a side of a
/// [`SyncedMemory`](crate::typed::synced::SyncedMemory). The memory is as before.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdoptError {
    /// No block like that is in use: it is of another allocator, or was freed.
    #[error("{0}")]
    Block(FreeError),
    /// The block does not hold so many values.
    #[error(
        "values of {bytes} bytes where {block_bytes} were allocated: give the parts as they came"
    )]
    Room {
        /// Bytes of the values.
        bytes: u64,
        /// Bytes of the block.
        block_bytes: u64,
    },
    /// It is of another number of values.
    #[error("{len} values where {needed} are needed")]
    Len {
        /// Of so many.
        len: usize,
        /// So many are needed.
        needed: usize,
    },
    /// It is of another device or context.
    #[error("the memory is another context's: copy it")]
    Device,
    /// The stream cannot be used, or the size does not fit a number.
    #[error("{0}")]
    Alloc(DeviceAllocError),
}

impl<T> DeviceBuffer<T> {
    /// Takes the buffer apart. Its stream waits for all others that use it, so the parts are good for work
    /// that is queued there from now on. Nothing frees the memory but a buffer made of the parts.
    ///
    /// # Errors
    /// Gives the buffer back if its stream could not be ordered behind the others.
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

    /// Makes a buffer of parts; it is freed when it is dropped. `stream` is its stream from now on.
    ///
    /// # Safety
    /// The parts came from [`leak`](Self::leak) for values as these, of a buffer of `memory`, and no other
    /// buffer was made of them since. Work that uses the memory is queued on `stream`, or ordered before
    /// what is queued there now.
    ///
    /// # Errors
    /// If no such block is in use, or it is too small.
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
                // A block that is not made a buffer stays as it was: it has no destructor.
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

    /// A buffer over memory that is no block, and that it does not free.
    ///
    /// # Safety
    /// The values are there, in memory that work of the stream's context may use, for as long as the buffer and
    /// the work queued with it. Whatever uses them now is ordered before what is queued on `stream` later.
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

    /// A buffer over memory that it frees if a block is given with it, and does not otherwise.
    ///
    /// # Safety
    /// The caller keeps the promise of [`over`](Self::over); the block is one of `memory`'s, and has the
    /// values.
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

    /// Makes its stream wait for all others that use it: the memory is free for work that is queued there
    /// from now on.
    ///
    /// # Errors
    /// If the driver refuses.
    pub(crate) fn order_own_stream(&self) -> Result<(), DeviceAllocError> {
        self.shared.order(&self.shared.stream, false, Uses::write)
    }
}
