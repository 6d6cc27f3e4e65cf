//! One recorded block: from when to when, how large, how aligned.
//!
//! Ticks are 64 bits wide, a count of events or microseconds, whatever the caller's clock gives.
//! With a count no two events share a tick; with a clock they may.

use crate::units::Align;

/// A block's life as it was recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AllocStat {
    /// First tick.
    pub begin: u64,
    /// The tick of the free; never before `begin`.
    pub end: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// What the address had to be a multiple of.
    pub align: Align,
}

impl AllocStat {
    /// What stands in a table's unused records.
    pub const VACANT: Self = Self::new(0, 0, 0);

    /// A block without a wish for alignment. An end before the beginning, from a clock that
    /// stepped back, counts as the beginning.
    pub const fn new(begin: u64, end: u64, bytes: u64) -> Self {
        Self {
            begin,
            end: if end < begin { begin } else { end },
            bytes,
            align: Align::ONE,
        }
    }

    /// This stat for a block aligned to `align`.
    pub const fn aligned(self, align: Align) -> Self {
        Self { align, ..self }
    }
}
