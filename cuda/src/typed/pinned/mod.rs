//! [`PinnedBuffer`]: typed host memory that devices copy from and to while the host does other things.
//!
//! Which streams use one, `uses` knows; where dropped ones wait, `pool`;
//! blocks without a type, `as_stream`.

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

pub use pool::PinnedAllocator;
use pool::User;
use uses::PinnedUses;

use crate::driver::locked;
use crate::typed::buffer::{bytes_of, check_align, in_our_words};
use crate::{DeviceAllocError, DriverError};

/// `len` values of type `T` in pinned memory of the host; see [`PinnedAllocator`] for an example.
///
/// The host sees the values when no stream writes them, and changes them when no stream uses them:
/// [`as_slice`](PinnedBuffer::as_slice) and [`as_mut_slice`](PinnedBuffer::as_mut_slice) wait for exactly
/// that. A dropped buffer goes back to its pool without a wait of the host and is given again when its
/// streams have passed.
///
/// cudarc's copies take the buffer itself (`HostSlice`). They leave no event behind it, so the host waits
/// later for all that the stream has queued by then; [`copy_to`](PinnedBuffer::copy_to) and
/// [`copy_from`](PinnedBuffer::copy_from) are waited for alone. Never give cudarc the *slice*: it takes it
/// for memory that is not pinned, whose copies are over when they return.
///
/// What a capture copies runs when its graph does: the program keeps the buffer, and waits.
///
/// One of no bytes has no memory and touches no driver.
pub struct PinnedBuffer<T> {
    /// Of values that are there (PINNED1: `len` of them, initialised, and ours until `block` is freed).
    first: NonNull<T>,
    len: usize,
    pool: PinnedAllocator,
    /// Taken when it is freed; none for no bytes.
    block: Option<Block>,
    uses: Mutex<PinnedUses>,
}

// SAFETY: it owns its values, and the rest is locked.
unsafe impl<T: Send> Send for PinnedBuffer<T> {}
// SAFETY: behind a shared reference values are only read, and the rest is locked.
unsafe impl<T: Sync> Sync for PinnedBuffer<T> {}

impl PinnedAllocator {
    /// A buffer that holds whatever was there. No driver call while something fits.
    ///
    /// # Safety
    /// It is written, by a device or through [`as_mut_ptr`](PinnedBuffer::as_mut_ptr), before it is read as
    /// values of `T`.
    ///
    /// # Errors
    /// [`DeviceAllocError::Memory`].
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
            // A host address is at most as wide as a pointer; `PinnedMemory` exposed it.
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

    /// A buffer of zeros. O(bytes).
    ///
    /// # Errors
    /// [`DeviceAllocError::Memory`].
    pub fn zeros<T: DeviceRepr + ValidAsZeroBits>(
        &self,
        len: usize,
    ) -> Result<PinnedBuffer<T>, DeviceAllocError> {
        // SAFETY: the lines below write all of it.
        let buffer = unsafe { self.buffer::<T>(len) }?;
        // SAFETY: the memory has room for `len` values, and nobody uses it yet.
        unsafe { buffer.first.write_bytes(0, len) };
        Ok(buffer)
    }

    /// A buffer with a copy of these values. O(bytes).
    ///
    /// # Errors
    /// [`DeviceAllocError::Memory`].
    pub fn copy_of<T: DeviceRepr + Copy>(
        &self,
        values: &[T],
    ) -> Result<PinnedBuffer<T>, DeviceAllocError> {
        // SAFETY: the lines below write all of it.
        let buffer = unsafe { self.buffer::<T>(values.len()) }?;
        let from = NonNull::from(values).cast();
        // SAFETY: both have so many values, and the new memory is nobody else's.
        unsafe { buffer.first.copy_from_nonoverlapping(from, values.len()) };
        Ok(buffer)
    }
}

impl<T> PinnedBuffer<T> {
    /// How many values.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where its memory is from.
    pub const fn allocator(&self) -> &PinnedAllocator {
        &self.pool
    }

    /// The values, once no stream writes them. No driver call if none does.
    ///
    /// # Errors
    /// If the driver refuses to wait, or the work failed.
    pub fn as_slice(&self) -> Result<&[T], DriverError> {
        locked(&self.uses).wait(self.pool.events(), false)?;
        // SAFETY: PINNED1; no device writes now, and one that begins needs the buffer mutably.
        Ok(unsafe { core::slice::from_raw_parts(self.first.as_ptr(), self.len) })
    }

    /// The values, once no stream uses them. No driver call if none does.
    ///
    /// # Errors
    /// If the driver refuses to wait, or the work failed.
    pub fn as_mut_slice(&mut self) -> Result<&mut [T], DriverError> {
        locked(&self.uses).wait(self.pool.events(), true)?;
        // SAFETY: PINNED1; no device uses it now, and one that begins needs the buffer.
        Ok(unsafe { core::slice::from_raw_parts_mut(self.first.as_ptr(), self.len) })
    }

