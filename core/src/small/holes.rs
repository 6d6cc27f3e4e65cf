//! [`Holes`]: the parts of a span that were returned to the system while blocks of it are in use.
//!
//! One used block keeps the addresses of its span, but it need not keep all the pages. A span is cut into at most 128
//! units of whole pages. A unit in which every block is free may become a *hole*: its memory is discarded, and the
//! blocks that overlap it are in no list, since a list is kept in the blocks themselves. Such blocks are *holed*. When
//! the span has no other free block left, a hole is filled: its blocks are listed again, in the order of their
//! addresses.
//!
//! ```text
//!   units   │   0   │   1   │   2   │   3   │          holes = {1, 2}
//!   blocks  │ a │ b │ c  │  d  │  e │ f │ g │          c, d, e are free; holed: c, d, e
//! ```
//! The holes and the block's length determine which blocks are holed, so no record is kept for each block.

use core::ops::Range;

/// Maximum number of units in a span.
const UNITS: usize = 128;

/// A span's holes, one bit for each unit. The type is packed, because a span's record has no byte to spare.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(Rust, packed)]
pub(super) struct Holes {
    bits: u128,
    /// Binary logarithm of a unit's length; meaningless while there are no holes.
    unit_shift: u8,
}

/// Number of units counted at the same time, kept low because the stack may be small.
const COUNTED: usize = 16;

/// Bytes of free blocks in each of several units, starting with unit `first`.
pub(super) struct FreeTally {
    first: usize,
    bytes: [u32; COUNTED],
}

/// The dimensions of a span and its blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid {
    pub(super) span_bytes: usize,
    pub(super) block_bytes: usize,
    /// Number of carved blocks.
    pub(super) carved: usize,
    /// Number of blocks that fit.
    pub(super) capacity: usize,
}

impl Grid {
    /// Returns the end of the carved blocks.
    const fn carved_bytes(&self) -> usize {
        self.carved * self.block_bytes
    }

    /// Returns the carved blocks that overlap these bytes.
    fn blocks_over(&self, bytes: Range<usize>) -> Range<usize> {
        let end = bytes.end.div_ceil(self.block_bytes).min(self.carved);
        (bytes.start / self.block_bytes).min(end)..end
    }
}

impl Holes {
    pub(super) const NONE: Self = Self {
        bits: 0,
        unit_shift: 0,
    };

    pub(super) const fn is_empty(self) -> bool {
        self.bits == 0
    }

    /// Returns these holes with the unit length that suits memory returned in pages of `page_bytes`, a power of two.
    /// Returns `None` if a unit would be the whole span.
    pub(super) fn with_pages(self, grid: &Grid, page_bytes: usize) -> Option<Self> {
        let unit = (grid.span_bytes / UNITS)
            .max(page_bytes)
            .next_power_of_two();
        if unit >= grid.span_bytes {
            return None;
        }
        let unit_shift = unit.trailing_zeros() as u8;
        debug_assert!(self.is_empty() || self.unit_shift == unit_shift);
        Some(Self {
            bits: self.bits,
            unit_shift,
        })
    }

    /// Returns no holes, with units of the same length.
    pub(super) const fn cleared(self) -> Self {
        Self { bits: 0, ..self }
    }

    const fn unit_bytes(self) -> usize {
        1 << self.unit_shift
    }

    const fn has(self, unit: usize) -> bool {
        unit < UNITS && self.bits >> unit & 1 == 1
    }

    const fn bytes_of(self, unit: usize) -> Range<usize> {
        unit << self.unit_shift..(unit + 1) << self.unit_shift
    }

    fn units_of(self, number: usize, grid: &Grid) -> Range<usize> {
        let start = number * grid.block_bytes;
        let last = start + grid.block_bytes - 1;
        start >> self.unit_shift..(last >> self.unit_shift) + 1
    }

    /// Returns whether a block overlaps a hole.
    pub(super) fn have_block(self, number: usize, grid: &Grid) -> bool {
        !self.is_empty() && self.units_of(number, grid).any(|unit| self.has(unit))
    }

