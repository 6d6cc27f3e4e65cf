//! [`Pools`]: the backend of [`SyncedMemory`](super::SyncedMemory).

use core::alloc::Layout;
use core::marker::PhantomData;
use core::ptr::slice_from_raw_parts_mut;
use std::sync::Arc;

use cudarc::driver::{self as cuda, CudaStream, DeviceRepr, ValidAsZeroBits};

use super::sides::{DeviceValues, HostValues};
use super::state_machine::Backend;
use crate::typed::buffer::in_our_words;
use crate::{BufferView, DeviceAllocError, DeviceAllocator, PinnedAllocator};

/// The memory that the host's side is allocated from.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum HostMemory {
    /// The process heap. The host waits for the stream after each copy.
    Pageable,
    /// Pinned memory only: an access fails if there is none.
    Pinned(PinnedAllocator),
    /// Pinned memory if there is some, otherwise pageable memory.
    PinnedOrPageable(PinnedAllocator),
}

/// The allocators of both sides, and the stream of copies.
pub(super) struct Pools<'a, T> {
    pub(super) memory: DeviceAllocator,
    pub(super) stream: Arc<CudaStream>,
    pub(super) host: HostMemory,
    pub(super) len: usize,
    pub(super) values: PhantomData<HostValues<'a, T>>,
}

impl<T: DeviceRepr + ValidAsZeroBits + Copy> Pools<'_, T> {
    /// Adds a stream that is about to have work on the device's side. If it cannot be added because there are too many,
    /// the host waits for its work immediately.
    ///
    /// # Errors
    /// [`DeviceAllocError::Capturing`], because the work would be done when the graph is launched, if ever;
    /// [`DeviceAllocError::Stream`].
    fn take_stream(
        &self,
        stream: &Arc<CudaStream>,
        device: &BufferView<'_, T>,
    ) -> Result<(), DeviceAllocError> {
        device.refuse_asleep()?;
        let allocator = device.allocator();
        if allocator.captures(stream) {
            return Err(DeviceAllocError::Capturing);
        }
        match allocator.add_stream(stream) {
            Err(DeviceAllocError::Stream) => Err(DeviceAllocError::Stream),
            _ => Ok(()),
        }
    }

    /// Lets cudarc copy memory that is not pinned, and waits for the copy, since on some systems even such a
    /// copy is not done when the call returns.
    fn copy_and_wait(
        &self,
        stream: &CudaStream,
        function: &'static str,
        copy: impl FnOnce() -> Result<(), cuda::DriverError>,
    ) -> Result<(), DeviceAllocError> {
        let context = self.memory.context();
        let answer = context.try_on(stream, |_, _| Ok(copy()))?;
        let waited = context.wait_for(stream);
        answer.map_err(|error| in_our_words(function, error))?;
        Ok(waited?)
    }
}

impl<'a, T: DeviceRepr + ValidAsZeroBits + Copy> Backend for Pools<'a, T> {
    type Host = HostValues<'a, T>;
    type Device = DeviceValues<'a, T>;
    type Stream = Arc<CudaStream>;
    type Error = DeviceAllocError;

