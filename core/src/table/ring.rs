//! [`Ring`]: a first-in, first-out queue of values.
//!
//! # Invariant
//! * RING1 the `len` places that start at `first`, and wrap around the end, are full. The others are not read.
//!
//! All operations are O(1).

use crate::error::ConfigError;
use crate::table::fixed_vec::FixedVec;

/// A queue of at most as many values as there are places.
pub(crate) struct Ring<T> {
    places: FixedVec<Option<T>>,
    first: usize,
    len: usize,
}

impl<T> Ring<T> {
    /// Creates an empty queue with `places` places.
    ///
    /// # Errors
    /// [`ConfigError::Heap`] if the heap has no memory for them.
    pub(crate) fn new(places: usize) -> Result<Self, ConfigError> {
        Ok(Self {
            places: FixedVec::filled_with(places, || None)?,
            first: 0,
            len: 0,
        })
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn capacity(&self) -> usize {
        self.places.len()
    }

    /// Returns the place that is `behind` places after the oldest value.
    fn place(&self, behind: usize) -> usize {
        // `first` and `behind` are less than the length, so their sum wraps around the end at most once.
        let to_end = self.places.len() - self.first;
        if behind < to_end {
            self.first + behind
        } else {
            behind - to_end
        }
    }

    /// Appends a value.
    ///
    /// # Errors
    /// Returns the value if the table is full.
    pub(crate) fn push(&mut self, value: T) -> Result<(), T> {
        if self.len == self.places.len() {
            return Err(value);
        }
        let at = self.place(self.len);
        match self.places.get_mut(at) {
            Some(place) => {
                *place = Some(value);
                self.len += 1;
                Ok(())
            }
            None => Err(value),
        }
    }

    /// Removes and returns the oldest value.
    pub(crate) fn pop(&mut self) -> Option<T> {
        if self.len == 0 {
            return None;
        }
        let value = self.places.get_mut(self.first)?.take();
        self.first = self.place(1);
        self.len -= 1;
        value
    }

    /// Returns the value that is `behind` places after the oldest value.
    pub(crate) fn get(&self, behind: usize) -> Option<&T> {
        if behind >= self.len {
            return None;
        }
        self.places.get(self.place(behind))?.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_leave_in_the_order_they_came_around_the_end_of_the_table() {
        for length in 0..5 {
            let mut ring = Ring::new(length).unwrap();
            let (mut pushed, mut popped) = (0u32, 0u32);
            for round in 0..40u32 {
                for _ in 0..round % 4 {
                    let room = ring.len() < length;
                    assert_eq!(ring.push(pushed).is_ok(), room);
                    pushed += u32::from(room);
                }
                assert_eq!(ring.get(0).copied(), (ring.len() > 0).then_some(popped));
                if let Some(last) = ring.len().checked_sub(1) {
                    assert_eq!(ring.get(last).copied(), Some(pushed - 1));
                }
                assert_eq!(ring.get(ring.len()), None);
                for _ in 0..round % 3 {
                    let value = ring.pop();
                    assert_eq!(value, (popped < pushed).then_some(popped));
                    popped += u32::from(value.is_some());
                }
            }
        }
    }
}
