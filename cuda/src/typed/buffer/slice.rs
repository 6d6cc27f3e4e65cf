//! [`BufferSlice`]: a buffer as cudarc's own `CudaSlice`, and back.
//!
//! SLICE1 The memory of a slice is a block that is lent (BYADDR2): nothing else frees it, and the allocator
//!    stays. So a slice that cudarc drops frees nothing: the driver refuses, since memory that is mapped is
//!    none of its allocations.
//! SLICE2 The slice's stream waits for all that used the buffer, and the slice's own event of the last write
//!    is recorded behind that: for whoever uses it on another stream, as cudarc does it.
//! SLICE3 `&mut CudaSlice` lets a program exchange two slices. What comes back is found by the address of the
//!    slice that is brought, not by that of the one that was given.

use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};

use cudarc::driver::{CudaSlice, DevicePtrMut, DeviceRepr};
use larder_core::{Block, StreamId};

use super::{DeviceBuffer, bytes_of, check_align, in_our_words};
use crate::{AdoptError, DeviceAllocError, DeviceAllocator, Returned};

/// A buffer as cudarc's own slice, which it dereferences to: for functions that take `&CudaSlice`. Dropping
/// it frees the memory in the order of the streams that cudarc knows of; the host waits for nothing.
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
/// From here on cudarc orders the uses, by the two events of a slice, and not at all where its event tracking
/// is turned off. Of several streams that read at once it waits for one before the memory is freed: join
/// the others first.
///
/// # Owned slices
/// [`into_cudarc`](Self::into_cudarc) gives the slice away, for libraries that store one;
/// [`DeviceBuffer::from_cudarc`] takes it back. If cudarc drops it instead, the driver refuses to free what
/// is not its own, cudarc's next call is that error, and the memory stays allocated together with its
/// allocator.
pub struct BufferSlice<T> {
    /// Taken in `drop`.
    slice: ManuallyDrop<CudaSlice<T>>,
    memory: DeviceAllocator,
}

impl<T> DeviceBuffer<T> {
    /// The buffer as cudarc's slice. Its stream waits for all others that use it. At most four driver calls
    /// beside those waits: two events are made and one recorded, where cudarc tracks events.
    ///
    /// # Errors
    /// Gives the buffer back if its stream could not be ordered behind the others, or with an error that
    /// cudarc has kept for its next call.
    ///
    /// # Panics
    /// If cudarc, which makes the two events, is refused one.
    #[expect(clippy::result_large_err, reason = "the buffer itself comes back")]
    pub fn into_slice(mut self) -> Result<BufferSlice<T>, Returned<Self, DeviceAllocError>> {
        if self.block.is_some()
            && let Err(error) = self.order_own_stream()
        {
            return Err(Returned { value: self, error });
        }
        let (stream, memory) = (self.shared.stream.clone(), self.shared.memory.clone());
        // What cudarc could tell nobody yet would be its panic below.
        if let Err(error) = stream.context().bind_to_thread() {
            let error = in_our_words("cuCtxSetCurrent", error).into();
            return Err(Returned { value: self, error });
        }
        // SAFETY: SLICE1, for no bytes there is no memory; the values are the buffer's.
        let slice = unsafe { stream.upgrade_device_ptr(self.address, self.len) };
        let mut slice = BufferSlice {
            slice: ManuallyDrop::new(slice),
            memory: memory.clone(),
        };
        if let Some(block) = self.block.take() {
            memory.lend(block);
            // SLICE2: the event is recorded where this ends.
            drop(slice.device_ptr_mut(&stream));
        }
        Ok(slice)
    }

    /// A buffer of a slice of cudarc's that has memory of `memory`: from
    /// [`into_cudarc`](BufferSlice::into_cudarc), or made over a block that is
    /// [kept](DeviceAllocator::keep_addr) under its address. Its stream waits for what cudarc has noted of
    /// the slice; see [`BufferSlice`] for what that leaves out.
    ///
    /// # Errors
    /// Gives the slice back, which cudarc would free, if its memory is not of `memory`, if the block is too
    /// small for the values, or if the allocator cannot know its stream.
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

/// What a slice has: its block, which is no longer lent, and the number of its stream.
fn parts<T>(
    memory: &DeviceAllocator,
    slice: &mut CudaSlice<T>,
) -> Result<(Option<Block>, StreamId), AdoptError> {
    let bytes = bytes_of::<T>(slice.len()).map_err(AdoptError::Alloc)?;
    // cudarc tells the address only for a use. One that writes waits for all that is noted, and notes nothing
    // in its place but itself; one that reads would be noted in the place of another stream's.
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
    /// The buffer again. Its stream waits for what cudarc has noted of the slice.
    ///
    /// # Errors
    /// Gives the slice back if the program exchanged it for one whose memory is not of the same allocator.
    #[expect(clippy::result_large_err, reason = "the slice itself comes back")]
    pub fn into_buffer(self) -> Result<DeviceBuffer<T>, Returned<CudaSlice<T>, AdoptError>> {
        let memory = self.memory.clone();
        DeviceBuffer::of_slice(&memory, self.into_cudarc())
    }

    /// The slice alone, for what stores one. Give it back by [`DeviceBuffer::from_cudarc`]; one that cudarc
    /// drops keeps its memory allocated, and is an error of cudarc's next call.
    pub fn into_cudarc(self) -> CudaSlice<T> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: it is not dropped, so nobody takes the slice a second time.
        let slice = unsafe { ManuallyDrop::take(&mut this.slice) };
        // SAFETY: it is not dropped, so nobody drops this a second time.
        unsafe { core::ptr::drop_in_place(&raw mut this.memory) };
        slice
    }

    /// Where its memory is from.
    pub const fn allocator(&self) -> &DeviceAllocator {
        &self.memory
    }
}

impl<T> Drop for BufferSlice<T> {
    fn drop(&mut self) {
        // SAFETY: the only place but `into_cudarc`, which forgets the rest, that takes it.
        let slice = unsafe { ManuallyDrop::take(&mut self.slice) };
        // One that is not of this memory is cudarc's to free (SLICE3).
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
