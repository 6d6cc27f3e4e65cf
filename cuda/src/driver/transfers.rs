//! Single calls that move bytes in the order of a stream: to and from the host, within a device, fills.
//!
//! Addresses are a device's, or the host's where the driver knows them (pinned and managed memory).

use larder_cuda_abi::{DevicePtr, StreamHandle};

use super::{Driver, DriverError, size};

impl Driver {
    /// Copies to memory of the host, behind what is queued on the stream. It is there once the stream is
    /// done; into memory that is not pinned, when the call returns.
    ///
    /// # Safety
    /// The stream exists, `from` is so many bytes of memory that the driver knows, `to` as many of the
    /// host's. Until the stream is done nobody else touches the latter and it stays where it is.
    ///
    /// # Errors
    /// If the driver refuses; [`DriverError::Size`] for zero bytes.
    pub unsafe fn copy_to_host(
        &self,
        to: *mut u8,
        from: DevicePtr,
        bytes: u64,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        let bytes = size(bytes)?;
        let entry = self.api.cuMemcpyDtoHAsync_v2;
        // SAFETY: DRIVER1; the stream exists; both ranges are that long, and the host's stays,
        // untouched, until the stream is done.
        let code = unsafe { (entry.call)(to.cast(), from, bytes, stream) };
        entry.check(code)
    }

    /// Copies from memory of the host, behind what is queued on the stream.
    ///
    /// # Safety
    /// The stream exists, `to` is so many bytes of memory that the driver knows, `from` as many of the
    /// host's. Until the stream is done nobody else touches the latter and it stays where it is.
    ///
    /// # Errors
    /// If the driver refuses; [`DriverError::Size`] for zero bytes.
    pub unsafe fn copy_to_device(
        &self,
        to: DevicePtr,
        from: *const u8,
        bytes: u64,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        let bytes = size(bytes)?;
        let entry = self.api.cuMemcpyHtoDAsync_v2;
        // SAFETY: DRIVER1; the stream exists; both ranges are that long, and the host's stays,
        // untouched, until the stream is done.
        let code = unsafe { (entry.call)(to, from.cast(), bytes, stream) };
        entry.check(code)
    }

    /// Copies within a device, behind what is queued on the stream.
    ///
    /// # Safety
    /// The stream exists, and both are so many bytes of memory that the driver knows and do not overlap.
    ///
    /// # Errors
    /// If the driver refuses; [`DriverError::Size`] for zero bytes.
    pub unsafe fn copy_within(
        &self,
        to: DevicePtr,
        from: DevicePtr,
        bytes: u64,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        let bytes = size(bytes)?;
        let entry = self.api.cuMemcpyDtoDAsync_v2;
        // SAFETY: DRIVER1; the stream exists; both ranges are that long and do not overlap.
        let code = unsafe { (entry.call)(to, from, bytes, stream) };
        entry.check(code)
    }

    /// Writes the byte so many times, behind what is queued on the stream.
    ///
    /// # Safety
    /// The stream exists, and `to` is so many bytes of memory that the driver knows.
    ///
    /// # Errors
    /// If the driver refuses; [`DriverError::Size`] for none.
    pub unsafe fn fill_bytes(
        &self,
        to: DevicePtr,
        value: u8,
        times: u64,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        let times = size(times)?;
        let entry = self.api.cuMemsetD8Async;
        // SAFETY: DRIVER1; the stream exists; the range is that long.
        let code = unsafe { (entry.call)(to, value, times, stream) };
        entry.check(code)
    }

    /// Writes the two bytes of a value so many times, the lower one first, behind what is queued on the
    /// stream.
    ///
    /// # Safety
    /// The stream exists, and `to` is a multiple of 2 and twice so many bytes of memory that the driver
    /// knows.
    ///
    /// # Errors
    /// If the driver refuses; [`DriverError::Size`] for none.
    pub unsafe fn fill_pairs(
        &self,
        to: DevicePtr,
        value: u16,
        times: u64,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        let times = size(times)?;
        let entry = self.api.cuMemsetD16Async;
        // SAFETY: DRIVER1; the stream exists; the range is aligned, and twice that long.
        let code = unsafe { (entry.call)(to, value, times, stream) };
        entry.check(code)
    }

    /// Writes the four bytes of a value so many times, the lowest first, behind what is queued on the
    /// stream.
    ///
    /// # Safety
    /// The stream exists, and `to` is a multiple of 4 and four times so many bytes of memory that the
    /// driver knows.
    ///
    /// # Errors
    /// If the driver refuses; [`DriverError::Size`] for none.
    pub unsafe fn fill_words(
        &self,
        to: DevicePtr,
        value: u32,
        times: u64,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        let times = size(times)?;
        let entry = self.api.cuMemsetD32Async;
        // SAFETY: DRIVER1; the stream exists; the range is aligned, and four times that long.
        let code = unsafe { (entry.call)(to, value, times, stream) };
        entry.check(code)
    }
}
