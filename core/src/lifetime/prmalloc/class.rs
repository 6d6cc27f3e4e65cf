//! Size classes of the bins: every so many KiB above 32 KiB, and a fixed table below.
//!
//! A class is a number; larger classes hold larger chunks. Below and above 32 KiB the numbers
//! count separately.

use crate::units::{Align, round_up};

/// The largest small size. The classes of an [`Interval`] begin above it.
pub const SMALL_MAX_BYTES: u64 = 32 << 10;

/// How far apart the classes above 32 KiB are: the three policies among which the cheapest plan is
/// chosen.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Interval {
    /// A class every 4 KiB.
    KiB4,
    /// A class every 8 KiB.
    KiB8,
    /// A class every 16 KiB.
    KiB16,
}

impl Interval {
    /// From the finest on; at equal memory the first wins.
    pub const ALL: [Self; 3] = [Self::KiB4, Self::KiB8, Self::KiB16];

    /// The distance in bytes.
    pub const fn bytes(self) -> u64 {
        self.align().bytes()
    }

    const fn align(self) -> Align {
        let bytes: u64 = match self {
            Self::KiB4 => 4 << 10,
            Self::KiB8 => 8 << 10,
            Self::KiB16 => 16 << 10,
        };
        match Align::new(bytes) {
            Some(align) => align,
            None => Align::ONE,
        }
    }

    /// The class of a size; `None` for sizes up to 32 KiB, which have no class here, and for those
    /// that cannot be rounded up. O(1).
    pub const fn class_of(self, bytes: u64) -> Option<u64> {
        if bytes <= SMALL_MAX_BYTES {
            return None;
        }
        match round_up(bytes, self.align()) {
            // Rounded up it is one interval above 32 KiB at least.
            Some(rounded) => Some((rounded - SMALL_MAX_BYTES) / self.bytes() - 1),
            None => None,
        }
    }

    /// The size of a class's chunks; `None` for a class that no size has. O(1).
    pub const fn chunk_bytes(self, class: u64) -> Option<u64> {
        match class.checked_add(1) {
            Some(above) => match above.checked_mul(self.bytes()) {
                Some(bytes) => bytes.checked_add(SMALL_MAX_BYTES),
                None => None,
            },
            None => None,
        }
    }
}

/// What a policy's classes are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Classes {
    /// Sizes above 32 KiB; a bin may share blocks of larger bins.
    Above(Interval),
    /// Sizes up to 32 KiB by [`SmallClass`](super::SmallClass); bins share nothing.
    Small,
}

impl Classes {
    /// The class of a size, if it has one here.
    pub const fn class_of(self, bytes: u64) -> Option<u64> {
        match self {
            Self::Above(interval) => interval.class_of(bytes),
            Self::Small => match super::SmallClass::of(bytes) {
                Some(class) => Some(class.number() as u64),
                None => None,
            },
        }
    }

    /// The size of a class's chunks, if there is such a class.
    pub const fn chunk_bytes(self, class: u64) -> Option<u64> {
        match self {
            Self::Above(interval) => interval.chunk_bytes(class),
            Self::Small => match super::SmallClass::from_number(class) {
                Some(class) => Some(class.bytes()),
                None => None,
            },
        }
    }

    /// Whether a bin may take blocks of larger bins.
    pub const fn shares(self) -> bool {
        matches!(self, Self::Above(_))
    }
}
