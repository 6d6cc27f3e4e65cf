//! Addresses, sizes, alignments and the few checked operations on them.
//!
//! This is no pointer library: an [`Addr`] is a number that names a byte of host or device memory, and nothing in
//! this crate turns it into a pointer.
//!
//! Sizes are `u64` bytes in every public interface, and the name of a raw number ends in its unit (`limit_bytes`).
//! Inside tables, sizes are 32-bit numbers of granules ([`Granule`]). Overflow is `None` here and an error
//! value one layer up; nothing wraps.

use core::fmt;

/// The address of a byte, host or device: a number, not a pointer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Addr(u64);

impl Addr {
    /// Creates the address with this number.
    pub const fn new(address: u64) -> Self {
        Self(address)
    }

    /// Returns the number itself, in bytes.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the address `bytes` higher, or `None` past the end of the 64-bit space.
    pub const fn checked_add(self, bytes: u64) -> Option<Self> {
        match self.0.checked_add(bytes) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    /// Returns whether the address is a multiple of `align`.
    pub const fn is_aligned(self, align: Align) -> bool {
        self.0 & (align.bytes() - 1) == 0
    }
}

impl fmt::Debug for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A half-open range of addresses `[start, start + bytes)` that is not empty and does not pass
/// the end of the 64-bit space.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct AddrRange {
    start: Addr,
    bytes: u64,
}

impl AddrRange {
    /// Creates the range of `bytes` bytes from `start`. `None` if it is empty or its end is not a 64-bit number.
    pub const fn new(start: Addr, bytes: u64) -> Option<Self> {
        if bytes == 0 || start.checked_add(bytes).is_none() {
            return None;
        }
        Some(Self { start, bytes })
    }

    /// Creates the range of a chunk, which lies in a region and so is neither empty nor too long.
    pub(crate) const fn of_chunk(start: Addr, bytes: u64) -> Self {
        Self { start, bytes }
    }

    /// Returns the first address of the range.
    pub const fn start(self) -> Addr {
        self.start
    }

    /// Returns the first address past the range.
    pub const fn end(self) -> Addr {
        Addr(self.start.0 + self.bytes)
    }

    /// Returns the length in bytes, at least one.
    pub const fn bytes(self) -> u64 {
        self.bytes
    }

    /// Returns whether the whole of `other` lies inside.
    pub const fn contains(self, other: Self) -> bool {
        self.start.0 <= other.start.0 && other.end().0 <= self.end().0
    }

    /// Returns whether the two ranges share a byte.
    pub const fn overlaps(self, other: Self) -> bool {
        self.start.0 < other.end().0 && other.start.0 < self.end().0
    }
}

/// An alignment: a power of two in bytes, from 1 to 2^63.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Align(u8);

impl Align {
    /// The alignment of one byte, which every address has.
    pub const ONE: Self = Self(0);

    /// Returns the alignment of `bytes`, or `None` if that is not a power of two.
    pub const fn new(bytes: u64) -> Option<Self> {
        if bytes.is_power_of_two() {
            // The logarithm of a u64 is at most 63.
            Some(Self(bytes.trailing_zeros() as u8))
        } else {
            None
        }
    }

    /// Returns the alignment in bytes.
    pub const fn bytes(self) -> u64 {
        1 << self.0
    }

    /// Returns the logarithm of [`bytes`](Self::bytes), 0 to 63.
    pub const fn log2(self) -> u32 {
        self.0 as u32
    }
}

/// Returns `bytes` rounded up to the next multiple of `align`, or `None` past the end of `u64`.
pub const fn round_up(bytes: u64, align: Align) -> Option<u64> {
    let mask = align.bytes() - 1;
    match bytes.checked_add(mask) {
        Some(sum) => Some(sum & !mask),
        None => None,
    }
}

/// Returns `bytes` rounded down to a multiple of `align`.
pub const fn round_down(bytes: u64, align: Align) -> u64 {
    bytes & !(align.bytes() - 1)
}

/// The unit of which every chunk is a multiple: a power of two in bytes.
///
/// Tables count in granules with 32 bits, so one region holds at most `2^32 - 1` of them
/// (1 TiB less one granule at 256 bytes).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Granule(Align);

