//! Guards of [`SyncedMemory`](super::SyncedMemory) for copies under way, and for memory to be overwritten.

use core::fmt;
use core::mem::MaybeUninit;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::{CudaStream, DeviceRepr, DeviceSlice, HostSlice, ValidAsZeroBits};

use super::pools::Pools;
use super::sides::DeviceValues;
use super::state_machine::SyncedPair;
use crate::typed::buffer::in_our_words;
use crate::{BufferViewMut, DeviceAllocError, DeviceBuffer, DriverError};

/// A copy under way. Dropping the guard waits for the copy. If that wait fails, or the guard is forgotten,
/// the next access waits and returns the error.
#[must_use = "dropping it waits for the copy"]
pub struct InFlight<'m, 'a, T: DeviceRepr + ValidAsZeroBits + Copy> {
    pair: &'m mut SyncedPair<Pools<'a, T>>,
}

impl<'m, 'a, T: DeviceRepr + ValidAsZeroBits + Copy> InFlight<'m, 'a, T> {
    pub(super) const fn new(pair: &'m mut SyncedPair<Pools<'a, T>>) -> Self {
        Self { pair }
    }

    /// Waits for the copy.
    ///
    /// # Errors
    /// If the driver refuses to wait, or the copy failed; the copy still counts as under way.
    pub fn wait(self) -> Result<(), DeviceAllocError> {
        self.pair.settle()
    }
}

impl<T: DeviceRepr + ValidAsZeroBits + Copy> Drop for InFlight<'_, '_, T> {
    fn drop(&mut self) {
        // The next access waits again, and can return the error.
        let _ = self.pair.settle();
    }
}

/// The host's memory, to be overwritten. If this is dropped without [`written`](Self::written), values that
/// only the host held are lost; values that the device holds stay there.
pub struct CpuOverwrite<'m, 'a, T: DeviceRepr + ValidAsZeroBits + Copy> {
    pair: &'m mut SyncedPair<Pools<'a, T>>,
    /// The memory of the host's side, which no stream uses while the pair is borrowed.
    place: NonNull<[T]>,
}

impl<'m, 'a, T: DeviceRepr + ValidAsZeroBits + Copy> CpuOverwrite<'m, 'a, T> {
    pub(super) const fn new(pair: &'m mut SyncedPair<Pools<'a, T>>, place: NonNull<[T]>) -> Self {
        Self { pair, place }
    }

    /// Marks the host as the side with the newest values.
    ///
    /// # Safety
    /// Every value has been written.
    pub unsafe fn written(self) {
        self.pair.host_written();
    }

    /// Writes all values and marks the host as the side with the newest values.
    ///
    /// # Errors
    /// [`DriverError::Size`] inside if the number of values differs.
    pub fn copy_from_slice(mut self, values: &[T]) -> Result<(), DeviceAllocError> {
        if values.len() != self.len() {
            let bytes = size_of_val(values) as u64;
            return Err(DriverError::Size { bytes }.into());
        }
        for (place, value) in self.iter_mut().zip(values) {
            place.write(*value);
        }
        // SAFETY: the loop wrote all values, since the lengths are equal.
        unsafe { self.written() };
        Ok(())
    }
}

impl<T: DeviceRepr + ValidAsZeroBits + Copy> Deref for CpuOverwrite<'_, '_, T> {
    type Target = [MaybeUninit<T>];

    fn deref(&self) -> &[MaybeUninit<T>] {
        let first = self.place.cast().as_ptr();
        // SAFETY: the side is borrowed with the pair; `MaybeUninit` allows any contents.
        unsafe { core::slice::from_raw_parts(first, self.place.len()) }
    }
}

impl<T: DeviceRepr + ValidAsZeroBits + Copy> DerefMut for CpuOverwrite<'_, '_, T> {
    fn deref_mut(&mut self) -> &mut [MaybeUninit<T>] {
        let first = self.place.cast().as_ptr();
        // SAFETY: the side is borrowed mutably with the pair; `MaybeUninit` allows any contents.
        unsafe { core::slice::from_raw_parts_mut(first, self.place.len()) }
    }
}

/// The device's memory, to be overwritten. If this is dropped without [`written`](Self::written), values that
/// only the device held are lost; values that the host holds stay there.
pub struct GpuOverwrite<'m, 'a, T: DeviceRepr + ValidAsZeroBits + Copy> {
    pair: &'m mut SyncedPair<Pools<'a, T>>,
    nothing: &'m mut DeviceBuffer<T>,
}

impl<'m, 'a, T: DeviceRepr + ValidAsZeroBits + Copy> GpuOverwrite<'m, 'a, T> {
    pub(super) const fn new(
        pair: &'m mut SyncedPair<Pools<'a, T>>,
        nothing: &'m mut DeviceBuffer<T>,
    ) -> Self {
        Self { pair, nothing }
    }

    /// Returns a view of the memory, as a kernel's argument.
    pub fn view(&mut self) -> BufferViewMut<'_, MaybeUninit<T>> {
        self.values().into_uninit()
    }

    /// Marks the device as the side with the newest values.
    ///
    /// # Safety
    /// Work that writes every value has been queued through [`view`](Self::view).
    pub unsafe fn written(self) {
        self.pair.device_written();
    }

    /// Copies all values in the order of the stream and marks the device as the side with the newest values.
    ///
    /// # Errors
    /// [`DriverError::Size`] inside if the number of values differs; if the driver refuses.
    pub fn copy_from<S: HostSlice<T> + ?Sized>(
        mut self,
        stream: &Arc<CudaStream>,
        values: &S,
    ) -> Result<(), DeviceAllocError> {
        let memory = self.pair.backend().memory.clone();
        let mut to = self.values();
        if values.len() != to.len() {
            let bytes = values.len().saturating_mul(size_of::<T>()) as u64;
            return Err(DriverError::Size { bytes }.into());
        }
        if to.num_bytes() > 0 {
            to.as_view().refuse_asleep()?;
            let copy = |_, _| Ok(stream.memcpy_htod(values, &mut to));
            let answer = memory.context().try_on(stream, copy)?;
            answer.map_err(|error| in_our_words("cuMemcpyHtoDAsync_v2", error))?;
        }
        // SAFETY: the copy writes all values, since the lengths are equal.
        unsafe { self.written() };
        Ok(())
    }

    fn values(&mut self) -> BufferViewMut<'_, T> {
        match &mut self.pair.device {
            Some(device) => DeviceValues::view_mut(device),
            None => self.nothing.as_view_mut(),
        }
    }
}

impl<T: DeviceRepr + ValidAsZeroBits + Copy> fmt::Debug for InFlight<'_, '_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InFlight")
    }
}

impl<T: DeviceRepr + ValidAsZeroBits + Copy> fmt::Debug for CpuOverwrite<'_, '_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuOverwrite({})", self.len())
    }
}

impl<T: DeviceRepr + ValidAsZeroBits + Copy> fmt::Debug for GpuOverwrite<'_, '_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GpuOverwrite({})", self.pair.backend().len)
    }
}
