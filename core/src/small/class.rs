//! Size classes: the block size that serves a layout.
//!
//! The class is computed without a table, so that a constant layout folds to a constant class. The classes are 8 bytes,
//! then every multiple of 16 bytes up to 1 KiB, then four sizes for each doubling up to 128 KiB. Above 64 bytes, at
//! most a fifth of a block is lost to rounding.
//!
//! ```text
//! index   0   1   2   3   4  ...  65   66   67   68   69   70  ...      93
//! bytes   8   8  16  32  48     1024 1280 1536 1792 2048 2560      131072
//! ```
//! The 8-byte class serves layouts of up to 8 bytes whose alignment is 8, such as a boxed pointer. The alignment is
//! nearly always known to the compiler. Short strings, whose length is not known, get 16 bytes even if they have 8
//! bytes or less, so that one compare selects the fast path. Index 0 has no blocks, so that the address of a bin takes
//! only an addition and a mask.

/// Number of classes.
pub const CLASSES: usize = 94;

/// Largest block that has a class, in bytes.
pub const MAX_SMALL_BYTES: usize = 128 << 10;

/// Largest alignment that a class serves: the alignment of every span's start.
pub const MAX_SMALL_ALIGN: usize = 4096;

/// Sizes up to this are spaced by [`SPACING`].
const LINEAR_BYTES: usize = 1024;
pub(super) const SPACING: usize = 16;
/// Index of the first class above [`LINEAR_BYTES`].
const FIRST_GEOMETRIC: usize = LINEAR_BYTES / SPACING + 2;

/// Maximum number of blocks in a bin, however small they are.
const BIN_BLOCKS: usize = 256;

/// A size class, by its index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct SizeClass(usize);

impl SizeClass {
    /// Index 0, which has no blocks: its bin is always empty and never has room.
    pub const NONE: Self = Self(0);
    /// The 8-byte class.
    pub const EIGHT: Self = Self(1);

    /// Returns the class that serves `size` bytes at a multiple of `align`, a power of two. Returns `None` if the size
    /// or the alignment is too large. The result depends only on the layout, so a free finds the class from the layout.
    #[inline(always)]
    pub const fn of(size: usize, align: usize) -> Option<Self> {
        // Blocks of the 8-byte class are at multiples of 8, all others at multiples of 16.
        if align <= 8 || (align <= SPACING && size > 8) {
            if size > MAX_SMALL_BYTES {
                return None;
            }
            if size <= 8 && align == 8 {
                return Some(Self::EIGHT);
            }
            return Some(Self::of_bytes(size));
        }
        Self::of_aligned(size, align)
    }

    /// Returns whether a layout is like that of most blocks: up to 1 KiB, with an alignment that all blocks of such a
    /// size have anyway, and not of the 8-byte class. If the alignment is known, this takes one compare.
    /// [`of_common`](Self::of_common) returns the class of such a layout, so that fast paths need not deal with others.
    #[inline(always)]
    pub const fn is_common(size: usize, align: usize) -> bool {
        let least = if align < 8 { 1 } else { 9 };
        // Smaller sizes wrap around.
        size.wrapping_sub(least) <= LINEAR_BYTES - least && align <= SPACING
    }

    /// Returns the class of a common layout of this size, the same as [`of`](Self::of) does.
    #[inline(always)]
    pub const fn of_common(size: usize) -> Self {
        debug_assert!(Self::is_common(size, 1));
        Self(size.div_ceil(SPACING) + 1)
    }

    /// Returns the class of a layout whose alignment matters: the class of the size rounded up to the alignment.
    const fn of_aligned(size: usize, align: usize) -> Option<Self> {
        if size > MAX_SMALL_BYTES || align > MAX_SMALL_ALIGN {
            return None;
        }
        // The sum is at most 128 KiB + 4 KiB, so nothing overflows.
        let bytes = match size {
            0 => align,
            _ => (size + align - 1) & !(align - 1),
        };
        if bytes > MAX_SMALL_BYTES {
            return None;
        }
        // The block length of a class is a multiple of the distance to the next class. If the alignment is larger than
        // that distance, the rounded length is a multiple of the distance, and therefore has a class of its own.
        Some(Self::of_bytes(bytes))
    }

