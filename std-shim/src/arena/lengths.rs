//! [`Lengths`]: the length of each block of an arena, for the holder of the block. Asking the BFC
//! would take its lock, which costs more than the rest of a `realloc` in place.

use larder_core::sync::{AtomicU32, Ordering};

/// A number for each granule: the length in granules of the block that starts there, or 0.
///
/// * LENGTH1 a number is written by the holder of the block, which got the block from the BFC under
///   its lock and writes 0 before freeing the block. So all accesses are relaxed: a thread reads
///   only the lengths of blocks that it holds.
#[derive(Clone, Copy)]
pub(super) struct Lengths {
    granules: &'static [AtomicU32],
    /// First address of the range.
    start: usize,
    /// Bytes of a granule.
    unit: usize,
}

impl Lengths {
    /// Creates the lengths of a range without blocks, if all numbers are 0.
    pub(super) const fn new(granules: &'static [AtomicU32], start: usize, unit: usize) -> Self {
        Self {
            granules,
            start,
            unit,
        }
    }

    /// Returns the number of the granule that starts at an address.
    fn at(&self, addr: usize) -> Option<&'static AtomicU32> {
        let offset = addr.wrapping_sub(self.start);
        match offset.is_multiple_of(self.unit) {
            true => self.granules.get(offset / self.unit),
            false => None,
        }
    }

    /// Returns the length in bytes of the block that starts at an address; `None` if no block does.
    #[inline]
    pub(super) fn get(&self, addr: usize) -> Option<u64> {
        match self.at(addr)?.load(Ordering::Relaxed) {
            0 => None,
            granules => Some(u64::from(granules) * self.unit as u64),
        }
    }

    /// Sets the length of a block, in whole granules.
    pub(super) fn set(&self, addr: usize, bytes: u64) {
        if let Some(number) = self.at(addr) {
            // A range has fewer granules than 2^32 (`tables`).
            number.store((bytes / self.unit as u64) as u32, Ordering::Relaxed);
        }
    }

    /// Removes a block that is being freed. Returns whether a block starts there. If none does,
    /// writes nothing, because the table is committed only as far as there are blocks (TABLE2).
    pub(super) fn forget(&self, addr: usize) -> bool {
        let is_block = self.get(addr).is_some();
        if is_block {
            self.set(addr, 0);
        }
        is_block
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_is_that_of_the_block_which_starts_there_until_it_is_forgotten() {
        let numbers: Vec<_> = (0..8).map(|_| AtomicU32::new(0)).collect();
        let lengths = Lengths::new(Box::leak(numbers.into()), 1 << 20, 1 << 14);
        let at = |granule: usize| (1 << 20) + (granule << 14);
        lengths.set(at(2), 3 << 14);
        lengths.set(at(7), 1 << 14);
        let all = |addr| lengths.get(addr);
        assert_eq!((all(at(2)), all(at(7))), (Some(3 << 14), Some(1 << 14)));
        for nothing in [at(0) - (1 << 14), at(1), at(3), at(2) + 16, at(8), 0] {
            assert_eq!(all(nothing), None, "{nothing:x}");
            assert!(!lengths.forget(nothing));
        }
        assert!(lengths.forget(at(2)));
        assert!(!lengths.forget(at(2)));
        assert_eq!(all(at(7)), Some(1 << 14));
    }
}