    /// The address of the first value, once no stream uses them; for a buffer that holds no values yet.
    ///
    /// # Errors
    /// If the driver refuses to wait, or the work failed.
    pub fn as_mut_ptr(&mut self) -> Result<*mut T, DriverError> {
        locked(&self.uses).wait(self.pool.events(), true)?;
        Ok(self.first.as_ptr())
    }

    /// The address by which kernels on the pool's device reach the first value; 0 for no bytes. It is the
    /// host's, but for [write-combined](crate::PinnedConfig::write_combined) memory, where the driver is asked.
    ///
    /// What kernels do with it the buffer does not see: the program orders that work behind its other uses, and
    /// waits for it before it uses the values or drops the buffer.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn device_address(&self) -> Result<u64, DriverError> {
        let Some(block) = &self.block else {
            return Ok(0);
        };
        self.pool.device_address(block.addr().get())
    }

    /// Waits until no stream uses the buffer. No driver call if none does.
    ///
    /// # Errors
    /// If the driver refuses to wait, or the work failed.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        locked(&self.uses).wait(self.pool.events(), true)
    }

    /// Copies to a device in the order of the stream and does not wait for it. One event, besides.
    ///
    /// # Errors
    /// [`DriverError::Size`] if there are not as many values there; [`DriverError::Asleep`] if the device's memory
    /// sleeps; if the driver refuses.
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
        // SAFETY: PINNED1; the stream comes behind whoever writes, once it is ordered.
        let values = unsafe { core::slice::from_raw_parts(self.first.as_ptr(), self.len) };
        self.copy(stream, false, || {
            let (to, _guard) = to.device_ptr_mut(stream);
            refuse_asleep(to)?;
            // SAFETY: there is room for as many; both stay while the copy goes on.
            let queued = unsafe { result::memcpy_htod_async(to, values, stream.cu_stream()) };
            queued.map_err(|error| in_our_words("cuMemcpyHtoDAsync_v2", error))
        })
    }

    /// Copies from a device in the order of the stream and does not wait for it. One event, besides.
    ///
    /// # Errors
    /// [`DriverError::Size`] if there are not as many values there; [`DriverError::Asleep`] if the device's memory
    /// sleeps; if the driver refuses.
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
            // SAFETY: PINNED1; the buffer is ours alone, and the stream comes behind all others.
            let values = unsafe { core::slice::from_raw_parts_mut(first, self.len) };
            // SAFETY: there are as many; both stay while the copy goes on.
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

    /// Makes a copy behind the other uses, notes it, and notes its end.
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
        if let User::Known(stream) = &by {
            locked(&self.uses).note(events, stream, write, true);
        }
        let answer = self.pool.context().try_on(stream, |_, _| Ok(act()))?;
        match &by {
            User::Known(stream) => locked(&self.uses).end(events, stream),
            User::Unknown => self.pool.context().wait_for(stream)?,
            User::Capture => {}
        }
        answer
    }

    /// Orders and notes work of cudarc that is queued on the stream next. What cudarc holds until then.
    fn guard<'a>(&self, stream: &'a CudaStream, write: bool) -> SyncOnDrop<'a> {
        if self.block.is_none() {
            return SyncOnDrop::Record(None);
        }
        let events = self.pool.events();
        let by = self.pool.user(stream);
        let mut uses = locked(&self.uses);
        if uses.order(events, stream, write, by.captures()).is_err() {
            // Once more through cudarc, for its words.
            let context = stream.context();
            context.record_err(context.synchronize());
        }
        match by {
            User::Known(stream) => {
                uses.note(events, &stream, write, false);
                SyncOnDrop::Record(None)
            }
            User::Unknown => SyncOnDrop::Sync(Some(stream)),
            User::Capture => SyncOnDrop::Record(None),
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
        // SAFETY: PINNED1; the caller gives it to the stream only, which is ordered behind whoever writes.
        let values = unsafe { core::slice::from_raw_parts(self.first.as_ptr(), self.len) };
        (values, guard)
    }

    unsafe fn stream_synced_mut_slice<'a>(
        &'a mut self,
        stream: &'a CudaStream,
    ) -> (&'a mut [T], SyncOnDrop<'a>) {
        let guard = self.guard(stream, true);
        // SAFETY: PINNED1; the caller gives it to the stream only, which is ordered behind all others.
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

/// Refuses an address of memory that sleeps, in whose place a buffer says 0.
const fn refuse_asleep(address: u64) -> Result<(), DriverError> {
    match address {
        0 => Err(DriverError::Asleep),
        _ => Ok(()),
    }
}
