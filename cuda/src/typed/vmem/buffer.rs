//! [`VmemBuffer`]: typed memory on either side, which can be moved to the device.

use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::Deref;
use std::sync::Arc;

use cudarc::driver::{CudaStream, DeviceRepr, HostSlice, ValidAsZeroBits};
use larder_core::vmem::Placement;
use larder_core::{Block, Request};

use super::VmemAllocator;
use crate::typed::buffer::{bytes_of, check_align};
use crate::{BufferViewMut, DeviceAllocError, DeviceBuffer, StreamAllocator};

/// `len` values of type `T` in device memory, or in host memory if the device was full. Dropping the buffer
/// frees the memory in the order of the streams that used it; the host does not wait.
///
/// Kernels and cudarc's functions accept the buffer's views, whichever side it is on:
///
/// ```no_run
/// # use larder_cuda::{Context, DeviceAllocator, HostSide, VmemAllocator, VmemConfig};
/// # let context = Context::new(0)?;
/// # let device = DeviceAllocator::new(&context)?;
/// # let memory = VmemAllocator::new(&device, VmemConfig::new(HostSide::Pinned(1 << 30)))?;
/// let stream = context.cudarc().new_stream()?;
/// let mut numbers = memory.zeros::<f32>(&stream, 1000)?;
/// stream.memset_zeros(&mut numbers.as_view_mut())?;
/// let values = stream.clone_dtoh(&numbers.as_view())?;
/// # let mut other = memory.zeros::<f32>(&stream, 1000)?;
/// // At the end of a step, when there is room again:
/// let moved = memory.migrate([&mut numbers as _, &mut other as _]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Uses on several streams are ordered, like those of a [`DeviceBuffer`]. Launches of a captured graph are
/// not tracked: the program must not move a buffer that a graph uses.
pub struct VmemBuffer<T> {
    /// The values: a buffer that owns a block of the device's side, or a buffer over `host`. Taken out in
    /// `drop`.
    buffer: ManuallyDrop<DeviceBuffer<T>>,
    /// The block, if the buffer is on the host's side.
    host: Option<Block>,
    /// Granted bytes, which are part of the joint count (VMGPU2).
    granted_bytes: u64,
    memory: VmemAllocator,
}

impl VmemAllocator {
    /// Makes a buffer for work that is queued on `stream` from now on; the contents are undefined. Costs as
    /// much as [`alloc`](StreamAllocator::alloc).
    ///
    /// # Safety
    /// The buffer is written before it is read as values of `T`.
    ///
    /// # Errors
    /// The errors of [`alloc`](StreamAllocator::alloc), with `TooLarge` inside if the size overflows.
    pub unsafe fn buffer<T: DeviceRepr>(
        &self,
        stream: &Arc<CudaStream>,
        len: usize,
    ) -> Result<VmemBuffer<T>, DeviceAllocError> {
        check_align::<T>();
        let device = &self.0.device;
        let bytes = bytes_of::<T>(len)?;
        if bytes == 0 {
            // SAFETY: there are no bytes to be read.
            let buffer = unsafe { device.buffer(stream, len) }?;
            return Ok(VmemBuffer::of(self, buffer, None, 0));
        }
        let block = self.alloc(stream, bytes)?;
        let (granted_bytes, address) = (block.bytes(), block.addr().get());
        let (block, host) = match self.placement(&block) {
            Placement::Device => (Some(block), None),
            Placement::Host => (None, Some(block)),
        };
        // SAFETY: the block has space for the values at their alignment, and is freed with the buffer, or
        // after its uses (`drop`). The stream has a number, since it has allocated.
        let buffer = unsafe { DeviceBuffer::of_parts(device, stream, address, len, block) }?;
        Ok(VmemBuffer::of(self, buffer, host, granted_bytes))
    }

