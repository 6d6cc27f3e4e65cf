//! [`Lengths`]: how long each block of an arena is, for whoever holds one: to ask the BFC takes its lock, which costs more
//! than all else that a `realloc` in place does.

use larder_core::sync::{AtomicU32, Ordering};

/// A number for each granule: of the first one of a block how many it has, of others 0.
///
/// * LENGTH1 a number is written by whoever holds the block, who got it from the BFC under its lock and writes 0 before it
///   goes back. So all accesses are relaxed: whoever asks for a block's length holds the block.
#[derive(Clone, Copy)]
pub(super) struct Lengths {
    granules: &'static [AtomicU32],
    /// First address of the range.
    start: usize,
    /// Bytes of a granule.
    unit: usize,
}

impl Lengths {
    /// No blocks, if all numbers are 0.
    pub(super) const fn new(granules: &'static [AtomicU32], start: usize, unit: usize) -> Self {
        Self {
            granules,
            start,
            unit,
        }
    }

    /// The number of the granule that starts at an address.
    fn at(&self, addr: usize) -> Option<&'static AtomicU32> {
        let offset = addr.wrapping_sub(self.start);
        match offset.is_multiple_of(self.unit) {
            true => self.granules.get(offset / self.unit),
            false => None,
        }
    }

    /// Length of the block that starts at an address, in bytes; `None` if none does.
    #[inline]
    pub(super) fn get(&self, addr: usize) -> Option<u64> {
        match self.at(addr)?.load(Ordering::Relaxed) {
            0 => None,
            granules => Some(u64::from(granules) * self.unit as u64),
        }
    }

    /// Notes the length of a block, whole granules.
    pub(super) fn set(&self, addr: usize, bytes: u64) {
        if let Some(number) = self.at(addr) {
            // A range has fewer granules than 2^32 (`tables`).
            number.store((bytes / self.unit as u64) as u32, Ordering::Relaxed);
        }
    }

    /// Forgets a block that goes back; returns whether one starts there. Nothing is written if not: the table is
    /// committed as far as there are blocks (TABLE2).
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
