//! [`BufferSlice`]: conversion of a buffer to cudarc's own `CudaSlice`, and back.
//!
//! SLICE1 The memory of a slice is a lent block (BYADDR2): nothing else frees it, and the allocator stays
//! alive. A slice that cudarc itself drops frees nothing: the driver refuses, since mapped memory is not one
//! of its allocations.
//! SLICE2 The slice's stream waits for all uses of the buffer. Then the slice's event of the last write is
//! recorded, so that cudarc orders uses on other streams after it.
//! SLICE3 `&mut CudaSlice` lets a program swap two slices. So a block is found by the address of the slice
//! that comes back, which may not be the slice that was handed out.

use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};

use cudarc::driver::{CudaSlice, DevicePtrMut, DeviceRepr};
use larder_core::{Block, StreamId};

use super::{DeviceBuffer, bytes_of, check_align, in_our_words};
use crate::{AdoptError, DeviceAllocError, DeviceAllocator, Returned};

/// A buffer that dereferences to cudarc's own slice, for functions that take `&CudaSlice`. Dropping this
/// frees the memory in the order of the uses that cudarc has noted; the host does not wait.
///
/// ```no_run
/// # let context = larder_cuda::Context::new(0)?;
/// # let memory = larder_cuda::DeviceAllocator::new(&context)?;
/// use cudarc::driver::CudaSlice;
///
/// fn norm(values: &CudaSlice<f32>) { /* a library's */ }
///
/// let stream = context.cudarc().new_stream()?;
/// let values = memory.upload(&stream, &[3.0_f32, 4.0])?.into_slice()?;
/// norm(&values);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Streams
/// After the conversion, cudarc orders the uses through the two events of a slice, and does not order them if
/// its event tracking is turned off. If several streams read at the same time, cudarc waits for only one of
/// them before the memory is freed: join the others first.
///
/// # Owned slices
/// [`into_cudarc`](Self::into_cudarc) returns the slice itself, for libraries that store one;
/// [`DeviceBuffer::from_cudarc`] takes it back. If cudarc drops the slice instead, the driver refuses to free
/// the memory, which is not one of its allocations, cudarc's next call returns that error, and the memory is
/// leaked together with its allocator.
pub struct BufferSlice<T> {
    /// Taken in `drop`.
    slice: ManuallyDrop<CudaSlice<T>>,
    memory: DeviceAllocator,
}

impl<T> DeviceBuffer<T> {
    /// Converts the buffer to cudarc's slice. The buffer's stream waits for all other streams that use the
    /// buffer. In addition to those waits, this costs at most four driver calls: cudarc makes two events and
    /// records one, if it tracks events.
    ///
    /// # Errors
    /// Returns the buffer if its stream could not be ordered after the other streams, or if cudarc has kept
    /// an error for its next call.
    ///
    /// # Panics
    /// If the driver refuses one of the two events that cudarc makes.
    #[expect(clippy::result_large_err, reason = "the buffer itself comes back")]
    pub fn into_slice(mut self) -> Result<BufferSlice<T>, Returned<Self, DeviceAllocError>> {
        if self.block.is_some()
            && let Err(error) = self.order_own_stream()
        {
            return Err(Returned { value: self, error });
        }
        let (stream, memory) = (self.shared.stream.clone(), self.shared.memory.clone());
        // cudarc would panic below because of an error that it has kept.
        if let Err(error) = stream.context().bind_to_thread() {
            let error = in_our_words("cuCtxSetCurrent", error).into();
            return Err(Returned { value: self, error });
        }
        // SAFETY: SLICE1: the memory is lent below and stays; a buffer of no bytes has none; the values are
        // the buffer's.
        let slice = unsafe { stream.upgrade_device_ptr(self.address, self.len) };
        let mut slice = BufferSlice {
            slice: ManuallyDrop::new(slice),
            memory: memory.clone(),
        };
        if let Some(block) = self.block.take() {
            memory.lend(block);
            // SLICE2: dropping the guard records the event.
            drop(slice.device_ptr_mut(&stream));
        }
        Ok(slice)
    }