    /// Makes a buffer of zeros, which are written in the order of `stream`.
    ///
    /// # Errors
    /// The errors of [`alloc`](StreamAllocator::alloc), and if the driver refuses to write.
    pub fn zeros<T: DeviceRepr + ValidAsZeroBits>(
        &self,
        stream: &Arc<CudaStream>,
        len: usize,
    ) -> Result<VmemBuffer<T>, DeviceAllocError> {
        // SAFETY: the next call writes all of it.
        let mut buffer = unsafe { self.buffer::<T>(stream, len) }?;
        if buffer.granted_bytes > 0 {
            let device = &self.0.device;
            device.call("cuMemsetD8Async", || {
                stream.memset_zeros(&mut buffer.as_view_mut())
            })?;
        }
        Ok(buffer)
    }

    /// Makes a buffer with a copy of these values, which is made in the order of `stream`.
    ///
    /// # Errors
    /// The errors of [`alloc`](StreamAllocator::alloc), and if the driver refuses to copy.
    pub fn upload<T: DeviceRepr, S: HostSlice<T> + ?Sized>(
        &self,
        stream: &Arc<CudaStream>,
        values: &S,
    ) -> Result<VmemBuffer<T>, DeviceAllocError> {
        // SAFETY: the next call writes all of it.
        let mut buffer = unsafe { self.buffer::<T>(stream, values.len()) }?;
        if buffer.granted_bytes > 0 {
            let device = &self.0.device;
            device.call("cuMemcpyHtoDAsync_v2", || {
                stream.memcpy_htod(values, &mut buffer.as_view_mut())
            })?;
        }
        Ok(buffer)
    }

    /// Moves buffers from the host's side to the device while the device has memory: each buffer is copied on
    /// its own stream, after all uses so far, and its host memory is free after the copy. The host does not
    /// wait. The best time is the end of a step, when the step's blocks have been freed.
    ///
    /// A buffer that does not fit, or that the driver refuses to copy, stays where it is and keeps its
    /// values.
    pub fn migrate<'b>(&self, buffers: impl IntoIterator<Item = &'b mut dyn Movable>) -> Migrated {
        let mut migrated = Migrated::default();
        for buffer in buffers {
            if buffer.placement() == Placement::Device {
                continue;
            }
            let bytes = buffer.bytes();
            match buffer.move_to_device() {
                Ok(_) => migrated.moved_bytes += bytes,
                Err(error) => {
                    migrated.left_bytes += bytes;
                    if !error.is_want_of_memory() {
                        migrated.refusal.get_or_insert(error);
                    }
                }
            }
        }
        migrated
    }
}

/// The outcome of [`VmemAllocator::migrate`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[must_use = "what was left is still on the host's side"]
#[non_exhaustive]
pub struct Migrated {
    /// Bytes of values moved to the device.
    pub moved_bytes: u64,
    /// Bytes of values still on the host's side.
    pub left_bytes: u64,
    /// The first refusal for a reason other than a lack of memory.
    pub refusal: Option<DeviceAllocError>,
}

/// A buffer with values of any type, for [`VmemAllocator::migrate`].
pub trait Movable: private::Sealed {
    /// Returns the side that the buffer is on.
    fn placement(&self) -> Placement;

    /// Returns the size of the buffer's values in bytes.
    fn bytes(&self) -> u64;

    /// Moves the buffer to the device in the order of its stream, if it is on the host's side, and returns
    /// the number of bytes copied. The host does not wait. Addresses that were taken from the buffer earlier
    /// are invalid for work that is queued from now on.
    ///
    /// # Errors
    /// If the device has no memory, the stream is being captured, or the driver refuses. The buffer is
    /// unchanged.
    fn move_to_device(&mut self) -> Result<u64, DeviceAllocError>;
}

mod private {
    pub trait Sealed {}
    impl<T> Sealed for super::VmemBuffer<T> {}
}

