//! Methods that split buffers and parts, or view them as values of another type.

use cudarc::driver::DeviceRepr;

use super::view::{ViewPart, inside};
use super::{BufferView, BufferViewMut, DeviceBuffer, check_align};

impl<'a> ViewPart<'a> {
    /// Returns all bytes of the part as values of another type; `None` if they are not a whole number of such
    /// values, or not aligned for them.
    fn transmuted<S: DeviceRepr>(self, value_bytes: usize) -> Option<Self> {
        check_align::<S>();
        // Cannot overflow, since it is at most the size of the buffer.
        let bytes = self.len * value_bytes;
        let len = bytes.checked_div(size_of::<S>())?;
        let is_whole = bytes == len * size_of::<S>();
        let is_aligned = self.address.is_multiple_of(align_of::<S>() as u64);
        (is_whole && is_aligned).then_some(Self { len, ..self })
    }

    /// Splits the part into consecutive parts of `chunk_len` values each; a shorter remainder is left out.
    fn chunks(self, chunk_len: usize, value_bytes: usize) -> impl Iterator<Item = Self> {
        let count = inside(self.len.checked_div(chunk_len));
        (0..count).filter_map(move |index| {
            let start = index * chunk_len;
            self.cut(&(start..start + chunk_len), value_bytes)
        })
    }
}

impl<'a, T> BufferView<'a, T> {
    /// Splits the view into two, the second of which begins at `middle`.
    ///
    /// # Panics
    /// If there are fewer than `middle` values, as for a slice.
    #[track_caller]
    pub fn split_at(&self, middle: usize) -> (Self, Self) {
        inside(self.try_split_at(middle))
    }

    /// Splits the view into two; `None` if there are fewer than `middle` values.
    pub fn try_split_at(&self, middle: usize) -> Option<(Self, Self)> {
        Some((self.try_slice(..middle)?, self.try_slice(middle..)?))
    }

    /// Splits the view into parts of `chunk_len` values each; a shorter remainder is left out.
    ///
    /// # Panics
    /// If `chunk_len` is 0, as for a slice.
    #[track_caller]
    pub fn chunks_exact(&self, chunk_len: usize) -> impl Iterator<Item = Self> + use<'a, T> {
        let parts = self.part.chunks(chunk_len, size_of::<T>());
        parts.map(BufferView::over)
    }

    /// Returns the bytes of the part as values of another type; `None` if they are not a whole number of such
    /// values, or not aligned for them.
    ///
    /// # Safety
    /// The bytes are valid values of `S`.
    pub unsafe fn transmute<S: DeviceRepr>(&self) -> Option<BufferView<'a, S>> {
        let part = self.part.transmuted::<S>(size_of::<T>());
        part.map(BufferView::over)
    }
}

impl<'a, T> BufferViewMut<'a, T> {
    /// Splits the view into parts of `chunk_len` values each, which different threads and streams may use at
    /// the same time; a shorter remainder is left out.
    ///
    /// # Panics
    /// If `chunk_len` is 0, as for a slice.
    #[track_caller]
    pub fn chunks_exact_mut(self, chunk_len: usize) -> impl Iterator<Item = Self> + use<'a, T> {
        let part = ViewPart {
            beside: true,
            ..self.part
        };
        let parts = part.chunks(chunk_len, size_of::<T>());
        parts.map(BufferViewMut::over)
    }

    /// Returns the bytes of the part as values of another type, for writing; `None` if they are not a whole
    /// number of such values, or not aligned for them.
    ///
    /// # Safety
    /// The bytes are valid values of `S`, and of `T` again once the result is dropped.
    pub unsafe fn transmute_mut<S: DeviceRepr>(self) -> Option<BufferViewMut<'a, S>> {
        let part = self.part.transmuted::<S>(size_of::<T>());
        part.map(BufferViewMut::over)
    }
}

impl<T> DeviceBuffer<T> {
    /// Splits the buffer into two parts for reading, the second of which begins at `middle`.
    ///
    /// # Panics
    /// If there are fewer than `middle` values, as for a slice.
    #[track_caller]
    pub fn split_at(&self, middle: usize) -> (BufferView<'_, T>, BufferView<'_, T>) {
        self.as_view().split_at(middle)
    }

    /// Splits the buffer into parts of `chunk_len` values each, for reading; a shorter remainder is left out.
    ///
    /// # Panics
    /// If `chunk_len` is 0, as for a slice.
    #[track_caller]
    pub fn chunks_exact(&self, chunk_len: usize) -> impl Iterator<Item = BufferView<'_, T>> {
        self.as_view().chunks_exact(chunk_len)
    }

    /// Splits the buffer into parts of `chunk_len` values each, which different threads and streams may use
    /// at the same time; a shorter remainder is left out.
    ///
    /// # Panics
    /// If `chunk_len` is 0, as for a slice.
    #[track_caller]
    pub fn chunks_exact_mut(
        &mut self,
        chunk_len: usize,
    ) -> impl Iterator<Item = BufferViewMut<'_, T>> {
        self.as_view_mut().chunks_exact_mut(chunk_len)
    }
}
