//! Values of a buffer: copies, reads by the host, and uninitialized values.

use core::mem::{ManuallyDrop, MaybeUninit};
use std::sync::Arc;

use cudarc::driver::{CudaStream, DeviceRepr};

use super::{BufferView, DeviceBuffer, check_align, in_our_words};
use crate::{DeviceAllocError, DeviceAllocator};

impl DeviceAllocator {
    /// Makes a buffer of uninitialized values, for work that is queued on `stream` from now on. Costs as much
    /// as [`alloc`](Self::alloc).
    ///
    /// ```no_run
    /// # use cudarc::driver::{CudaFunction, LaunchConfig, PushKernelArg};
    /// # use larder_cuda::{Launch, DeviceAllocator, DeviceBuffer};
    /// # fn example(memory: &DeviceAllocator, stream: &std::sync::Arc<larder_cuda::CudaStream>, ones: CudaFunction)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// let mut room = memory.uninit::<f32>(stream, 100)?;
    /// // SAFETY: the kernel takes one pointer and writes 100 numbers.
    /// unsafe { Launch::on(stream, &ones).arg(&mut room).launch(LaunchConfig::for_num_elems(100)) }?;
    /// // SAFETY: the kernel writes them all.
    /// let values: DeviceBuffer<f32> = unsafe { room.assume_init() };
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`alloc`](Self::alloc), with [`TooLarge`](larder_core::AllocError::TooLarge) inside if
    /// the size overflows.
    pub fn uninit<T: DeviceRepr>(
        &self,
        stream: &Arc<CudaStream>,
        len: usize,
    ) -> Result<DeviceBuffer<MaybeUninit<T>>, DeviceAllocError> {
        check_align::<T>();
        // SAFETY: the values stay `MaybeUninit` until the caller promises that they are written.
        let buffer = unsafe { self.buffer::<T>(stream, len) }?;
        Ok(buffer.cast())
    }
}

impl<T> DeviceBuffer<MaybeUninit<T>> {
    /// Asserts that the values are initialized. Makes no driver call.
    ///
    /// # Safety
    /// Work that writes every value is already queued, through the buffer or its parts.
    pub unsafe fn assume_init(self) -> DeviceBuffer<T> {
        self.cast()
    }
}

impl<T> DeviceBuffer<T> {
    /// Converts between values and `MaybeUninit` values.
    fn cast<S>(self) -> DeviceBuffer<S> {
        const { assert!(size_of::<S>() == size_of::<T>() && align_of::<S>() == align_of::<T>()) };
        let mut this = ManuallyDrop::new(self);
        DeviceBuffer {
            address: this.address,
            len: this.len,
            block: this.block.take(),
            // SAFETY: `this` is not dropped, so the state has one owner.
            shared: unsafe { core::ptr::read(&raw const this.shared) },
            values: core::marker::PhantomData,
        }
    }
}

impl<T: DeviceRepr> DeviceBuffer<T> {
    /// Copies the buffer to a new one from the same allocator, in the order of the buffer's stream.
    ///
    /// # Errors
    /// The errors of [`DeviceAllocator::alloc`], and if the driver refuses to copy.
    pub fn try_clone(&self) -> Result<Self, DeviceAllocError> {
        self.as_view().try_clone()
    }

    /// Copies the values to the host in the order of the buffer's stream; the host waits for them.
    /// `Vec::try_from` does the same. To read on another stream, call [`CudaStream::clone_dtoh`].
    ///
    /// # Errors
    /// [`DeviceAllocError::Asleep`]; if the driver refuses to copy, or cudarc has kept an error for its next
    /// call.
    pub fn to_vec(&self) -> Result<Vec<T>, DeviceAllocError> {
        self.as_view().to_vec()
    }
}

impl<T: DeviceRepr> BufferView<'_, T> {
    /// Copies the part to a new buffer from the same allocator, in the order of this buffer's stream.
    ///
    /// # Errors
    /// The errors of [`DeviceAllocator::alloc`], and if the driver refuses to copy.
    pub fn try_clone(&self) -> Result<DeviceBuffer<T>, DeviceAllocError> {
        let (memory, stream) = (self.allocator(), self.stream());
        // SAFETY: the next call writes all of it.
        let mut copy = unsafe { memory.buffer(stream, self.len()) }?;
        if copy.block.is_some() {
            memory.call("cuMemcpyDtoDAsync_v2", || {
                stream.memcpy_dtod(self, &mut copy)
            })?;
        }
        Ok(copy)
    }

    /// Copies the values of the part to the host in the order of the buffer's stream; the host waits for
    /// them.
    ///
    /// # Errors
    /// [`DeviceAllocError::Asleep`]; if the driver refuses to copy, or cudarc has kept an error for its next
    /// call.
    pub fn to_vec(&self) -> Result<Vec<T>, DeviceAllocError> {
        if self.is_empty() {
            return Ok(Vec::new());
        }
        self.refuse_asleep()?;
        let stream = self.stream();
        let read = || {
            let values = stream.clone_dtoh(self)?;
            // Finds errors after the copy, such as a refused wait for it.
            stream.context().check_err()?;
            Ok(values)
        };
        let answer = self.allocator().context().with_current(|_| read())?;
        answer.map_err(|error| in_our_words("cuMemcpyDtoHAsync_v2", error).into())
    }
}

/// Reads the values in the order of the buffer's stream, and frees the buffer.
impl<T: DeviceRepr> TryFrom<DeviceBuffer<T>> for Vec<T> {
    type Error = DeviceAllocError;

    fn try_from(buffer: DeviceBuffer<T>) -> Result<Self, DeviceAllocError> {
        buffer.to_vec()
    }
}