    fn alloc_host(&self) -> Result<HostValues<'a, T>, DeviceAllocError> {
        let (pool, or_pageable) = match &self.host {
            HostMemory::Pageable => return pageable(self.len),
            HostMemory::Pinned(pool) => (pool, false),
            HostMemory::PinnedOrPageable(pool) => (pool, true),
        };
        // SAFETY: PAIR1: the memory is read as values only after it has been written.
        match unsafe { pool.buffer(self.len) } {
            Ok(buffer) => Ok(HostValues::Pinned(buffer)),
            Err(_) if or_pageable => pageable(self.len),
            Err(error) => Err(error),
        }
    }

    fn alloc_device(&self) -> Result<DeviceValues<'a, T>, DeviceAllocError> {
        // SAFETY: PAIR1: the memory is read as values only after it has been written.
        let buffer = unsafe { self.memory.buffer(&self.stream, self.len) }?;
        Ok(DeviceValues::Owned(buffer))
    }

    fn zero_host(&self, host: &mut HostValues<'a, T>) -> Result<(), DeviceAllocError> {
        let place = host.place()?;
        // SAFETY: the side has space for `place.len()` values, and is used only here.
        unsafe { place.cast::<T>().write_bytes(0, place.len()) };
        Ok(())
    }

    fn zero_device(&self, device: &mut DeviceValues<'a, T>) -> Result<(), DeviceAllocError> {
        self.take_stream(&self.stream, &device.view())?;
        let mut fill = || self.stream.memset_zeros(&mut device.view_mut());
        let answer = self
            .memory
            .context()
            .try_on(&self.stream, |_, _| Ok(fill()))?;
        answer.map_err(|error| in_our_words("cuMemsetD8Async", error).into())
    }

    fn copy_to_device(
        &self,
        from: &HostValues<'a, T>,
        to: &mut DeviceValues<'a, T>,
    ) -> Result<(), DeviceAllocError> {
        self.push(&self.stream, from, to)
    }

    fn copy_to_host(
        &self,
        from: &DeviceValues<'a, T>,
        to: &mut HostValues<'a, T>,
    ) -> Result<(), DeviceAllocError> {
        self.pull(&self.stream, from, to)?;
        self.wait(to)
    }

    fn push(
        &self,
        stream: &Arc<CudaStream>,
        from: &HostValues<'a, T>,
        to: &mut DeviceValues<'a, T>,
    ) -> Result<(), DeviceAllocError> {
        let mut to = to.view_mut();
        self.take_stream(stream, &to.as_view())?;
        match from {
            HostValues::Pinned(buffer) => Ok(buffer.copy_to(stream, &mut to)?),
            other => {
                let values = other.values()?;
                self.copy_and_wait(stream, "cuMemcpyHtoDAsync_v2", || {
                    stream.memcpy_htod(values, &mut to)
                })
            }
        }
    }

    fn pull(
        &self,
        stream: &Arc<CudaStream>,
        from: &DeviceValues<'a, T>,
        to: &mut HostValues<'a, T>,
    ) -> Result<(), DeviceAllocError> {
        let from = from.view();
        self.take_stream(stream, &from)?;
        match to {
            HostValues::Pinned(buffer) => Ok(buffer.copy_from(stream, &from)?),
            other => {
                let values = other.values_mut()?;
                self.copy_and_wait(stream, "cuMemcpyDtoHAsync_v2", || {
                    stream.memcpy_dtoh(&from, values)
                })
            }
        }
    }

    fn wait(&self, host: &HostValues<'a, T>) -> Result<(), DeviceAllocError> {
        match host {
            HostValues::Pinned(buffer) => Ok(buffer.synchronize()?),
            // The copy was waited for when it was made.
            _ => Ok(()),
        }
    }
}

/// Allocates zeros from the process heap, since a slice must hold valid values even before the first write.
fn pageable<'a, T: ValidAsZeroBits>(len: usize) -> Result<HostValues<'a, T>, DeviceAllocError> {
    let none = |_| DeviceAllocError::Pageable { bytes: usize::MAX };
    let layout = Layout::array::<T>(len).map_err(none)?;
    if layout.size() == 0 {
        return Ok(HostValues::Pageable(Box::default()));
    }
    // SAFETY: the size of the layout is not 0.
    let first = unsafe { std::alloc::alloc_zeroed(layout) };
    if first.is_null() {
        let bytes = layout.size();
        return Err(DeviceAllocError::Pageable { bytes });
    }
    let values = slice_from_raw_parts_mut(first.cast::<T>(), len);
    // SAFETY: allocated with the layout of a box of `len` values; zeros are valid values.
    Ok(HostValues::Pageable(unsafe { Box::from_raw(values) }))
}
