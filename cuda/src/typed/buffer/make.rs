//! Constructors of buffers.

use std::sync::Arc;

use cudarc::driver::{self as cuda, CudaStream, DeviceRepr, HostSlice, ValidAsZeroBits};
use larder_core::{AllocError, StreamId};
use larder_cuda_abi::Code;

use super::{DeviceBuffer, check_align};
use crate::{DeviceAllocError, DeviceAllocator, DriverError};

impl DeviceAllocator {
    /// Makes a buffer for work that is queued on `stream` from now on; the contents are undefined. Costs as
    /// much as [`alloc`](Self::alloc).
    ///
    /// # Safety
    /// The buffer is written before it is read as values of `T`.
    ///
    /// # Errors
    /// The errors of [`alloc`](Self::alloc), with [`AllocError::TooLarge`] inside if the size overflows.
    pub unsafe fn buffer<T: DeviceRepr>(
        &self,
        stream: &Arc<CudaStream>,
        len: usize,
    ) -> Result<DeviceBuffer<T>, DeviceAllocError> {
        check_align::<T>();
        let bytes = bytes_of::<T>(len)?;
        let (block, origin) = match bytes {
            0 => (None, StreamId::MAIN),
            bytes => {
                let block = self.alloc(stream, bytes)?;
                (Some(block), self.known_streams().id(stream)?)
            }
        };
        let address = block.as_ref().map_or(0, |block| block.addr().get());
        Ok(DeviceBuffer::of_block(
            self, stream, origin, address, len, block,
        ))
    }

    /// Makes a buffer of zeros, which are written in the order of `stream`.
    ///
    /// # Errors
    /// The errors of [`alloc`](Self::alloc), and if the driver refuses to write.
    pub fn zeros<T: DeviceRepr + ValidAsZeroBits>(
        &self,
        stream: &Arc<CudaStream>,
        len: usize,
    ) -> Result<DeviceBuffer<T>, DeviceAllocError> {
        // SAFETY: the next call writes all of it.
        let mut buffer = unsafe { self.buffer(stream, len) }?;
        if buffer.block.is_some() {
            self.call("cuMemsetD8Async", || stream.memset_zeros(&mut buffer))?;
        }
        Ok(buffer)
    }

    /// Makes a buffer with a copy of these values, which is made in the order of `stream`. If their memory is
    /// not pinned, the driver reads it before this returns.
    ///
    /// # Errors
    /// The errors of [`alloc`](Self::alloc), and if the driver refuses to copy.
    pub fn upload<T: DeviceRepr, S: HostSlice<T> + ?Sized>(
        &self,
        stream: &Arc<CudaStream>,
        values: &S,
    ) -> Result<DeviceBuffer<T>, DeviceAllocError> {
        // SAFETY: the next call writes all of it.
        let mut buffer = unsafe { self.buffer(stream, values.len()) }?;
        if buffer.block.is_some() {
            let copy = || stream.memcpy_htod(values, &mut buffer);
            self.call("cuMemcpyHtoDAsync_v2", copy)?;
        }
        Ok(buffer)
    }

    /// Runs a call of cudarc with this allocator's context current, then restores the previous context.
    pub(crate) fn call(
        &self,
        function: &'static str,
        act: impl FnOnce() -> Result<(), cuda::DriverError>,
    ) -> Result<(), DriverError> {
        let answer = self.context().with_current(|_| act())?;
        answer.map_err(|error| in_our_words(function, error))
    }
}

/// Converts an error of cudarc to one of this crate that names the function that cudarc called.
pub(crate) fn in_our_words(function: &'static str, error: cuda::DriverError) -> DriverError {
    DriverError::Call {
        function,
        code: Code(error.0 as u32),
    }
}

/// Returns the size of `len` values in bytes.
pub(crate) fn bytes_of<T>(len: usize) -> Result<u64, DeviceAllocError> {
    let bytes = len.checked_mul(size_of::<T>());
    // No address space of a host or a device has more than `isize::MAX` bytes.
    let bytes = bytes.filter(|bytes| isize::try_from(*bytes).is_ok());
    let bytes = bytes.ok_or(DeviceAllocError::reason(AllocError::TooLarge {
        requested_bytes: u64::MAX,
    }))?;
    Ok(bytes as u64)
}
