//! What a packer borrows: its tables, and how long they must be.

use super::bucket::{BUCKET_ITEMS, Bucket};
use super::item::Item;
use super::section::Section;

/// Neighbours at most, 4 bytes each: what meets what, from both sides. Problems that need more are
/// packed greedily only.
const MAX_NEIGHBOURS: usize = 1 << 22;
/// Falls at most beyond those a small problem needs, 24 bytes each.
const MAX_PAIR_RECORDS: usize = 1 << 20;

/// Lengths of the tables for some number of lifetimes.
///
/// About 450 bytes a lifetime, and what the search needs for pairs of lifetimes that meet: at most
/// 40 MiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PackSizes {
    /// For `buckets`.
    pub buckets: usize,
    /// For `neighbours`. With fewer, the search leaves out parts that need more.
    pub neighbours: usize,
    /// For `undo_log`. With fewer, down to one a lifetime, runs of the search may end early.
    pub undo_log: usize,
    /// For all other tables: one record a lifetime.
    pub lifetimes: usize,
}

impl PackSizes {
    /// What `count` lifetimes need.
    pub const fn new(count: usize) -> Self {
        let pairs = count.saturating_mul(count);
        Self {
            // A bucket that is split leaves two halves full.
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

/// Tables lent to a [`Packer`](super::Packer), at least as long as [`PackSizes`] says; what they
/// hold at first does not matter.
#[derive(Debug)]
pub struct PackTables<'t> {
    /// The best packing so far.
    pub offsets: &'t mut [u64],
    /// The packing being tried.
    pub trial: &'t mut [u64],
    /// The most that lives during each lifetime.
    pub live: &'t mut [u64],
    /// Lifetimes by their first tick.
    pub order: &'t mut [u32],
    /// Lifetimes in the order of a greedy packing.
    pub by_key: &'t mut [u32],
    /// What they are ordered by.
    pub keys: &'t mut [f64],
    /// Parts.
    pub parts: &'t mut [Part],
    /// Buckets.
    pub buckets: &'t mut [Bucket],
    /// Items under search.
    pub items: &'t mut [Item],
    /// Sections of time.
    pub sections: &'t mut [Section],
    /// Who meets whom.
    pub neighbours: &'t mut [u32],
    /// What to restore.
    pub undo_log: &'t mut [UndoRecord],
    /// Placed items, in order, with the length of the undo log before each.
    pub choices: &'t mut [(u32, u32)],
    /// Items still to place.
    pub unplaced: &'t mut [u32],
}

impl PackTables<'_> {
    /// Lends the tables on.
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

/// Lifetimes that meet, directly or through others: a problem of its own.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Where it starts in the order by first tick.
    pub(super) start: u32,
    /// Where it ends there.
    pub(super) end: u32,
    /// The best height so far.
    pub(super) height: u64,
    /// No packing of it is lower.
    pub(super) lower: u64,
    /// Whether the search cannot hold it.
    pub(super) too_wide: bool,
}

impl Part {
    /// A record that says nothing.
    pub const VACANT: Self = Self {
        start: 0,
        end: 0,
        height: 0,
        lower: 0,
        too_wide: false,
    };
}

/// An item's offsets before a change: where to fall back to.
#[derive(Clone, Copy, Debug)]
pub struct UndoRecord {
    pub(super) item: u32,
    pub(super) rest: u64,
    pub(super) lowest: u64,
}

impl UndoRecord {
    /// A record that says nothing.
    pub const VACANT: Self = Self {
        item: 0,
        rest: 0,
        lowest: 0,
    };
}
