//! The two sides: memory of the host and of the device, ours or adopted.

use core::ptr::NonNull;

use crate::{BufferView, BufferViewMut, DeviceBuffer, DriverError, PinnedBuffer};

/// The host's side of so many values.
pub(super) enum HostValues<'a, T> {
    /// Ours, or given to us.
    Pageable(Box<[T]>),
    /// Ours, or given to us. It may hold no values yet.
    Pinned(PinnedBuffer<T>),
    /// Somebody's.
    Borrowed(&'a mut [T]),
    /// Somebody's. PAIR4: as `adopt_host_raw` was promised.
    Raw(NonNull<[T]>),
}

// SAFETY: a raw slice is as the mutable borrow that its owner promised.
unsafe impl<T: Send> Send for HostValues<'_, T> {}
// SAFETY: a shared reference gives shared references to the values only.
unsafe impl<T: Sync> Sync for HostValues<'_, T> {}

impl<T> HostValues<'_, T> {
    pub(super) const fn is_owned(&self) -> bool {
        matches!(self, Self::Pageable(_) | Self::Pinned(_))
    }

    /// The values, once no stream writes them. They are there (PAIR1), or the memory is not pinned.
    pub(super) fn values(&self) -> Result<&[T], DriverError> {
        Ok(match self {
            Self::Pageable(values) => values,
            Self::Pinned(buffer) => buffer.as_slice()?,
            Self::Borrowed(values) => values,
            Self::Raw(values) => {
                // SAFETY: PAIR4, and `self` is borrowed.
                unsafe { values.as_ref() }
            }
        })
    }

    /// The values, once no stream uses them.
    pub(super) fn values_mut(&mut self) -> Result<&mut [T], DriverError> {
        Ok(match self {
            Self::Pageable(values) => values,
            Self::Pinned(buffer) => buffer.as_mut_slice()?,
            Self::Borrowed(values) => values,
            Self::Raw(values) => {
                // SAFETY: PAIR4, and `self` is borrowed mutably.
                unsafe { values.as_mut() }
            }
        })
    }

    /// Where the values are, or will be, once no stream uses the memory.
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
    /// Ours, or given to us.
    Owned(DeviceBuffer<T>),
    /// Somebody's, who promised it: a buffer that frees nothing.
    Raw(DeviceBuffer<T>),
    /// Somebody's.
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
