//! The tables lent to a packer, and their lengths.

use super::bucket::{BUCKET_ITEMS, Bucket};
use super::item::Item;
use super::section::Section;

/// Maximum number of neighbours, of 4 bytes each. A pair of lifetimes that meet counts twice. Problems with more
/// neighbours are only packed greedily.
const MAX_NEIGHBOURS: usize = 1 << 22;
/// Maximum number of undo records beyond those of a small problem, of 24 bytes each.
const MAX_PAIR_RECORDS: usize = 1 << 20;

/// Lengths of the tables for a number of lifetimes.
///
/// The tables take about 450 bytes per lifetime, and at most 40 MiB for pairs of lifetimes that meet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PackSizes {
    /// Length of `buckets`.
    pub buckets: usize,
    /// Length of `neighbours`. The table may be shorter; the search then leaves out parts that need more.
    pub neighbours: usize,
    /// Length of `undo_log`. The table may be shorter, down to one record per lifetime; runs of the search may then end
    /// early.
    pub undo_log: usize,
    /// Length of all other tables: one record per lifetime.
    pub lifetimes: usize,
}

impl PackSizes {
    /// Returns the lengths for `count` lifetimes.
    pub const fn new(count: usize) -> Self {
        let pairs = count.saturating_mul(count);
        Self {
            // Splitting a full bucket leaves two that are half full.
            buckets: count / (BUCKET_ITEMS / 2) + 2,
            neighbours: if pairs < MAX_NEIGHBOURS {
                pairs
            } else {
                MAX_NEIGHBOURS
            },
            undo_log: if pairs / 2 < MAX_PAIR_RECORDS {
                pairs / 2
            } else {
                MAX_PAIR_RECORDS
            }
            .saturating_add(count.saturating_mul(8)),
            lifetimes: count,
        }
    }
}

/// Tables lent to a [`Packer`](super::Packer), at least as long as [`PackSizes`] requires, with any contents.
#[derive(Debug)]
pub struct PackTables<'t> {
    /// The best packing so far.
    pub offsets: &'t mut [u64],
    /// The packing being tried.
    pub trial: &'t mut [u64],
    /// Maximum of live bytes during each lifetime.
    pub live: &'t mut [u64],
    /// Lifetimes by their first tick.
    pub order: &'t mut [u32],
    /// Lifetimes in the order of a greedy packing.
    pub by_key: &'t mut [u32],
    /// Keys of that order.
    pub keys: &'t mut [f64],
    /// The parts of a split problem.
    pub parts: &'t mut [Part],
    /// The placed blocks, by offset.
    pub buckets: &'t mut [Bucket],
    /// Items under search.
    pub items: &'t mut [Item],
    /// Sections of time.
    pub sections: &'t mut [Section],
    /// Items that meet each item.
    pub neighbours: &'t mut [u32],
    /// Offsets to restore.
    pub undo_log: &'t mut [UndoRecord],
    /// Placed items, in order, with the length of the undo log before each.
    pub choices: &'t mut [(u32, u32)],
    /// Items still to place.
    pub unplaced: &'t mut [u32],
}

impl PackTables<'_> {
    /// Reborrows the tables.
    pub fn lend(&mut self) -> PackTables<'_> {
        PackTables {
            offsets: self.offsets,
            trial: self.trial,
            live: self.live,
            order: self.order,
            by_key: self.by_key,
            keys: self.keys,
            parts: self.parts,
            buckets: self.buckets,
            items: self.items,
            sections: self.sections,
            neighbours: self.neighbours,
            undo_log: self.undo_log,
            choices: self.choices,
            unplaced: self.unplaced,
        }
    }
}

/// Lifetimes that meet, directly or through others. Each part is a problem of its own.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// The part's start in the order by first tick.
    pub(super) start: u32,
    /// The part's end in that order.
    pub(super) end: u32,
    /// The best height so far.
    pub(super) height: u64,
    /// A lower bound on the height of its packings.
    pub(super) lower: u64,
    /// Whether the part does not fit the tables of the search.
    pub(super) too_wide: bool,
}

impl Part {
    /// An empty record.
    pub const VACANT: Self = Self {
        start: 0,
        end: 0,
        height: 0,
        lower: 0,
        too_wide: false,
    };
}

/// An item's offsets before a change, to restore them.
#[derive(Clone, Copy, Debug)]
pub struct UndoRecord {
    pub(super) item: u32,
    pub(super) rest: u64,
    pub(super) lowest: u64,
}

impl UndoRecord {
    /// An empty record.
    pub const VACANT: Self = Self {
        item: 0,
        rest: 0,
        lowest: 0,
    };
}
