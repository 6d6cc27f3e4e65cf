//! [`BufferSlice`]: a buffer as cudarc's own `CudaSlice`, and back.
//!
//! SLICE1 The memory of a slice is a lent block (BYADDR2): nothing else frees it, and the allocator stays. So
//! a slice that cudarc drops frees nothing: the driver refuses, since mapped memory is not one of its
//! allocations.
//! SLICE2 The slice's stream waits for all uses of the buffer, and the slice's own event of the last write is
//! recorded after that: for uses on other streams, as cudarc does it.
//! SLICE3 `&mut CudaSlice` lets a program exchange two slices. A returned block is found by the address of
//! the slice that is passed in, not of the one that was handed out.

use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};

use cudarc::driver::{CudaSlice, DevicePtrMut, DeviceRepr};
use larder_core::{Block, StreamId};

use super::{DeviceBuffer, bytes_of, check_align, in_our_words};
use crate::{AdoptError, DeviceAllocError, DeviceAllocator, Returned};

/// A buffer as cudarc's own slice, which it dereferences to: for functions that take `&CudaSlice`. Dropping
/// it frees the memory in the order of the streams that cudarc knows of; the host does not wait.
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
/// From here on cudarc orders the uses, by the two events of a slice, and not at all if its event tracking is
/// turned off. Of several streams that read at the same time it waits for one before the memory is freed:
/// join the others first.
///
/// # Owned slices
/// [`into_cudarc`](Self::into_cudarc) gives the slice away, for libraries that store one;
/// [`DeviceBuffer::from_cudarc`] takes it back. If cudarc drops it instead, the driver refuses to free memory
/// that is not its own, cudarc's next call returns that error, and the memory is leaked together with its
/// allocator.
pub struct BufferSlice<T> {
    /// Taken in `drop`.
    slice: ManuallyDrop<CudaSlice<T>>,
    memory: DeviceAllocator,
}

impl<T> DeviceBuffer<T> {
    /// Converts the buffer to cudarc's slice. Its stream waits for all others that use it. At most four
    /// driver calls beside those waits: two events are made and one recorded, if cudarc tracks events.
    ///
    /// # Errors
    /// Returns the buffer if its stream could not be ordered after the others, or with an error that cudarc
    /// has kept for its next call.
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
        // SAFETY: SLICE1: the memory is lent below and stays; for no bytes there is none; the values are the
        // buffer's.
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

    /// Makes a buffer of a slice of cudarc's with memory of `memory`: from
    /// [`into_cudarc`](BufferSlice::into_cudarc), or made over a block that is
    /// [kept](DeviceAllocator::keep_addr) under its address. Its stream waits for the uses that cudarc has
    /// noted of the slice; for those it leaves out see [`BufferSlice`].
    ///
    /// # Errors
    /// Returns the slice, which cudarc would free, if its memory is not of `memory`, if the block is too
    /// small for the values, or if its stream cannot be added to the allocator.
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

/// Returns the parts of a slice: its block, which is no longer lent, and the number of its stream.
fn parts<T>(
    memory: &DeviceAllocator,
    slice: &mut CudaSlice<T>,
) -> Result<(Option<Block>, StreamId), AdoptError> {
    let bytes = bytes_of::<T>(slice.len()).map_err(AdoptError::Alloc)?;
    // cudarc reveals the address only for a use. A write waits for all noted uses, and notes only itself in
    // their place; a read would replace the note of another stream.
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

    /// Returns the slice alone, for code that stores one. Take it back by [`DeviceBuffer::from_cudarc`]; if
    /// cudarc drops it, its memory is leaked, and cudarc's next call returns an error.
    pub fn into_cudarc(self) -> CudaSlice<T> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped, so the slice is taken once.
        let slice = unsafe { ManuallyDrop::take(&mut this.slice) };
        // SAFETY: `this` is not dropped, so the field is dropped once.
        unsafe { core::ptr::drop_in_place(&raw mut this.memory) };
        slice
    }

    /// Returns the allocator of its memory.
    pub const fn allocator(&self) -> &DeviceAllocator {
        &self.memory
    }
}

impl<T> Drop for BufferSlice<T> {
    fn drop(&mut self) {
        // SAFETY: taken here once; `into_cudarc`, which takes it too, does not drop the value.
        let slice = unsafe { ManuallyDrop::take(&mut self.slice) };
        // A slice of other memory is cudarc's to free (SLICE3).
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