impl Granule {
    /// 256 bytes: TensorFlow's unit, and the alignment every device allocation has anyway.
    pub const DEFAULT: Self = Self(Align(8));

    /// Largest granule, 2^30 bytes: a block's slack (granted less requested bytes) is stored in
    /// 32 bits and stays below one granule.
    pub const MAX_BYTES: u64 = 1 << 30;

    /// Returns the granule of `bytes`, or `None` if that is not a power of two up to [`MAX_BYTES`](Self::MAX_BYTES).
    pub const fn new(bytes: u64) -> Option<Self> {
        match Align::new(bytes) {
            Some(align) if bytes <= Self::MAX_BYTES => Some(Self(align)),
            _ => None,
        }
    }

    /// Returns the granule in bytes.
    pub const fn bytes(self) -> u64 {
        self.0.bytes()
    }

    /// Returns the granule as an alignment: every chunk starts at a multiple of it.
    pub const fn align(self) -> Align {
        self.0
    }

    /// Returns how many granules hold `bytes`, rounded up, or `None` if 32 bits cannot count them.
    #[inline]
    pub const fn count_up(self, bytes: u64) -> Option<u32> {
        let shift = self.0.log2();
        let whole = bytes >> shift;
        // With a granule of one byte there is never a remainder, so the sum cannot overflow.
        let count = whole + (bytes & (self.bytes() - 1) != 0) as u64;
        if count > u32::MAX as u64 {
            return None;
        }
        Some(count as u32)
    }

    /// Returns the size in bytes of `count` granules. Never overflows: 2^32 x 2^30 < 2^64.
    #[inline]
    pub const fn bytes_of(self, count: u32) -> u64 {
        (count as u64) << self.0.log2()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_exact_at_the_limit_and_refuses_one_above() {
        let page = Align::new(4096).unwrap();
        assert_eq!(round_up(0, page), Some(0));
        assert_eq!(round_up(1, page), Some(4096));
        assert_eq!(round_up(4096, page), Some(4096));
        assert_eq!(round_up(4097, page), Some(8192));
        assert_eq!(round_up(u64::MAX - 4095, page), Some(u64::MAX - 4095));
        assert_eq!(round_up(u64::MAX - 4094, page), None);
        assert_eq!(round_down(4097, page), 4096);
    }

    #[test]
    fn an_alignment_is_a_power_of_two() {
        assert_eq!(Align::new(0), None);
        assert_eq!(Align::new(3), None);
        assert_eq!(Align::new(1), Some(Align::ONE));
        assert_eq!(Align::new(1 << 63).map(Align::bytes), Some(1 << 63));
    }

    #[test]
    fn a_granule_counts_up_to_32_bits() {
        let granule = Granule::DEFAULT;
        assert_eq!(granule.count_up(1), Some(1));
        assert_eq!(granule.count_up(256), Some(1));
        assert_eq!(granule.count_up(257), Some(2));
        let max = granule.bytes_of(u32::MAX);
        assert_eq!(granule.count_up(max - 256), Some(u32::MAX - 1));
        assert_eq!(granule.count_up(max - 255), Some(u32::MAX));
        assert_eq!(granule.count_up(max), Some(u32::MAX));
        assert_eq!(granule.count_up(max + 1), None);
        assert_eq!(Granule::new(1).unwrap().count_up(u64::MAX), None);
        assert_eq!(Granule::new(Granule::MAX_BYTES * 2), None);
    }

    #[test]
    fn a_range_is_half_open_and_never_empty() {
        let range = AddrRange::new(Addr::new(0x100), 0x100).unwrap();
        assert_eq!(range.end(), Addr::new(0x200));
        let behind = AddrRange::new(Addr::new(0x200), 1).unwrap();
        assert!(!range.overlaps(behind));
        assert!(range.contains(AddrRange::new(Addr::new(0x1ff), 1).unwrap()));
        assert!(!range.contains(behind));
        assert_eq!(AddrRange::new(Addr::new(0), 0), None);
        assert_eq!(AddrRange::new(Addr::new(u64::MAX), 1), None);
        assert!(AddrRange::new(Addr::new(u64::MAX - 1), 1).is_some());
    }
}
