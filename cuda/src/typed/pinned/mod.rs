//! [`PinnedBuffer`]: typed host memory that devices copy to and from while the host does other work.
//!
//! `uses` tracks the streams that use a buffer; `pool` has the allocator, which also keeps dropped buffers
//! until their streams are done; `as_stream` has blocks without a type.

mod as_stream;
mod limit;
mod pool;
mod uses;

use core::fmt;
use core::ptr::NonNull;
use std::sync::{Arc, Mutex};

use cudarc::driver::{
    CudaStream, DevicePtr, DevicePtrMut, DeviceRepr, HostSlice, SyncOnDrop, ValidAsZeroBits, result,
};
use larder_core::{Block, Request};

use pool::BufferUser;
pub use pool::PinnedAllocator;
use uses::PinnedUses;

use crate::driver::locked;
use crate::typed::buffer::{bytes_of, check_align, in_our_words};
use crate::{DeviceAllocError, DriverError};

/// `len` values of type `T` in pinned host memory; see [`PinnedAllocator`] for an example.
///
/// The host may read the values while no stream writes them, and write them while no stream uses them:
/// [`as_slice`](PinnedBuffer::as_slice) and [`as_mut_slice`](PinnedBuffer::as_mut_slice) wait for exactly
/// that. Dropping a buffer does not block the host: its memory is freed to the pool, and reused once its
/// streams are done with it.
///
/// cudarc's copies take the buffer itself (`HostSlice`). They record no event, so a later wait of the host
/// covers all work queued on the stream when the wait begins; after [`copy_to`](PinnedBuffer::copy_to) and
/// [`copy_from`](PinnedBuffer::copy_from) it covers only the copy. Never pass cudarc the *slice*: cudarc
/// treats it as memory that is not pinned, whose copies are done when the call returns.
///
/// Captured copies run when the graph is launched, so the program must keep the buffer and wait for the
/// graph.
///
/// A buffer of no bytes has no memory and makes no driver call.
pub struct PinnedBuffer<T> {
    /// The first of `len` values (PINNED1: they are initialized, and ours until `block` is freed).
    first: NonNull<T>,
    len: usize,
    pool: PinnedAllocator,
    /// Taken out when the buffer is dropped; `None` for zero bytes.
    block: Option<Block>,
    uses: Mutex<PinnedUses>,
}

// SAFETY: the buffer owns its values, and all other mutable state is behind locks.
unsafe impl<T: Send> Send for PinnedBuffer<T> {}
// SAFETY: through a shared reference, values are only read; all other mutable state is behind locks.
unsafe impl<T: Sync> Sync for PinnedBuffer<T> {}

impl PinnedAllocator {
    /// Makes a buffer with undefined contents. Makes no driver call while a free chunk fits and no dropped
    /// buffer waits for its streams.
    ///
    /// # Safety
    /// The buffer is written, by a device or through [`as_mut_ptr`](PinnedBuffer::as_mut_ptr), before it is
    /// read as values of `T`.
    ///
    /// # Errors
    /// [`DeviceAllocError::Memory`], [`DeviceAllocError::Budget`].
    pub unsafe fn buffer<T: DeviceRepr>(
        &self,
        len: usize,
    ) -> Result<PinnedBuffer<T>, DeviceAllocError> {
        check_align::<T>();
        let block = match bytes_of::<T>(len)? {
            0 => None,
            bytes => Some(self.take(&Request::new(bytes))?),
        };
        let first = block.as_ref().and_then(|block| {
            // The cast is lossless, since a host address is at most as wide as a pointer. `PinnedMemory`
            // exposed its provenance.
            let address = block.addr().get() as usize;
            NonNull::new(core::ptr::with_exposed_provenance_mut(address))
        });
        Ok(PinnedBuffer {
            first: first.unwrap_or(NonNull::dangling()),
            len,
            pool: self.clone(),
            block,
            uses: Mutex::default(),
        })
    }

    /// Makes a buffer of zeros. O(bytes).
    ///
    /// # Errors
    /// [`DeviceAllocError::Memory`], [`DeviceAllocError::Budget`].
    pub fn zeros<T: DeviceRepr + ValidAsZeroBits>(
        &self,
        len: usize,
    ) -> Result<PinnedBuffer<T>, DeviceAllocError> {
        // SAFETY: the lines below write all of it.
        let buffer = unsafe { self.buffer::<T>(len) }?;
        // SAFETY: the memory has space for `len` values, and is not used yet.
        unsafe { buffer.first.write_bytes(0, len) };
        Ok(buffer)
    }

