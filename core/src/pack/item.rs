//! One lifetime under search.

use crate::units::Align;

/// The slot of a placed item.
pub(super) const PLACED: u32 = u32::MAX;

/// A lifetime of the searched part, with the offsets that are still possible.
#[derive(Clone, Copy, Debug)]
pub struct Item {
    /// The lifetime.
    pub(super) id: u32,
    /// First section.
    pub(super) lo: u32,
    /// First section after the item.
    pub(super) hi: u32,
    /// The item's place among the unplaced items, or [`PLACED`].
    pub(super) slot: u32,
    /// Its slot before it was placed.
    pub(super) old_slot: u32,
    /// Rank among equal items; the lowest is decided first.
    pub(super) rank: u32,
    /// Length of the lifetime in ticks.
    pub(super) ticks: u32,
    /// The place of its first neighbour in the table of neighbours.
    pub(super) first: u32,
    /// Number of its neighbours.
    pub(super) neighbours: u32,
    /// Bytes, rounded up to the smallest alignment of all items.
    pub(super) bytes: u64,
    /// Bytes as requested.
    pub(super) asked: u64,
    /// The offset at which it rests on placed items.
    pub(super) rest: u64,
    /// The lowest offset of the item in any packing under the current choices. It is at least `rest`, and more if the
    /// search has decided that the item does not lie there.
    pub(super) lowest: u64,
    /// Maximum of live bytes in any of its sections.
    pub(super) live: u64,
    /// The offset must be a multiple of this.
    pub(super) align: Align,
    /// Whether the offset is given; `rest` and `lowest` are then that offset.
    pub(super) pinned: bool,
}

impl Item {
    /// An empty record.
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

    /// Returns the places of the item's neighbours in the table of neighbours.
    pub(super) const fn range(&self) -> core::ops::Range<usize> {
        self.first as usize..self.first as usize + self.neighbours as usize
    }

    /// Returns whether exchanging the two items makes no difference.
    pub(super) fn is_twin(&self, other: &Self) -> bool {
        self.lo == other.lo
            && self.hi == other.hi
            && self.asked == other.asked
            && self.align == other.align
            && !self.pinned
            && !other.pinned
    }

    /// Returns the item's end, with its size rounded up.
    pub(super) const fn top(&self) -> u64 {
        self.lowest + self.bytes
    }
}