impl<T> VmemBuffer<T> {
    fn of(
        memory: &VmemAllocator,
        buffer: DeviceBuffer<T>,
        host: Option<Block>,
        granted_bytes: u64,
    ) -> Self {
        Self {
            buffer: ManuallyDrop::new(buffer),
            host,
            granted_bytes,
            memory: memory.clone(),
        }
    }

    /// Returns the allocator of the buffer's memory.
    pub const fn allocator(&self) -> &VmemAllocator {
        &self.memory
    }

    /// Returns a view of all values, for writing.
    pub fn as_view_mut(&mut self) -> BufferViewMut<'_, T> {
        self.buffer.as_view_mut()
    }
}

/// The length, stream and views are those of a [`DeviceBuffer`], on either side.
impl<T> Deref for VmemBuffer<T> {
    type Target = DeviceBuffer<T>;

    fn deref(&self) -> &DeviceBuffer<T> {
        &self.buffer
    }
}

impl<T: DeviceRepr> Movable for VmemBuffer<T> {
    fn placement(&self) -> Placement {
        match self.host {
            Some(_) => Placement::Host,
            None => Placement::Device,
        }
    }

    fn bytes(&self) -> u64 {
        self.buffer.num_bytes() as u64
    }

    fn move_to_device(&mut self) -> Result<u64, DeviceAllocError> {
        if self.host.is_none() {
            return Ok(0);
        }
        let inner = &*self.memory.0;
        let (device, stream) = (&inner.device, self.buffer.stream().clone());
        if device.captures(&stream) {
            return Err(DeviceAllocError::Capturing);
        }
        let (len, bytes) = (self.len(), self.bytes());
        let block = device.alloc_without_host_wait(&stream, &Request::new(bytes))?;
        let granted_bytes = block.bytes();
        let address = block.addr().get();
        // SAFETY: the block has space for the values at their alignment, and is freed with the buffer; the
        // copy below writes all of it.
        let moved = unsafe { DeviceBuffer::of_parts(device, &stream, address, len, Some(block)) };
        let mut moved = moved?;
        device.call("cuMemcpyDtoDAsync_v2", || {
            stream.memcpy_dtod(&*self.buffer, &mut moved)
        })?;
        inner.joint.add(granted_bytes);
        let old = core::mem::replace(&mut *self.buffer, moved);
        let old_bytes = core::mem::replace(&mut self.granted_bytes, granted_bytes);
        let host = self.host.take();
        self.memory.free_host(&old, host, old_bytes);
        Ok(bytes)
    }
}

impl VmemAllocator {
    /// Frees a buffer's block of the host's side after all uses of the buffer.
    fn free_host<T>(&self, buffer: &DeviceBuffer<T>, block: Option<Block>, granted_bytes: u64) {
        let inner = &*self.0;
        inner.joint.take_off(granted_bytes);
        let (Some(host), Some(block)) = (&inner.host, block) else {
            return;
        };
        if buffer.order_own_stream().is_err() && inner.device.context().synchronize().is_err() {
            // It is unknown when the last use ends, so the block is leaked until the allocator is dropped.
            return;
        }
        let freed = host.free(buffer.stream(), block);
        debug_assert!(freed.is_ok(), "VMGPU1: a block of the host's side");
    }
}

impl<T> Drop for VmemBuffer<T> {
    fn drop(&mut self) {
        // SAFETY: taken once, here, and the field is not used again.
        let buffer = unsafe { ManuallyDrop::take(&mut self.buffer) };
        let host = self.host.take();
        if host.is_some() {
            self.memory.free_host(&buffer, host, self.granted_bytes);
        } else {
            self.memory.0.joint.take_off(self.granted_bytes);
        }
        // Frees the block of the device's side, if the buffer has one.
        drop(buffer);
    }
}

impl<T> fmt::Debug for VmemBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VmemBuffer")
            .field("buffer", &*self.buffer)
            .field("on_host", &self.host.is_some())
            .finish_non_exhaustive()
    }
}
