//! Adoption of foreign memory as one of the sides.

use core::ptr::NonNull;

use cudarc::driver::{CudaStream, DeviceRepr, ValidAsZeroBits, sys};

use super::pools::Pools;
use super::sides::{DeviceValues, HostValues};
use super::{Head, SyncedMemory};
use crate::{AdoptError, BufferViewMut, DeviceBuffer, PinnedBuffer, Returned};

/// Adoption: other memory replaces one side and holds the newest values from then on. The other side keeps
/// its memory. Each function returns the side that held the newest values until then; those values are lost.
impl<'a, T: DeviceRepr + ValidAsZeroBits + Copy> SyncedMemory<'a, T> {
    /// Adopts a box or a `Vec` as the host's side and owns it.
    ///
    /// # Errors
    /// [`AdoptError::Len`].
    pub fn adopt_host(
        &mut self,
        values: impl Into<Box<[T]>>,
    ) -> Result<Head, Returned<Box<[T]>, AdoptError>> {
        let value = values.into();
        match self.check_len(value.len()) {
            Ok(()) => Ok(self.pair.set_host(HostValues::Pageable(value))),
            Err(error) => Err(Returned { value, error }),
        }
    }

    /// Adopts a pinned buffer as the host's side and owns it.
    ///
    /// # Errors
    /// [`AdoptError::Len`].
    #[expect(clippy::result_large_err, reason = "the buffer itself comes back")]
    pub fn adopt_pinned(
        &mut self,
        buffer: PinnedBuffer<T>,
    ) -> Result<Head, Returned<PinnedBuffer<T>, AdoptError>> {
        match self.check_len(buffer.len()) {
            Ok(()) => Ok(self.pair.set_host(HostValues::Pinned(buffer))),
            Err(error) => Err(Returned {
                value: buffer,
                error,
            }),
        }
    }

    /// Borrows `values` as the host's side: values that the device has written are copied there when the host
    /// reads.
    ///
    /// # Errors
    /// [`AdoptError::Len`].
    pub fn adopt_host_borrowed(&mut self, values: &'a mut [T]) -> Result<Head, AdoptError> {
        self.check_len(values.len())?;
        Ok(self.pair.set_host(HostValues::Borrowed(values)))
    }

    /// Uses memory that Rust does not manage as the host's side.
    ///
    /// # Safety
    /// `values` are initialized and aligned, and are used only by this object until it is dropped or adopts
    /// another host side.
    ///
    /// # Errors
    /// [`AdoptError::Len`].
    pub unsafe fn adopt_host_raw(&mut self, values: NonNull<[T]>) -> Result<Head, AdoptError> {
        self.check_len(values.len())?;
        Ok(self.pair.set_host(HostValues::Raw(values)))
    }

    /// Adopts a buffer as the device's side and owns it.
    ///
    /// # Errors
    /// [`AdoptError::Len`], [`AdoptError::Device`].
    #[expect(clippy::result_large_err, reason = "the buffer itself comes back")]
    pub fn adopt_device(
        &mut self,
        buffer: DeviceBuffer<T>,
    ) -> Result<Head, Returned<DeviceBuffer<T>, AdoptError>> {
        match self.check(buffer.len(), buffer.stream()) {
            Ok(()) => Ok(self.pair.set_device(DeviceValues::Owned(buffer))),
            Err(error) => Err(Returned {
                value: buffer,
                error,
            }),
        }
    }

    /// Borrows a buffer or a part of one as the device's side: values that the host has written are copied
    /// there when the device reads.
    ///
    /// # Errors
    /// [`AdoptError::Len`], [`AdoptError::Device`].
    pub fn adopt_device_borrowed(
        &mut self,
        view: BufferViewMut<'a, T>,
    ) -> Result<Head, AdoptError> {
        self.check(view.len(), view.stream())?;
        Ok(self.pair.set_device(DeviceValues::Borrowed(view)))
    }

    /// Uses memory that is not a buffer as the device's side.
    ///
    /// # Safety
    /// `len` values exist in memory of the same context. No other work uses them until this object is dropped
    /// or adopts another device side, and its streams have then finished with the memory. Work that was
    /// queued earlier is ordered before later work of the object's stream.
    ///
    /// # Errors
    /// [`AdoptError::Len`], [`AdoptError::Alloc`].
    pub unsafe fn adopt_device_raw(
        &mut self,
        address: sys::CUdeviceptr,
        len: usize,
    ) -> Result<Head, AdoptError> {
        self.check_len(len)?;
        let Pools { memory, stream, .. } = self.pair.backend();
        // SAFETY: the caller makes the promise of `over` about values, memory and order.
        let buffer = unsafe { DeviceBuffer::over(memory, stream, address, len) };
        let buffer = buffer.map_err(AdoptError::Alloc)?;
        Ok(self.pair.set_device(DeviceValues::Raw(buffer)))
    }

    fn check_len(&self, len: usize) -> Result<(), AdoptError> {
        let needed = self.len();
        if len == needed {
            Ok(())
        } else {
            Err(AdoptError::Len { len, needed })
        }
    }

    fn check(&self, len: usize, stream: &CudaStream) -> Result<(), AdoptError> {
        self.check_len(len)?;
        let ours = self.context().cudarc().cu_ctx();
        if stream.context().cu_ctx() == ours {
            Ok(())
        } else {
            Err(AdoptError::Device)
        }
    }
}
