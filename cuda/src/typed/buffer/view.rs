//! Parts of buffers: [`BufferView`] for reading, [`BufferViewMut`] for writing.
//!
//! Uses are ordered for the buffer as a whole: a read of one part waits for a write to another.

use core::fmt;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ops::{Bound, RangeBounds};
use std::sync::Arc;

use cudarc::driver::{CudaStream, sys};

use super::{BufferShared, DeviceBuffer};
use crate::{DeviceAllocError, DeviceAllocator};

/// A part of a [`DeviceBuffer`], for reading.
pub struct BufferView<'a, T> {
    pub(super) part: ViewPart<'a>,
    values: PhantomData<&'a [T]>,
}

/// An exclusively borrowed part of a [`DeviceBuffer`], for writing.
pub struct BufferViewMut<'a, T> {
    pub(super) part: ViewPart<'a>,
    values: PhantomData<&'a mut [T]>,
}

/// The place of a part in its buffer.
#[derive(Clone, Copy)]
pub(super) struct ViewPart<'a> {
    pub(super) shared: &'a BufferShared,
    /// Address that kernels receive.
    pub(super) address: sys::CUdeviceptr,
    pub(super) len: usize,
    /// Whether other parts may be used at the same time (invariant USE5 of `uses`).
    pub(super) beside: bool,
}

impl ViewPart<'_> {
    /// Returns a range of the part, whose values have `value_bytes` bytes each; `None` if the range is out of
    /// bounds.
    pub(super) fn cut(self, range: &impl RangeBounds<usize>, value_bytes: usize) -> Option<Self> {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before.checked_add(1)?,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last.checked_add(1)?,
            Bound::Excluded(end) => *end,
            Bound::Unbounded => self.len,
        };
        let len = end.checked_sub(start)?;
        if end > self.len {
            return None;
        }
        // Cannot overflow, since it is at most the size of the buffer.
        let offset = (start * value_bytes) as u64;
        Some(Self {
            address: self.address + offset,
            len,
            ..self
        })
    }
}

impl<'a, T> BufferView<'a, T> {
    pub(super) const fn of(buffer: &'a DeviceBuffer<T>) -> Self {
        Self::over(ViewPart {
            shared: &buffer.shared,
            address: buffer.address,
            len: buffer.len,
            beside: false,
        })
    }

    pub(super) const fn over(part: ViewPart<'a>) -> Self {
        Self {
            part,
            values: PhantomData,
        }
    }

    /// Refuses uses while the memory sleeps.
    pub(crate) fn refuse_asleep(&self) -> Result<(), DeviceAllocError> {
        self.part.shared.refuse_asleep()
    }

    /// Returns the number of values.
    pub const fn len(&self) -> usize {
        self.part.len
    }

    /// Returns whether there are no values.
    pub const fn is_empty(&self) -> bool {
        self.part.len == 0
    }

    /// Returns the buffer's stream.
    pub const fn stream(&self) -> &Arc<CudaStream> {
        &self.part.shared.stream
    }

    /// Returns the allocator of the buffer's memory.
    pub const fn allocator(&self) -> &DeviceAllocator {
        &self.part.shared.memory
    }

    /// Returns a view of a range.
    ///
    /// # Panics
    /// If the range is out of bounds, as for a slice.
    #[track_caller]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Self {
        inside(self.try_slice(range))
    }

    /// Returns a view of a range; `None` if the range is out of bounds.
    pub fn try_slice(&self, range: impl RangeBounds<usize>) -> Option<Self> {
        self.part.cut(&range, size_of::<T>()).map(Self::over)
    }
}

impl<T> Clone for BufferView<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for BufferView<'_, T> {}

impl<'a, T> BufferViewMut<'a, T> {
    pub(super) const fn of(buffer: &'a mut DeviceBuffer<T>) -> Self {
        Self::over(ViewPart {
            shared: &buffer.shared,
            address: buffer.address,
            len: buffer.len,
            beside: false,
        })
    }

    pub(super) const fn over(part: ViewPart<'a>) -> Self {
        Self {
            part,
            values: PhantomData,
        }
    }

    /// Returns the number of values.
    pub const fn len(&self) -> usize {
        self.part.len
    }