    /// Returns the class of `size` bytes, at most [`MAX_SMALL_BYTES`].
    #[inline(always)]
    const fn of_bytes(size: usize) -> Self {
        if size <= LINEAR_BYTES {
            // A size of 0 is in the 8-byte class.
            return Self(size.div_ceil(SPACING) + 1);
        }
        Self::of_long(size)
    }

    /// Returns whether a layout is longer than a common one, and otherwise like it. This takes two compares.
    #[inline(always)]
    pub const fn is_long(size: usize, align: usize) -> bool {
        size.wrapping_sub(LINEAR_BYTES + 1) < MAX_SMALL_BYTES - LINEAR_BYTES && align <= SPACING
    }

    /// Returns the class of a long layout of this size, the same as [`of`](Self::of) does.
    #[inline(always)]
    pub const fn of_long(size: usize) -> Self {
        debug_assert!(Self::is_long(size, 1));
        let last = size - 1;
        // The bit makes the number nonzero for `ilog2`, which saves a case.
        let doubling = (last | 1).ilog2() as usize;
        // The first three bits: 4 to 7.
        let quarter = last >> (doubling - 2);
        Self(doubling * 4 + quarter + FIRST_GEOMETRIC - 4 - 10 * 4)
    }

    /// Returns the class with this index, or `None` from [`CLASSES`] up.
    pub const fn from_index(index: usize) -> Option<Self> {
        if index < CLASSES {
            Some(Self(index))
        } else {
            None
        }
    }

    /// Returns the class whose [`index`](Self::index) was stored in a table.
    #[inline(always)]
    pub const fn from_entry(index: u8) -> Self {
        debug_assert!((index as usize) < CLASSES);
        Self(index as usize)
    }

    /// Returns whether this is a class of long layouts, which are longer than any common one.
    #[inline(always)]
    pub const fn is_of_long(self) -> bool {
        self.0 >= FIRST_GEOMETRIC
    }

    /// Returns the classes of long layouts, smallest first.
    pub fn long() -> impl Iterator<Item = Self> {
        (FIRST_GEOMETRIC..CLASSES).map(Self)
    }

    /// Returns all classes, smallest first.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..CLASSES).map(Self)
    }

    /// Returns the index of the class, below [`CLASSES`].
    #[inline(always)]
    pub const fn index(self) -> usize {
        self.0
    }

    /// Returns the length of a block in bytes.
    pub const fn block_bytes(self) -> usize {
        let index = self.index();
        match index {
            0 | 1 => 8,
            _ if index < FIRST_GEOMETRIC => (index - 1) * SPACING,
            _ => {
                let step = index - FIRST_GEOMETRIC;
                (5 + step % 4) << (8 + step / 4)
            }
        }
    }

    /// Returns the alignment that all blocks of the class have: the largest power of two that divides their size, up
    /// to [`MAX_SMALL_ALIGN`].
    pub const fn block_align(self) -> usize {
        let bytes = self.block_bytes();
        let align = bytes & bytes.wrapping_neg();
        if align > MAX_SMALL_ALIGN {
            MAX_SMALL_ALIGN
        } else {
            align
        }
    }

    /// Returns the number of free blocks that a bin of `bin_bytes` bytes holds, at least one.
    pub const fn bin_blocks(self, bin_bytes: usize) -> usize {
        let blocks = bin_bytes / self.block_bytes();
        if blocks == 0 {
            1
        } else if blocks > BIN_BLOCKS {
            BIN_BLOCKS
        } else {
            blocks
        }
    }
}

const _: () = assert!(SizeClass(CLASSES - 1).block_bytes() == MAX_SMALL_BYTES);

