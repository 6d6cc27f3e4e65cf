//! Size classes: which block size serves a layout.
//!
//! Arithmetic and no table, so that a constant layout folds to a constant class. Classes are 8
//! bytes, then every 16 bytes up to 1 KiB, then four for each doubling up to 128 KiB: at most a
//! fifth of a block is lost to rounding above 64 bytes.
//!
//! ```text
//! index   0   1   2   3   4  ...  65   66   67   68   69   70  ...      93
//! bytes   8   8  16  32  48     1024 1280 1536 1792 2048 2560      131072
//! ```
//! Index 0 is for requests of no bytes: giving them a list of their own keeps the arithmetic free
//! of a branch.

/// How many classes there are.
pub const CLASSES: usize = 94;

/// Largest block that has a class, in bytes.
pub const MAX_SMALL_BYTES: usize = 128 << 10;

/// Largest alignment a class serves: what every span's start is aligned to.
pub const MAX_SMALL_ALIGN: usize = 4096;

/// Sizes up to here are spaced by [`SPACING`].
const LINEAR_BYTES: usize = 1024;
const SPACING: usize = 16;
/// Index of the first class above [`LINEAR_BYTES`].
const FIRST_GEOMETRIC: usize = LINEAR_BYTES / SPACING + 2;

/// A thread keeps at most this many free bytes of one class at hand...
const BIN_BYTES: usize = 32 << 10;
/// ...and at most this many blocks, but always one.
const BIN_BLOCKS: usize = 256;

/// A size class, by its index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct SizeClass(u8);

impl SizeClass {
    /// The class that serves `size` bytes at a multiple of `align`, a power of two; `None` if the
    /// block is too large or its alignment too coarse. The same answer for the same layout,
    /// always: a free finds its class with it.
    #[inline(always)]
    pub const fn of(size: usize, align: usize) -> Option<Self> {
        // Blocks of the 8-byte class lie at multiples of 8, of all others of 16.
        if align <= 8 || (align <= SPACING && size > 8) {
            if size > MAX_SMALL_BYTES {
                return None;
            }
            return Some(Self::of_bytes(size));
        }
        Self::of_aligned(size, align)
    }

    /// The class of a layout whose alignment matters: one whose size is a multiple of it.
    const fn of_aligned(size: usize, align: usize) -> Option<Self> {
        if size > MAX_SMALL_BYTES || align > MAX_SMALL_ALIGN {
            return None;
        }
        // At most 128 KiB + 4 KiB, so nothing overflows.
        let bytes = match size {
            0 => align,
            _ => (size + align - 1) & !(align - 1),
        };
        if bytes > MAX_SMALL_BYTES {
            return None;
        }
        let class = Self::of_bytes(bytes);
        if class.block_bytes() & (align - 1) == 0 {
            return Some(class);
        }
        Some(Self::of_bytes(bytes.next_power_of_two()))
    }

    /// The class of `size` bytes, at most [`MAX_SMALL_BYTES`].
    #[inline(always)]
    const fn of_bytes(size: usize) -> Self {
        if size <= LINEAR_BYTES {
            // One compare, no branch.
            return Self((size.div_ceil(SPACING) + (size > 8) as usize) as u8);
        }
        let last = size - 1;
        let doubling = (usize::BITS - 1 - last.leading_zeros()) as usize;
        let quarter = (last >> (doubling - 2)) & 3;
        Self((FIRST_GEOMETRIC + (doubling - 10) * 4 + quarter) as u8)
    }

    /// The class with this index; `None` from [`CLASSES`] up.
    pub const fn from_index(index: usize) -> Option<Self> {
        if index < CLASSES {
            Some(Self(index as u8))
        } else {
            None
        }
    }

    /// All classes, smallest first.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..CLASSES as u8).map(Self)
    }

    /// Its index, below [`CLASSES`].
    #[inline(always)]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Bytes of one block.
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

    /// Alignment that all blocks of the class have: the largest power of two that divides their
    /// size, up to [`MAX_SMALL_ALIGN`].
    pub const fn block_align(self) -> usize {
        let bytes = self.block_bytes();
        let align = bytes & bytes.wrapping_neg();
        if align > MAX_SMALL_ALIGN {
            MAX_SMALL_ALIGN
        } else {
            align
        }
    }

    /// How many free blocks a bin holds before it is emptied.
    pub const fn bin_blocks(self) -> usize {
        let blocks = BIN_BYTES / self.block_bytes();
        if blocks == 0 {
            1
        } else if blocks > BIN_BLOCKS {
            BIN_BLOCKS
        } else {
            blocks
        }
    }
}

const _: () = assert!(CLASSES <= u8::MAX as usize);
const _: () = assert!(SizeClass(CLASSES as u8 - 1).block_bytes() == MAX_SMALL_BYTES);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_the_smallest_whose_blocks_hold_the_size() {
        for size in 1..=MAX_SMALL_BYTES {
            let class = SizeClass::of(size, 1).unwrap();
            assert!(class.block_bytes() >= size, "{size}");
            let below = SizeClass::from_index(class.index() - 1).unwrap();
            assert!(below.block_bytes() < size || class.index() == 1, "{size}");
        }
        assert_eq!(SizeClass::of(MAX_SMALL_BYTES + 1, 1), None);
        assert_eq!(SizeClass::of(usize::MAX, 1), None);
        assert_eq!(SizeClass::of(0, 1).map(SizeClass::block_bytes), Some(8));
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
                    bytes < 2 * size.max(align) + 8,
                    "{size} at {align}: {bytes}"
                );
            }
        }
        assert_eq!(SizeClass::of(64, 2 * MAX_SMALL_ALIGN), None);
        assert_eq!(SizeClass::of(usize::MAX - 7, 64), None);
        assert_eq!(SizeClass::of(usize::MAX / 2 + 1, usize::MAX / 2 + 1), None);
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
        assert!(SizeClass::all().all(|class| class.bin_blocks() >= 1));
        assert_eq!(SizeClass::from_index(CLASSES), None);
    }
}
