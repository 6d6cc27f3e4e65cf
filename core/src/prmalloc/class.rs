//! Size classes of the bins. Above 32 KiB they are an [`Interval`] apart. Up to 32 KiB they are the 66 sizes of
//! upstream's GPU form, and one table gives the class of a size.
//!
//! A class is a number, and larger classes hold larger chunks. Classes up to 32 KiB and classes above are numbered
//! separately.

use crate::units::{Align, round_up};

/// The largest small size. The classes of an [`Interval`] begin above it.
pub const SMALL_MAX_BYTES: u64 = 32 << 10;

/// The distance between classes above 32 KiB. The cheapest plan is chosen among three policies, one for each interval.
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
    /// All intervals, the finest first. If plans need the same memory, the first of them wins.
    pub const ALL: [Self; 3] = [Self::KiB4, Self::KiB8, Self::KiB16];

    /// Returns the distance in bytes.
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

    /// Returns the class of a size. Returns `None` for a size up to 32 KiB, which has no class here, and for one that
    /// cannot be rounded up. O(1).
    pub const fn class_of(self, bytes: u64) -> Option<u64> {
        if bytes <= SMALL_MAX_BYTES {
            return None;
        }
        match round_up(bytes, self.align()) {
            // The rounded size is at least one interval above 32 KiB.
            Some(rounded) => Some((rounded - SMALL_MAX_BYTES) / self.bytes() - 1),
            None => None,
        }
    }

    /// Returns the size of a class's chunks, or `None` if no size has this class. O(1).
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

/// The classes of a policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Classes {
    /// Sizes above 32 KiB; a bin may share blocks of larger bins.
    Above(Interval),
    /// Sizes up to 32 KiB by [`SmallClass`]; bins share nothing.
    Small,
}

impl Classes {
    /// Returns the class of a size, or `None` if the size has no class here.
    pub const fn class_of(self, bytes: u64) -> Option<u64> {
        match self {
            Self::Above(interval) => interval.class_of(bytes),
            Self::Small => match SmallClass::of(bytes) {
                Some(class) => Some(class.number() as u64),
                None => None,
            },
        }
    }

    /// Returns the size of a class's chunks, or `None` if there is no such class.
    pub const fn chunk_bytes(self, class: u64) -> Option<u64> {
        match self {
            Self::Above(interval) => interval.chunk_bytes(class),
            Self::Small => match SmallClass::from_number(class) {
                Some(class) => Some(class.bytes()),
                None => None,
            },
        }
    }

    /// Returns whether a bin may take blocks of larger bins.
    pub const fn shares(self) -> bool {
        matches!(self, Self::Above(_))
    }
}

/// Sizes of the classes; number 0 is not used.
const SIZES: [u16; 67] = [
    0, 8, 16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256, 272, 288, 304,
    320, 336, 352, 368, 384, 400, 416, 448, 480, 512, 576, 640, 704, 768, 896, 1024, 1152, 1280,
    1408, 1536, 1792, 2048, 2304, 2688, 2816, 3200, 3456, 3584, 4096, 4736, 5376, 6144, 6528, 6784,
    7168, 8192, 9472, 10240, 12288, 13568, 14336, 16384, 20480, 24576, 28672, 32768,
];

/// Largest size for which the lookup has a slot every 8 bytes. Above it there is a slot every 128 bytes.
const FINE_MAX_BYTES: u64 = 1024;

/// Slots of the lookup: 0 to 128 are the fine ones, then one for each 128 bytes up to 32 KiB.
const SLOTS: usize = 377;

const _: () = assert!(slot(SMALL_MAX_BYTES) == SLOTS - 1);

/// The class of each slot.
static LOOKUP: [u8; SLOTS] = lookup();

const fn slot(bytes: u64) -> usize {
    // The size is at most 32 KiB, so both quotients fit.
    if bytes <= FINE_MAX_BYTES {
        bytes.div_ceil(8) as usize
    } else {
        ((bytes + 127 + 120 * 128) / 128) as usize
    }
}

const fn lookup() -> [u8; SLOTS] {
    let mut table = [0; SLOTS];
    let mut class = 1;
    let mut at = 0;
    while at < SLOTS {
        // This is the largest size with this slot.
        let bytes = if at <= 128 { at * 8 } else { (at - 120) * 128 };
        while (SIZES[class] as usize) < bytes {
            class += 1;
        }
        table[at] = class as u8;
        at += 1;
    }
    table
}

/// A class of sizes up to 32 KiB.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SmallClass(u8);

impl SmallClass {
    /// Number of class numbers, including 0, which names no class.
    pub const NUMBERS: usize = SIZES.len();

    /// Returns the class of a size, or `None` above 32 KiB. A size of 0 is in the first class. O(1).
    pub const fn of(bytes: u64) -> Option<Self> {
        if bytes > SMALL_MAX_BYTES {
            return None;
        }
        Some(Self(LOOKUP[slot(bytes)]))
    }

    /// Returns the class with this number, or `None` unless the number is 1 to 66.
    pub const fn from_number(number: u64) -> Option<Self> {
        if number == 0 || number >= Self::NUMBERS as u64 {
            return None;
        }
        Some(Self(number as u8))
    }

    /// Returns the number of the class, 1 to 66.
    pub const fn number(self) -> u8 {
        self.0
    }

    /// Returns the size of the class's chunks.
    pub const fn bytes(self) -> u64 {
        SIZES[self.0 as usize] as u64
    }
}