    /// Returns whether there are no values.
    pub const fn is_empty(&self) -> bool {
        self.part.len == 0
    }

    /// Returns the buffer's stream.
    pub const fn stream(&self) -> &Arc<CudaStream> {
        &self.part.shared.stream
    }

    /// Returns the allocator of the buffer's memory.
    pub const fn allocator(&self) -> &DeviceAllocator {
        &self.part.shared.memory
    }

    /// Returns this part as uninitialized values.
    pub(crate) const fn into_uninit(self) -> BufferViewMut<'a, MaybeUninit<T>> {
        BufferViewMut::over(self.part)
    }

    /// Returns a view of this part, for reading.
    pub const fn as_view(&self) -> BufferView<'_, T> {
        BufferView::over(self.part)
    }

    /// Returns a view of a range, for writing, that borrows this view.
    ///
    /// # Panics
    /// If the range is out of bounds, as for a slice.
    #[track_caller]
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> BufferViewMut<'_, T> {
        inside(self.try_slice_mut(range))
    }

    /// Returns a view of a range; `None` if the range is out of bounds.
    pub fn try_slice_mut(
        &mut self,
        range: impl RangeBounds<usize>,
    ) -> Option<BufferViewMut<'_, T>> {
        let part = self.part.cut(&range, size_of::<T>());
        part.map(BufferViewMut::over)
    }

    /// Splits the view into two, the second of which begins at `middle`. Different threads may use them at
    /// the same time, on different streams.
    ///
    /// # Panics
    /// If there are fewer than `middle` values, as for a slice.
    #[track_caller]
    pub fn split_at_mut(self, middle: usize) -> (Self, Self) {
        inside(self.try_split_at_mut(middle))
    }

    /// Splits the view into two; `None` if there are fewer than `middle` values.
    pub fn try_split_at_mut(self, middle: usize) -> Option<(Self, Self)> {
        let part = ViewPart {
            beside: true,
            ..self.part
        };
        let first = part.cut(&(..middle), size_of::<T>())?;
        let second = part.cut(&(middle..), size_of::<T>())?;
        Some((Self::over(first), Self::over(second)))
    }
}

impl<T> DeviceBuffer<T> {
    /// Returns a view of a range.
    ///
    /// # Panics
    /// If the range is out of bounds, as for a slice.
    #[track_caller]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> BufferView<'_, T> {
        inside(self.try_slice(range))
    }

    /// Returns a view of a range; `None` if the range is out of bounds.
    pub fn try_slice(&self, range: impl RangeBounds<usize>) -> Option<BufferView<'_, T>> {
        self.as_view().try_slice(range)
    }

    /// Returns a view of a range, for writing.
    ///
    /// # Panics
    /// If the range is out of bounds, as for a slice.
    #[track_caller]
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> BufferViewMut<'_, T> {
        inside(self.try_slice_mut(range))
    }

    /// Returns a view of a range, for writing; `None` if the range is out of bounds.
    pub fn try_slice_mut(
        &mut self,
        range: impl RangeBounds<usize>,
    ) -> Option<BufferViewMut<'_, T>> {
        let part = self.as_view_mut().part.cut(&range, size_of::<T>());
        part.map(BufferViewMut::over)
    }

    /// Splits the buffer into two parts, the second of which begins at `middle`; see
    /// [`BufferViewMut::split_at_mut`].
    ///
    /// # Panics
    /// If there are fewer than `middle` values, as for a slice.
    #[track_caller]
    pub fn split_at_mut(&mut self, middle: usize) -> (BufferViewMut<'_, T>, BufferViewMut<'_, T>) {
        self.as_view_mut().split_at_mut(middle)
    }
}

#[track_caller]
pub(super) fn inside<R>(part: Option<R>) -> R {
    match part {
        Some(part) => part,
        None => panic!("the range is not inside the buffer"),
    }
}

impl<T> fmt::Debug for BufferView<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.part.debug(f, "BufferView")
    }
}

impl<T> fmt::Debug for BufferViewMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.part.debug(f, "BufferViewMut")
    }
}

impl ViewPart<'_> {
    fn debug(&self, f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
        f.debug_struct(name)
            .field("address", &format_args!("{:#x}", self.address))
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