    /// Makes a buffer with a copy of these values. O(bytes).
    ///
    /// # Errors
    /// [`DeviceAllocError::Memory`], [`DeviceAllocError::Budget`].
    pub fn copy_of<T: DeviceRepr + Copy>(
        &self,
        values: &[T],
    ) -> Result<PinnedBuffer<T>, DeviceAllocError> {
        // SAFETY: the lines below write all of it.
        let buffer = unsafe { self.buffer::<T>(values.len()) }?;
        let from = NonNull::from(values).cast();
        // SAFETY: both have `values.len()` values, and the new memory is used only here.
        unsafe { buffer.first.copy_from_nonoverlapping(from, values.len()) };
        Ok(buffer)
    }
}

impl<T> PinnedBuffer<T> {
    /// Returns the number of values.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no values.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the allocator of the buffer's memory.
    pub const fn allocator(&self) -> &PinnedAllocator {
        &self.pool
    }

    /// Returns the values once no stream writes them. Makes no driver call if no write is noted.
    ///
    /// # Errors
    /// If the driver refuses to wait, or the stream's work failed.
    pub fn as_slice(&self) -> Result<&[T], DriverError> {
        locked(&self.uses).wait(self.pool.events(), false)?;
        // SAFETY: PINNED1: the values are initialized; no device writes them now, and a new write borrows the
        // buffer mutably.
        Ok(unsafe { core::slice::from_raw_parts(self.first.as_ptr(), self.len) })
    }

    /// Returns the values for writing once no stream uses them. Makes no driver call if no use is noted.
    ///
    /// # Errors
    /// If the driver refuses to wait, or the stream's work failed.
    pub fn as_mut_slice(&mut self) -> Result<&mut [T], DriverError> {
        locked(&self.uses).wait(self.pool.events(), true)?;
        // SAFETY: PINNED1: the values are initialized; no device uses them now, and a new use borrows the
        // buffer.
        Ok(unsafe { core::slice::from_raw_parts_mut(self.first.as_ptr(), self.len) })
    }

    /// Returns the address of the first value once no stream uses the buffer; for values that are not
    /// initialized yet.
    ///
    /// # Errors
    /// If the driver refuses to wait, or the stream's work failed.
    pub fn as_mut_ptr(&mut self) -> Result<*mut T, DriverError> {
        locked(&self.uses).wait(self.pool.events(), true)?;
        Ok(self.first.as_ptr())
    }

