//! The two sides: memory of the host and of the device, owned or adopted.

use core::ptr::NonNull;

use crate::{BufferView, BufferViewMut, DeviceBuffer, DriverError, PinnedBuffer};

/// The host's side.
pub(super) enum HostValues<'a, T> {
    /// Memory that the pair owns and frees.
    Pageable(Box<[T]>),
    /// Pinned memory that the pair owns and frees. Its values may still be unwritten.
    Pinned(PinnedBuffer<T>),
    /// Memory borrowed from its owner.
    Borrowed(&'a mut [T]),
    /// Another owner's memory. PAIR4: the promise of `adopt_host_raw` holds.
    Raw(NonNull<[T]>),
}

// SAFETY: by its owner's promise, a raw slice is like a mutable borrow.
unsafe impl<T: Send> Send for HostValues<'_, T> {}
// SAFETY: a shared reference gives only shared references to the values.
unsafe impl<T: Sync> Sync for HostValues<'_, T> {}

impl<T> HostValues<'_, T> {
    pub(super) const fn is_owned(&self) -> bool {
        matches!(self, Self::Pageable(_) | Self::Pinned(_))
    }

    /// Returns the values once no stream writes them. Values in pinned memory are initialized because of
    /// PAIR1; values in other memory always are.
    pub(super) fn values(&self) -> Result<&[T], DriverError> {
        Ok(match self {
            Self::Pageable(values) => values,
            Self::Pinned(buffer) => buffer.as_slice()?,
            Self::Borrowed(values) => values,
            Self::Raw(values) => {
                // SAFETY: PAIR4: the values are valid and ours; `self` is borrowed.
                unsafe { values.as_ref() }
            }
        })
    }

    /// Returns the values for writing once no stream uses them.
    pub(super) fn values_mut(&mut self) -> Result<&mut [T], DriverError> {
        Ok(match self {
            Self::Pageable(values) => values,
            Self::Pinned(buffer) => buffer.as_mut_slice()?,
            Self::Borrowed(values) => values,
            Self::Raw(values) => {
                // SAFETY: PAIR4: the values are valid and ours; `self` is borrowed mutably.
                unsafe { values.as_mut() }
            }
        })
    }

    /// Returns the address of the values, which may not be initialized, once no stream uses the memory.
    pub(super) fn place(&mut self) -> Result<NonNull<[T]>, DriverError> {
        match self {
            Self::Pinned(buffer) => {
                let len = buffer.len();
                let first = NonNull::new(buffer.as_mut_ptr()?).unwrap_or(NonNull::dangling());
                Ok(NonNull::slice_from_raw_parts(first, len))
            }
            other => other.values_mut().map(NonNull::from),
        }
    }
}

/// The device's side.
pub(super) enum DeviceValues<'a, T> {
    /// Memory that the pair owns and frees.
    Owned(DeviceBuffer<T>),
    /// Another owner's memory, under the promise of `adopt_device_raw`. The buffer does not free it.
    Raw(DeviceBuffer<T>),
    /// Memory borrowed from its owner.
    Borrowed(BufferViewMut<'a, T>),
}

impl<T> DeviceValues<'_, T> {
    pub(super) const fn is_owned(&self) -> bool {
        matches!(self, Self::Owned(_))
    }

    pub(super) fn view(&self) -> BufferView<'_, T> {
        match self {
            Self::Owned(buffer) | Self::Raw(buffer) => buffer.as_view(),
            Self::Borrowed(view) => view.as_view(),
        }
    }

    pub(super) fn view_mut(&mut self) -> BufferViewMut<'_, T> {
        match self {
            Self::Owned(buffer) | Self::Raw(buffer) => buffer.as_view_mut(),
            Self::Borrowed(view) => view.slice_mut(..),
        }
    }
}
