//! Fine size classes, which decide in which list a free chunk is.
//!
//! Below 64 granules, every size has its own class. From 64 granules up, each doubling is divided into 32 classes, so a
//! class spans at most 1/32 (3.1 %) of its size. This fits the bitmap, which has 64 classes, or two doublings, per
//! word.

/// Binary logarithm of the number of classes in each doubling.
const SUB_BITS: u32 = 5;
/// Each size below this has a class of its own.
const EXACT: u32 = 2 << SUB_BITS;

/// A size class: an index below [`Class::COUNT`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Class(u16);

impl Class {
    /// Number of classes of 32-bit sizes.
    pub(super) const COUNT: usize = EXACT as usize + (32 - 6) * (1 << SUB_BITS);

    /// Returns the class of chunks of `size` granules.
    #[inline]
    pub(super) const fn of(size: u32) -> Self {
        if size < EXACT {
            return Self(size as u16);
        }
        let log2 = 31 - size.leading_zeros();
        let sub = (size >> (log2 - SUB_BITS)) & ((1 << SUB_BITS) - 1);
        Self((EXACT + ((log2 - SUB_BITS - 1) << SUB_BITS) + sub) as u16)
    }

    /// Returns the class with this index.
    pub(super) const fn from_index(index: usize) -> Self {
        Self(index as u16)
    }

    #[inline]
    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the smallest size of a class, as the module's documentation defines it.
    fn smallest(class: usize) -> u64 {
        if class < 64 {
            return class as u64;
        }
        let (doubling, sub) = ((class - 64) / 32, (class - 64) % 32);
        (64 << doubling) + ((sub as u64) << (doubling + 1))
    }

    #[test]
    fn each_class_begins_where_the_one_below_ends() {
        for class in 1..Class::COUNT {
            let first = u32::try_from(smallest(class)).unwrap();
            assert_eq!(
                Class::of(first).index(),
                class,
                "first size of class {class}"
            );
            assert_eq!(
                Class::of(first - 1).index(),
                class - 1,
                "last below class {class}"
            );
        }
        assert_eq!(Class::of(u32::MAX).index(), Class::COUNT - 1);
        assert_eq!(Class::COUNT, 896);
    }
}