    /// Returns the number of blocks that overlap a hole. O(carved).
    pub(super) fn blocks(self, grid: &Grid) -> usize {
        (0..grid.carved)
            .filter(|number| self.have_block(*number, grid))
            .count()
    }

    /// Returns the first unit of each count; together the counts cover all units.
    pub(super) fn counts(self, grid: &Grid) -> impl Iterator<Item = usize> {
        (0..grid.span_bytes >> self.unit_shift).step_by(COUNTED)
    }

    /// Returns a count that starts with unit `first` and includes the holed blocks. O(carved), without touching a
    /// block.
    pub(super) fn tally(self, grid: &Grid, first: usize) -> FreeTally {
        let mut tally = FreeTally {
            first,
            bytes: [0; COUNTED],
        };
        if !self.is_empty() {
            for number in (0..grid.carved).filter(|number| self.have_block(*number, grid)) {
                self.count(number, grid, &mut tally);
            }
        }
        tally
    }

    /// Counts a free block.
    pub(super) fn count(self, number: usize, grid: &Grid, tally: &mut FreeTally) {
        let (start, end) = (number * grid.block_bytes, (number + 1) * grid.block_bytes);
        for unit in self.units_of(number, grid) {
            let bytes = self.bytes_of(unit);
            let within = end.min(bytes.end) - start.max(bytes.start);
            if let Some(sum) = tally.bytes.get_mut(unit.wrapping_sub(tally.first)) {
                *sum += within as u32;
            }
        }
    }

    /// Returns the counted units that may become holes: wholly free, and carved to their end or to the end of the
    /// last block.
    pub(super) fn candidates(self, grid: &Grid, tally: &FreeTally) -> Self {
        let carved = grid.carved_bytes();
        let mut found = self.cleared();
        for (unit, free) in (tally.first..).zip(&tally.bytes) {
            let bytes = self.bytes_of(unit);
            let filled = carved.min(bytes.end).saturating_sub(bytes.start);
            let whole = filled == self.unit_bytes() || grid.carved == grid.capacity;
            if !self.has(unit) && whole && filled > 0 && filled == *free as usize {
                found.bits |= 1 << unit;
            }
        }
        found
    }

    /// Returns the bytes of all holes.
    pub(super) const fn bytes(self) -> usize {
        (self.bits.count_ones() as usize) << self.unit_shift
    }

    /// Returns the union of both.
    pub(super) const fn and(self, other: Self) -> Self {
        Self {
            bits: self.bits | other.bits,
            ..other
        }
    }

    /// Returns the runs of adjacent holes, as bytes of the span.
    pub(super) fn runs(self) -> impl Iterator<Item = Range<usize>> {
        let mut unit = 0;
        core::iter::from_fn(move || {
            while unit < UNITS && !self.has(unit) {
                unit += 1;
            }
            let first = unit;
            while self.has(unit) {
                unit += 1;
            }
            (first < unit).then(|| first << self.unit_shift..unit << self.unit_shift)
        })
    }

    /// Fills the first hole, or enough of it for one block. Returns the blocks that are no longer holed, or none if
    /// there is no hole.
    pub(super) fn fill(&mut self, grid: &Grid) -> Range<usize> {
        let first = self.bits.trailing_zeros() as usize;
        if first >= UNITS {
            return 0..0;
        }
        let mut unit = first;
        loop {
            self.bits &= !(1 << unit);
            let mut blocks = grid.blocks_over(self.bytes_of(first).start..self.bytes_of(unit).end);
            if !self.has(unit + 1) {
                return blocks;
            }
            // A block that reaches into the next hole stays holed.
            blocks.end = blocks.end.min(self.bytes_of(unit).end / grid.block_bytes);
            if !blocks.is_empty() {
                return blocks;
            }
            unit += 1;
        }
    }
}

