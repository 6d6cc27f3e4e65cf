//! Single calls that move bytes in stream order: copies to and from the host and within a device, and fills.
//!
//! Addresses are in device memory, or in host memory that the driver knows (pinned and managed memory).

use larder_cuda_abi::{DevicePtr, StreamHandle};

use super::{Driver, DriverError, size};

impl Driver {
    /// Copies to host memory, after the work queued on the stream. The copy is complete once the stream is
    /// done or, if the host memory is not pinned, when the call returns.
    ///
    /// # Safety
    /// The stream exists; `from` points to `bytes` bytes of memory that the driver knows, and `to` to as many
    /// bytes of host memory. Until the stream is done, the host memory stays allocated and nothing else
    /// accesses it.
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
        // SAFETY: DRIVER1; the stream exists; both ranges are `bytes` long, and the host's stays allocated and
        // is not accessed until the stream is done.
        let code = unsafe { (entry.call)(to.cast(), from, bytes, stream) };
        entry.check(code)
    }

    /// Copies from host memory, after the work queued on the stream.
    ///
    /// # Safety
    /// The stream exists; `to` points to `bytes` bytes of memory that the driver knows, and `from` to as many
    /// bytes of host memory. Until the stream is done, the host memory stays allocated and nothing else
    /// accesses it.
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
        // SAFETY: DRIVER1; the stream exists; both ranges are `bytes` long, and the host's stays allocated and
        // is not accessed until the stream is done.
        let code = unsafe { (entry.call)(to, from.cast(), bytes, stream) };
        entry.check(code)
    }

    /// Copies within a device, after the work queued on the stream.
    ///
    /// # Safety
    /// The stream exists; both ranges are `bytes` bytes of memory that the driver knows, and they do not
    /// overlap.
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
        // SAFETY: DRIVER1; the stream exists; both ranges are `bytes` long and do not overlap.
        let code = unsafe { (entry.call)(to, from, bytes, stream) };
        entry.check(code)
    }

    /// Writes a byte `times` times, after the work queued on the stream.
    ///
    /// # Safety
    /// The stream exists, and `to` points to `times` bytes of memory that the driver knows.
    ///
    /// # Errors
    /// If the driver refuses; [`DriverError::Size`] if `times` is zero.
    pub unsafe fn fill_bytes(
        &self,
        to: DevicePtr,
        value: u8,
        times: u64,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        let times = size(times)?;
        let entry = self.api.cuMemsetD8Async;
        // SAFETY: DRIVER1; the stream exists; the range is `times` bytes long.
        let code = unsafe { (entry.call)(to, value, times, stream) };
        entry.check(code)
    }

    /// Writes the two bytes of a value `times` times in little-endian order, after the work queued on the
    /// stream.
    ///
    /// # Safety
    /// The stream exists, and `to` is a multiple of 2 and points to `2 * times` bytes of memory that the driver
    /// knows.
    ///
    /// # Errors
    /// If the driver refuses; [`DriverError::Size`] if `times` is zero.
    pub unsafe fn fill_pairs(
        &self,
        to: DevicePtr,
        value: u16,
        times: u64,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        let times = size(times)?;
        let entry = self.api.cuMemsetD16Async;
        // SAFETY: DRIVER1; the stream exists; the range is aligned, and `2 * times` bytes long.
        let code = unsafe { (entry.call)(to, value, times, stream) };
        entry.check(code)
    }

    /// Writes the four bytes of a value `times` times in little-endian order, after the work queued on the
    /// stream.
    ///
    /// # Safety
    /// The stream exists, and `to` is a multiple of 4 and points to `4 * times` bytes of memory that the driver
    /// knows.
    ///
    /// # Errors
    /// If the driver refuses; [`DriverError::Size`] if `times` is zero.
    pub unsafe fn fill_words(
        &self,
        to: DevicePtr,
        value: u32,
        times: u64,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        let times = size(times)?;
        let entry = self.api.cuMemsetD32Async;
        // SAFETY: DRIVER1; the stream exists; the range is aligned, and `4 * times` bytes long.
        let code = unsafe { (entry.call)(to, value, times, stream) };
        entry.check(code)
    }
}