#[cfg(all(test, not(larder_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_the_smallest_whose_blocks_hold_the_size() {
        for size in 1..=MAX_SMALL_BYTES {
            let class = SizeClass::of(size, 8).unwrap();
            assert!(class.block_bytes() >= size, "{size}");
            let below = SizeClass::from_index(class.index() - 1).unwrap();
            assert!(below.block_bytes() < size || class.index() == 1, "{size}");
        }
        assert_eq!(SizeClass::of(MAX_SMALL_BYTES + 1, 1), None);
        assert_eq!(SizeClass::of(usize::MAX, 1), None);
        for align in [1, 2, 4, 8] {
            assert_eq!(SizeClass::of(0, align).map(SizeClass::block_bytes), Some(8));
        }
        for (size, align) in [(1, 1), (8, 1), (2, 2), (8, 4), (9, 8), (1, 16)] {
            let class = SizeClass::of(size, align);
            assert_eq!(
                class.map(SizeClass::block_bytes),
                Some(16),
                "{size} at {align}"
            );
        }
    }

    #[test]
    fn common_and_long_layouts_have_the_class_that_all_have() {
        let edge = MAX_SMALL_BYTES - 2..=MAX_SMALL_BYTES + 2;
        let sizes = (0..3000).chain(edge).chain([usize::MAX - 4, usize::MAX]);
        for (size, shift) in sizes.flat_map(|size| (0..8).map(move |shift| (size, shift))) {
            let align = 1 << shift;
            let least = if align < 8 { 1 } else { 9 };
            let common = (least..=LINEAR_BYTES).contains(&size) && align <= 16;
            assert_eq!(
                SizeClass::is_common(size, align),
                common,
                "{size} at {align}"
            );
            let class = SizeClass::of(size, align);
            if common {
                assert_eq!(Some(SizeClass::of_common(size)), class, "{size} at {align}");
            }
            let long = (LINEAR_BYTES + 1..=MAX_SMALL_BYTES).contains(&size) && align <= 16;
            assert_eq!(SizeClass::is_long(size, align), long, "{size} at {align}");
            if long {
                assert_eq!(Some(SizeClass::of_long(size)), class, "{size} at {align}");
            }
        }
    }

    #[test]
    fn an_aligned_layout_gets_blocks_whose_size_is_a_multiple_of_the_alignment() {
        for shift in 0..=12 {
            let align = 1 << shift;
            for size in (0..5000).chain((5000..=MAX_SMALL_BYTES).step_by(37)) {
                let class = SizeClass::of(size, align).unwrap();
                let bytes = class.block_bytes();
                assert!(
                    bytes >= size && bytes.is_multiple_of(align),
                    "{size} at {align}"
                );
                assert!(
                    bytes < 2 * size.max(align).max(9),
                    "{size} at {align}: {bytes}"
                );
            }
        }
        assert_eq!(SizeClass::of(64, 2 * MAX_SMALL_ALIGN), None);
        assert_eq!(SizeClass::of(usize::MAX - 7, 64), None);
        assert_eq!(SizeClass::of(usize::MAX / 2 + 1, usize::MAX / 2 + 1), None);
    }

    #[test]
    fn the_alignment_of_a_class_is_the_most_that_all_its_blocks_have() {
        for class in SizeClass::all() {
            let (bytes, align) = (class.block_bytes(), class.block_align());
            assert!(align.is_power_of_two() && bytes.is_multiple_of(align));
            assert!(align == MAX_SMALL_ALIGN || !bytes.is_multiple_of(2 * align));
        }
    }

    #[test]
    fn classes_rise_and_waste_at_most_a_fifth_above_64_bytes() {
        let sizes: [usize; CLASSES] =
            core::array::from_fn(|i| SizeClass::from_index(i).unwrap().block_bytes());
        for pair in sizes[1..].windows(2) {
            assert!(pair[0] < pair[1]);
            assert!(
                pair[0] < 64 || 5 * (pair[1] - pair[0] - 1) <= pair[1],
                "{pair:?}"
            );
        }
        assert!(SizeClass::all().all(|class| class.bin_blocks(0) == 1));
        assert_eq!(SizeClass::from_index(CLASSES), None);
    }
}
