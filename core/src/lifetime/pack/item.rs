//! One lifetime under search.

use crate::units::Align;

/// The slot of an item that is placed.
pub(super) const PLACED: u32 = u32::MAX;

/// A lifetime of the part being searched, with what the search knows about its offset.
#[derive(Clone, Copy, Debug)]
pub struct Item {
    /// Which lifetime.
    pub(super) id: u32,
    /// First section.
    pub(super) lo: u32,
    /// First section after it.
    pub(super) hi: u32,
    /// Where it stands among the unplaced, or [`PLACED`].
    pub(super) slot: u32,
    /// Its slot before it was placed.
    pub(super) old_slot: u32,
    /// Lower ranks are decided first among equals.
    pub(super) rank: u32,
    /// How long it lives.
    pub(super) ticks: u32,
    /// Where its neighbours begin in their table.
    pub(super) first: u32,
    /// How many there are.
    pub(super) neighbours: u32,
    /// Bytes, rounded up to the least alignment of all.
    pub(super) bytes: u64,
    /// Bytes as asked for.
    pub(super) asked: u64,
    /// The offset at which it rests on what is placed.
    pub(super) rest: u64,
    /// No packing under the present choices puts it lower. At least `rest`; above it where the
    /// search has decided that it does not lie there.
    pub(super) lowest: u64,
    /// The most that lives in one of its sections.
    pub(super) live: u64,
    /// What its offset must be a multiple of.
    pub(super) align: Align,
    /// Whether something outside decided its offset; then `rest` and `lowest` are that.
    pub(super) pinned: bool,
}

impl Item {
    /// A record that says nothing.
    pub const VACANT: Self = Self {
        id: 0,
        lo: 0,
        hi: 0,
        slot: PLACED,
        old_slot: 0,
        rank: 0,
        ticks: 0,
        first: 0,
        neighbours: 0,
        bytes: 0,
        asked: 0,
        rest: 0,
        lowest: 0,
        live: 0,
        align: Align::ONE,
        pinned: false,
    };

    /// Where its neighbours stand in their table.
    pub(super) const fn range(&self) -> core::ops::Range<usize> {
        self.first as usize..self.first as usize + self.neighbours as usize
    }

    /// Whether an exchange of both makes no difference.
    pub(super) fn is_twin(&self, other: &Self) -> bool {
        self.lo == other.lo
            && self.hi == other.hi
            && self.asked == other.asked
            && self.align == other.align
            && !self.pinned
            && !other.pinned
    }

    /// The end, as the sections count it.
    pub(super) const fn top(&self) -> u64 {
        self.lowest + self.bytes
    }
}