    /// Makes a buffer from one of cudarc's slices over memory of `memory`. The slice came from
    /// [`into_cudarc`](BufferSlice::into_cudarc), or was made over a block that is
    /// [kept](DeviceAllocator::keep_addr) under its address. The buffer's stream waits for the uses that
    /// cudarc has noted; for those that it does not note see [`BufferSlice`].
    ///
    /// # Errors
    /// Returns the slice if its memory is not a block of `memory`, the block is too small for the values, or
    /// the stream cannot be added to the allocator. cudarc frees the returned slice when it is dropped.
    #[expect(clippy::result_large_err, reason = "the slice itself comes back")]
    pub fn from_cudarc(
        memory: &DeviceAllocator,
        slice: CudaSlice<T>,
    ) -> Result<Self, Returned<CudaSlice<T>, AdoptError>>
    where
        T: DeviceRepr,
    {
        check_align::<T>();
        Self::of_slice(memory, slice)
    }

    #[expect(clippy::result_large_err, reason = "the slice itself comes back")]
    fn of_slice(
        memory: &DeviceAllocator,
        mut slice: CudaSlice<T>,
    ) -> Result<Self, Returned<CudaSlice<T>, AdoptError>> {
        match parts(memory, &mut slice) {
            Ok((block, origin)) => {
                let (stream, len) = (slice.stream().clone(), slice.len());
                let address = slice.leak();
                Ok(Self::of_block(memory, &stream, origin, address, len, block))
            }
            Err(error) => Err(Returned {
                value: slice,
                error,
            }),
        }
    }
}

/// Returns the slice's block, which is no longer lent, and the number of its stream.
fn parts<T>(
    memory: &DeviceAllocator,
    slice: &mut CudaSlice<T>,
) -> Result<(Option<Block>, StreamId), AdoptError> {
    let bytes = bytes_of::<T>(slice.len()).map_err(AdoptError::Alloc)?;
    // cudarc returns the address only for a use. A write waits for all noted uses and takes their place; a
    // read would replace the note of another stream's read.
    let stream = slice.stream().clone();
    let address = slice.device_ptr_mut(&stream).0;
    if bytes == 0 && address == 0 {
        return Ok((None, StreamId::MAIN));
    }
    let origin = memory.known_streams().id(&stream);
    let origin = origin.map_err(AdoptError::Alloc)?;
    let block = memory.take_lent(address, bytes)?;
    Ok((Some(block), origin))
}

impl<T> BufferSlice<T> {
    /// Converts the slice back to a buffer. Its stream waits for the uses that cudarc has noted of the slice.
    ///
    /// # Errors
    /// Returns the slice if the program exchanged it for one whose memory is not of the same allocator.
    #[expect(clippy::result_large_err, reason = "the slice itself comes back")]
    pub fn into_buffer(self) -> Result<DeviceBuffer<T>, Returned<CudaSlice<T>, AdoptError>> {
        let memory = self.memory.clone();
        DeviceBuffer::of_slice(&memory, self.into_cudarc())
    }

    /// Returns cudarc's slice, for code that stores one. [`DeviceBuffer::from_cudarc`] takes it back; if
    /// cudarc drops it, the memory is leaked, and cudarc's next call returns an error.
    pub fn into_cudarc(self) -> CudaSlice<T> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped, so the slice is taken once.
        let slice = unsafe { ManuallyDrop::take(&mut this.slice) };
        // SAFETY: `this` is not dropped, so the field is dropped once.
        unsafe { core::ptr::drop_in_place(&raw mut this.memory) };
        slice
    }

    /// Returns the allocator of the slice's memory.
    pub const fn allocator(&self) -> &DeviceAllocator {
        &self.memory
    }
}

impl<T> Drop for BufferSlice<T> {
    fn drop(&mut self) {
        // SAFETY: taken here once; `into_cudarc`, which takes it too, does not drop the value.
        let slice = unsafe { ManuallyDrop::take(&mut self.slice) };
        // If the slice is of other memory, cudarc frees it (SLICE3).
        drop(DeviceBuffer::of_slice(&self.memory, slice));
    }
}

impl<T> Deref for BufferSlice<T> {
    type Target = CudaSlice<T>;

    fn deref(&self) -> &CudaSlice<T> {
        &self.slice
    }
}

impl<T> DerefMut for BufferSlice<T> {
    fn deref_mut(&mut self) -> &mut CudaSlice<T> {
        &mut self.slice
    }
}

impl<T> fmt::Debug for BufferSlice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferSlice")
            .field("len", &self.slice.len())
            .finish_non_exhaustive()
    }
}