#[cfg(all(test, not(larder_loom)))]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    fn grid(span_bytes: usize, block_bytes: usize, carved: usize) -> Grid {
        let capacity = span_bytes / block_bytes;
        Grid {
            span_bytes,
            block_bytes,
            carved: carved.min(capacity),
            capacity,
        }
    }

    /// Scans a span whose used blocks are those for which `used` returns true, and checks every byte.
    fn scan(grid: &Grid, holes: Holes, used: impl Fn(usize) -> bool) -> Holes {
        let holes = holes.with_pages(grid, PAGE).unwrap_or(Holes::NONE);
        let found = holes.counts(grid).fold(holes.cleared(), |found, first| {
            let mut tally = holes.tally(grid, first);
            for number in (0..grid.carved).filter(|number| !used(*number)) {
                if !holes.have_block(number, grid) {
                    holes.count(number, grid, &mut tally);
                }
            }
            found.and(holes.candidates(grid, &tally))
        });
        for unit in 0..UNITS.min(grid.span_bytes >> holes.unit_shift) {
            let bytes = holes.bytes_of(unit);
            let end = grid.carved_bytes();
            let is_end = grid.carved == grid.capacity;
            let blocks = bytes.clone().filter(|byte| *byte < end);
            let free = blocks.clone().all(|byte| !used(byte / grid.block_bytes));
            let whole = bytes.end <= end || is_end;
            let expected = free && whole && blocks.count() > 0;
            assert_eq!(holes.has(unit) || found.has(unit), expected, "{unit}");
        }
        holes.and(found)
    }

    #[test]
    fn a_unit_is_a_hole_when_no_byte_of_it_is_used() {
        for (span, block) in [
            (65_536, 48),
            (65_536, 5120),
            (524_288, 10_240),
            (524_288, 98_304),
        ] {
            for carved in [usize::MAX, span / block / 2, 1] {
                let grid = grid(span, block, carved);
                scan(&grid, Holes::NONE, |_| false);
                scan(&grid, Holes::NONE, |_| true);
                for one in [0, grid.carved / 3, grid.carved - 1] {
                    let holes = scan(&grid, Holes::NONE, |number| number == one);
                    // Other blocks may be used later.
                    let holes = scan(&grid, holes, |number| number == one);
                    assert!(!holes.have_block(one, &grid));
                }
            }
        }
    }

    #[test]
    fn filling_gives_every_holed_block_once_and_leaves_none() {
        for (span, block) in [
            (65_536, 16),
            (65_536, 1536),
            (65_536, 7168),
            (524_288, 114_688),
        ] {
            let grid = grid(span, block, usize::MAX);
            for every in [3, 7, 50, 1000] {
                let used = |number: usize| number % every == 1;
                let mut holes = scan(&grid, Holes::NONE, used);
                let (mut found, holed) = (0, holes.blocks(&grid));
                while !holes.is_empty() {
                    let before = holes;
                    let blocks = holes.fill(&grid);
                    assert!(!blocks.is_empty());
                    for number in 0..grid.carved {
                        let expected =
                            before.have_block(number, &grid) && !blocks.contains(&number);
                        assert_eq!(holes.have_block(number, &grid), expected, "{number}");
                        assert!(!blocks.contains(&number) || !used(number));
                    }
                    found += blocks.len();
                }
                assert_eq!(found, holed, "{block} bytes, 1 of {every}");
                assert!(holes.fill(&grid).is_empty());
            }
        }
    }

    #[test]
    fn runs_are_the_holes() {
        let holes = Holes {
            bits: 0b1000_0000_0110_0001,
            unit_shift: 12,
        };
        let found: [_; 3] = {
            let mut runs = holes.runs();
            core::array::from_fn(|_| runs.next().unwrap())
        };
        assert_eq!(found, [0..PAGE, 5 * PAGE..7 * PAGE, 15 * PAGE..16 * PAGE]);
        assert_eq!(holes.runs().count(), 3);
        assert_eq!(holes.bytes(), 4 * PAGE);
        assert_eq!(Holes::NONE.runs().count(), 0);
    }

    #[test]
    fn pages_as_long_as_the_span_leave_nothing_to_dig() {
        let grid = grid(65_536, 64, usize::MAX);
        assert_eq!(Holes::NONE.with_pages(&grid, 65_536), None);
        assert!(Holes::NONE.with_pages(&grid, 16_384).is_some());
    }
}
