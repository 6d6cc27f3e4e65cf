//! [`Lengths`]: the length of each block of an arena, for the holder of the block. Asking the BFC
//! would take its lock, which costs more than the rest of a `realloc` in place.

use larder_core::small::{LARGE_UNIT, MAX_LARGE_BYTES};
use larder_core::sync::{AtomicU32, Ordering};

/// A number for each granule: 0, or the length of the block that starts there. The low bits are the
/// length in granules. Above them is the *slack*: how many of these granules were not requested,
/// because a thread's cache had no shorter block. The top bit is set while a cache has the block.
///
/// * LENGTH1 a number is written by the holder of the block, which got the block from the BFC under
///   its lock and writes 0 before freeing the block. So all accesses are relaxed: a thread reads
///   only the lengths of blocks that it holds.
/// * LENGTH2 the program holds no block whose top bit is set: no block starts there for a free or a
///   resize.
#[derive(Clone, Copy)]
pub(super) struct Lengths {
    granules: &'static [AtomicU32],
    /// First address of the range.
    start: usize,
    /// Bytes of a granule, a power of two, and its logarithm.
    unit: usize,
    shift: u32,
}

const SLACK_SHIFT: u32 = 25;
const GRANULES_MASK: u32 = (1 << SLACK_SHIFT) - 1;
const CACHED: u32 = 1 << 31;

/// Maximum length in granules of a block.
pub(super) const MAX_GRANULES: u64 = GRANULES_MASK as u64;
/// The slack of a cached block is less than an eighth of the longest one, and has six bits.
const _: () = assert!(MAX_LARGE_BYTES / LARGE_UNIT / 8 <= (CACHED >> SLACK_SHIFT) as usize);

impl Lengths {
    /// Creates the lengths of a range without blocks, if all numbers are 0.
    pub(super) const fn new(granules: &'static [AtomicU32], start: usize, unit: usize) -> Self {
        Self {
            granules,
            start,
            unit,
            shift: unit.trailing_zeros(),
        }
    }

    /// Returns the number of the granule that starts at an address.
    #[inline(always)]
    fn at(&self, addr: usize) -> Option<&'static AtomicU32> {
        let offset = addr.wrapping_sub(self.start);
        match offset & (self.unit - 1) {
            0 => self.granules.get(offset >> self.shift),
            _ => None,
        }
    }

    /// Returns the length in bytes of the block that starts at an address; `None` if no block does,
    /// or if it is cached (LENGTH2).
    #[inline(always)]
    pub(super) fn get(&self, addr: usize) -> Option<u64> {
        match self.at(addr)?.load(Ordering::Relaxed) {
            0 | CACHED.. => None,
            number => Some(u64::from(number & GRANULES_MASK) << self.shift),
        }
    }

    /// Returns how many bytes of the block that starts at an address were requested, in whole
    /// granules.
    pub(super) fn requested(&self, addr: usize) -> Option<u64> {
        let slack = self.at(addr)?.load(Ordering::Relaxed) >> SLACK_SHIFT;
        Some(self.get(addr)? - u64::from(slack) * self.unit as u64)
    }

    /// Sets the length of a block, in whole granules, all of which are requested.
    pub(super) fn set(&self, addr: usize, bytes: u64) {
        if let Some(number) = self.at(addr) {
            // No block is longer than MAX_GRANULES.
            number.store((bytes / self.unit as u64) as u32, Ordering::Relaxed);
        }
    }

    /// Returns the block that starts at an address, to be cached.
    #[inline(always)]
    pub(super) fn cacheable(&self, addr: usize) -> Option<Cacheable> {
        let number = self.at(addr)?;
        let granules = match number.load(Ordering::Relaxed) {
            0 | CACHED.. => return None,
            number => number & GRANULES_MASK,
        };
        let bytes = (granules as usize) << self.shift;
        Some(Cacheable { bytes, number })
    }

    /// Records that the program holds the block that starts at an address, and how many bytes of it
    /// the program requested: at most an eighth less than its length.
    #[inline(always)]
    pub(super) fn request(&self, addr: usize, bytes: usize) {
        if let Some(number) = self.at(addr) {
            let granules = number.load(Ordering::Relaxed) & GRANULES_MASK;
            let requested = (bytes + self.unit - 1) >> self.shift;
            let slack = granules.saturating_sub(requested as u32);
            number.store(granules | slack << SLACK_SHIFT, Ordering::Relaxed);
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

/// A block that a cache may take.
pub(crate) struct Cacheable {
    pub(crate) bytes: usize,
    number: &'static AtomicU32,
}

impl Cacheable {
    /// Records that a cache has the block.
    #[inline(always)]
    pub(crate) fn cache(&self) {
        let granules = self.number.load(Ordering::Relaxed) & GRANULES_MASK;
        self.number.store(granules | CACHED, Ordering::Relaxed);
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
