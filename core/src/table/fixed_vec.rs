//! [`FixedVec`]: a vector that allocates its memory when it is created, and never grows.

use alloc::vec::Vec;
use core::ops::{Deref, DerefMut};

use crate::error::ConfigError;

/// A vector with room for a fixed number of values.
#[derive(Debug)]
pub(crate) struct FixedVec<T> {
    values: Vec<T>,
    room: usize,
}

impl<T> FixedVec<T> {
    /// Creates an empty vector with room for `room` values. The memory is not touched.
    ///
    /// # Errors
    /// [`ConfigError::Heap`] if the heap has no memory for them.
    pub(crate) fn new(room: usize) -> Result<Self, ConfigError> {
        let mut values = Vec::new();
        let reserved = values.try_reserve_exact(room);
        reserved.map_err(|_| ConfigError::Heap)?;
        Ok(Self { values, room })
    }

    /// Creates a full vector of `length` values that `make` creates.
    ///
    /// # Errors
    /// [`ConfigError::Heap`] if the heap has no memory for them.
    pub(crate) fn filled_with(length: usize, make: impl FnMut() -> T) -> Result<Self, ConfigError> {
        let mut filled = Self::new(length)?;
        filled.values.resize_with(length, make);
        Ok(filled)
    }

    /// Appends a value. Returns `false`, and drops the value, if the vector is full.
    #[must_use]
    pub(crate) fn push(&mut self, value: T) -> bool {
        self.insert(self.values.len(), value)
    }

    /// Inserts a value before the value at `at`. Returns `false`, and drops the new value, if the vector is full.
    #[must_use]
    pub(crate) fn insert(&mut self, at: usize, value: T) -> bool {
        let has_room = self.values.len() < self.room;
        if has_room {
            self.values.insert(at, value);
        }
        has_room
    }

    /// Resizes the vector to `length` values, but at most to its room. New values are copies of `value`.
    pub(crate) fn resize(&mut self, length: usize, value: T)
    where
        T: Clone,
    {
        self.values.resize(length.min(self.room), value);
    }

    /// Removes the value at `length` and all values after it.
    pub(crate) fn truncate(&mut self, length: usize) {
        self.values.truncate(length);
    }

    /// Removes all values.
    pub(crate) fn clear(&mut self) {
        self.values.clear();
    }
}

impl<T> Deref for FixedVec<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.values
    }
}

impl<T> DerefMut for FixedVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_vector_refuses_values_and_stays_where_it_is() {
        let mut values = FixedVec::new(2).unwrap_or_else(|error| panic!("{error}"));
        let start = values.as_ptr();
        assert!(values.push(2) && values.insert(0, 1));
        assert!(!values.push(3) && !values.insert(0, 3));
        assert_eq!((&values[..], values.as_ptr()), (&[1, 2][..], start));
        values.truncate(1);
        assert!(values.push(4));
        assert_eq!(&values[..], &[1, 4]);
        values.clear();
        assert!(values.is_empty());
    }

    #[test]
    fn room_that_the_heap_does_not_have_is_an_error() {
        assert!(FixedVec::<u64>::new(usize::MAX).is_err());
        let none = FixedVec::<u64>::new(0);
        assert!(none.is_ok_and(|mut none| !none.push(1)));
    }
}
