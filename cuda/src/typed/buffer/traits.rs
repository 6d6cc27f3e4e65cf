//! cudarc's traits, through which its functions take buffers and their parts.

use std::sync::Arc;

use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop, sys};

use super::view::ViewPart;
use super::{BufferView, BufferViewMut, DeviceBuffer};

impl ViewPart<'_> {
    /// Returns the address for a read that is queued next. O(1) and no driver call if the stream was the last
    /// to write, or has read since the last write.
    fn read_on<'s, T>(&self, stream: &'s CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'s>) {
        match self.address_now::<T>() {
            Ok(address) => (address, self.shared.read(stream, self.beside)),
            Err(address) => (address, SyncOnDrop::Record(None)),
        }
    }

    /// Returns the address for a write that is queued next. Makes no driver call if only this stream has used
    /// the buffer since its last write.
    fn write_on<'s, T>(&self, stream: &'s CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'s>) {
        match self.address_now::<T>() {
            Ok(address) => (address, self.shared.write(stream, self.beside)),
            Err(address) => (address, SyncOnDrop::Record(None)),
        }
    }

    /// Returns the address to use. If there are no bytes, or the memory sleeps, the error is the number to
    /// pass in place of the address.
    fn address_now<T>(&self) -> Result<sys::CUdeviceptr, sys::CUdeviceptr> {
        if !self.has_bytes::<T>() {
            Err(self.address)
        } else if self.shared.is_asleep() {
            Err(0)
        } else {
            Ok(self.address)
        }
    }

    /// Returns whether the part has any bytes.
    pub(super) const fn has_bytes<T>(&self) -> bool {
        self.len != 0 && size_of::<T>() != 0
    }
}

impl<T> DeviceSlice<T> for DeviceBuffer<T> {
    fn len(&self) -> usize {
        self.len()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.stream()
    }
}

impl<T> DeviceSlice<T> for BufferView<'_, T> {
    fn len(&self) -> usize {
        self.len()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.stream()
    }
}

impl<T> DeviceSlice<T> for BufferViewMut<'_, T> {
    fn len(&self) -> usize {
        self.len()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.stream()
    }
}

impl<T> DevicePtr<T> for DeviceBuffer<T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        self.as_view().part.read_on::<T>(stream)
    }
}

impl<T> DevicePtr<T> for BufferView<'_, T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        self.part.read_on::<T>(stream)
    }
}

impl<T> DevicePtr<T> for BufferViewMut<'_, T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        self.part.read_on::<T>(stream)
    }
}

impl<T> DevicePtrMut<T> for DeviceBuffer<T> {
    fn device_ptr_mut<'a>(
        &'a mut self,
        stream: &'a CudaStream,
    ) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        self.as_view_mut().part.write_on::<T>(stream)
    }
}

impl<T> DevicePtrMut<T> for BufferViewMut<'_, T> {
    fn device_ptr_mut<'a>(
        &'a mut self,
        stream: &'a CudaStream,
    ) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        self.part.write_on::<T>(stream)
    }
}