    /// Returns the address by which kernels on the pool's device reach the first value; 0 for a buffer of no
    /// bytes. It is the host's address, except for [write-combined](crate::PinnedConfig::write_combined)
    /// memory, for which the driver is asked.
    ///
    /// The buffer does not track kernels that use the address: the program must order their work after the
    /// buffer's other uses, and wait for it before using the values or dropping the buffer.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn device_address(&self) -> Result<u64, DriverError> {
        let Some(block) = &self.block else {
            return Ok(0);
        };
        self.pool.device_address(block.addr().get())
    }

    /// Waits until no stream uses the buffer. Makes no driver call if no use is noted.
    ///
    /// # Errors
    /// If the driver refuses to wait, or the stream's work failed.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        locked(&self.uses).wait(self.pool.events(), true)
    }

    /// Copies to a device in the order of the stream, and records one event. The host does not wait, unless
    /// the stream is of another context or is the per-thread default stream.
    ///
    /// # Errors
    /// [`DriverError::Size`] if `to` has a different number of values; [`DriverError::Asleep`] if the
    /// device's memory sleeps; if the driver refuses.
    pub fn copy_to<D: DevicePtrMut<T>>(
        &self,
        stream: &Arc<CudaStream>,
        to: &mut D,
    ) -> Result<(), DriverError>
    where
        T: DeviceRepr,
    {
        self.check_len(to.len())?;
        if self.block.is_none() {
            return Ok(());
        }
        // SAFETY: PINNED1: the values are initialized; once ordered, the copy comes after all writes.
        let values = unsafe { core::slice::from_raw_parts(self.first.as_ptr(), self.len) };
        self.copy(stream, false, || {
            let (to, _guard) = to.device_ptr_mut(stream);
            refuse_asleep(to)?;
            // SAFETY: `to` has space for the values; both buffers stay during the copy.
            let queued = unsafe { result::memcpy_htod_async(to, values, stream.cu_stream()) };
            queued.map_err(|error| in_our_words("cuMemcpyHtoDAsync_v2", error))
        })
    }

    /// Copies from a device in the order of the stream, and records one event. The host does not wait, unless
    /// the stream is of another context or is the per-thread default stream.
    ///
    /// # Errors
    /// [`DriverError::Size`] if `from` has a different number of values; [`DriverError::Asleep`] if the
    /// device's memory sleeps; if the driver refuses.
    pub fn copy_from<S: DevicePtr<T>>(
        &mut self,
        stream: &Arc<CudaStream>,
        from: &S,
    ) -> Result<(), DriverError>
    where
        T: DeviceRepr,
    {
        self.check_len(from.len())?;
        if self.block.is_none() {
            return Ok(());
        }
        let first = self.first.as_ptr();
        self.copy(stream, true, || {
            let (from, _guard) = from.device_ptr(stream);
            refuse_asleep(from)?;
            // SAFETY: PINNED1: the values are ours, and borrowed mutably; the copy comes after all other
            // uses.
            let values = unsafe { core::slice::from_raw_parts_mut(first, self.len) };
            // SAFETY: `from` has as many values; both buffers stay during the copy.
            let queued = unsafe { result::memcpy_dtoh_async(values, from, stream.cu_stream()) };
            queued.map_err(|error| in_our_words("cuMemcpyDtoHAsync_v2", error))
        })
    }

    fn check_len(&self, len: usize) -> Result<(), DriverError> {
        if len == self.len {
            return Ok(());
        }
        let bytes = len.saturating_mul(size_of::<T>()) as u64;
        Err(DriverError::Size { bytes })
    }

    /// Makes a copy after the other uses, notes it, and records its end.
    fn copy(
        &self,
        stream: &Arc<CudaStream>,
        write: bool,
        act: impl FnOnce() -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        let events = self.pool.events();
        self.pool.add_stream(stream);
        let by = self.pool.user(stream);
        locked(&self.uses).order(events, stream, write, by.captures())?;
        if let BufferUser::Known(stream) = &by {
            locked(&self.uses).note(events, stream, write, true);
        }
        let answer = self.pool.context().try_on(stream, |_, _| Ok(act()))?;
        match &by {
            BufferUser::Known(stream) => locked(&self.uses).end(events, stream),
            BufferUser::Unknown => self.pool.context().wait_for(stream)?,
            BufferUser::Capture => {}
        }
        answer
    }

    /// Orders and notes the work that cudarc queues on the stream next. cudarc holds the returned value until
    /// the work is queued.
    fn guard<'a>(&self, stream: &'a CudaStream, write: bool) -> SyncOnDrop<'a> {
        if self.block.is_none() {
            return SyncOnDrop::Record(None);
        }
        let events = self.pool.events();
        let by = self.pool.user(stream);
        let mut uses = locked(&self.uses);
        if uses.order(events, stream, write, by.captures()).is_err() {
            // Repeats the wait through cudarc, for its error.
            let context = stream.context();
            context.record_err(context.synchronize());
        }
        match by {
            BufferUser::Known(stream) => {
                uses.note(events, &stream, write, false);
                SyncOnDrop::Record(None)
            }
            BufferUser::Unknown => SyncOnDrop::Sync(Some(stream)),
            BufferUser::Capture => SyncOnDrop::Record(None),
        }
    }
}

impl<T> HostSlice<T> for PinnedBuffer<T> {
    fn len(&self) -> usize {
        self.len
    }

    unsafe fn stream_synced_slice<'a>(
        &'a self,
        stream: &'a CudaStream,
    ) -> (&'a [T], SyncOnDrop<'a>) {
        let guard = self.guard(stream, false);
        // SAFETY: PINNED1: the values are initialized; the caller passes them only to the stream, which is
        // ordered after all writes.
        let values = unsafe { core::slice::from_raw_parts(self.first.as_ptr(), self.len) };
        (values, guard)
    }

    unsafe fn stream_synced_mut_slice<'a>(
        &'a mut self,
        stream: &'a CudaStream,
    ) -> (&'a mut [T], SyncOnDrop<'a>) {
        let guard = self.guard(stream, true);
        // SAFETY: PINNED1: the values are ours, borrowed mutably; the caller passes them only to the stream,
        // which is ordered after all other uses.
        let values = unsafe { core::slice::from_raw_parts_mut(self.first.as_ptr(), self.len) };
        (values, guard)
    }
}

impl<T> Drop for PinnedBuffer<T> {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            let uses = core::mem::take(&mut *locked(&self.uses));
            self.pool.take_back(block, uses);
        }
    }
}

impl<T> fmt::Debug for PinnedBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedBuffer")
            .field("first", &self.first)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// Refuses the address 0, which a buffer returns while its memory sleeps.
const fn refuse_asleep(address: u64) -> Result<(), DriverError> {
    match address {
        0 => Err(DriverError::Asleep),
        _ => Ok(()),
    }
}
