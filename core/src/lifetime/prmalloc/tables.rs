//! The records a planner keeps, in tables that the caller lends.

use super::AllocStat;
use crate::units::Align;

/// The place of a record in its table; 0 is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RecordLink(u32);

impl RecordLink {
    pub(super) const NIL: Self = Self(0);

    /// The link to the record at `index`. Tables are cut to what a link can name.
    pub(super) const fn to(index: usize) -> Self {
        Self(index as u32 + 1)
    }

    /// The link as a number, 0 for none.
    pub(super) const fn place(self) -> u32 {
        self.0
    }

    pub(super) const fn from_place(place: u32) -> Self {
        Self(place)
    }

    pub(super) const fn index(self) -> Option<usize> {
        match self.0 {
            0 => None,
            place => Some(place as usize - 1),
        }
    }
}

/// Records that links can name.
pub(super) const MAX_RECORDS: usize = u32::MAX as usize - 1;

/// A table, cut to what links can name.
pub(super) fn nameable<T>(table: &mut [T]) -> &mut [T] {
    let records = table.len().min(MAX_RECORDS);
    &mut table[..records]
}

/// The record of a bin.
#[derive(Clone, Copy, Debug)]
pub struct BinRecord {
    pub(super) class: u64,
    pub(super) align: Align,
    /// Its blocks, oldest first.
    pub(super) first_block: RecordLink,
    pub(super) last_block: RecordLink,
    pub(super) blocks: u32,
    /// Its virtual blocks, oldest first.
    pub(super) first_virtual: RecordLink,
    pub(super) last_virtual: RecordLink,
    pub(super) virtuals: u32,
}

impl BinRecord {
    /// What stands in a fresh table.
    pub const VACANT: Self = Self {
        class: 0,
        align: Align::ONE,
        first_block: RecordLink::NIL,
        last_block: RecordLink::NIL,
        blocks: 0,
        first_virtual: RecordLink::NIL,
        last_virtual: RecordLink::NIL,
        virtuals: 0,
    };
}

/// The record of a block.
#[derive(Clone, Copy, Debug)]
pub struct BlockRecord {
    /// Its bin's class.
    pub(super) class: u64,
    /// The next block of the bin.
    pub(super) next: RecordLink,
    /// Its stats by beginning; no two overlap.
    pub(super) first_member: RecordLink,
    /// The member behind which the last search ended.
    pub(super) cursor: RecordLink,
    /// When the last stat of former rounds ended.
    pub(super) busy_until: u64,
}

impl BlockRecord {
    /// What stands in a fresh table.
    pub const VACANT: Self = Self {
        class: 0,
        next: RecordLink::NIL,
        first_member: RecordLink::NIL,
        cursor: RecordLink::NIL,
        busy_until: 0,
    };
}

/// The record of a virtual block: a bin's leave to use a block of a larger one.
#[derive(Clone, Copy, Debug)]
pub struct VirtualRecord {
    /// The class of the bin that borrows.
    pub(super) class: u64,
    /// The block, in the table of blocks.
    pub(super) block: u32,
    pub(super) next: RecordLink,
}

impl VirtualRecord {
    /// What stands in a fresh table.
    pub const VACANT: Self = Self {
        class: 0,
        block: 0,
        next: RecordLink::NIL,
    };
}

/// The tables of one policy.
#[derive(Debug)]
pub struct PolicyTables<'t> {
    /// One a size class in use.
    pub bins: &'t mut [BinRecord],
    /// One a planned block.
    pub blocks: &'t mut [BlockRecord],
    /// One a virtual block.
    pub virtuals: &'t mut [VirtualRecord],
    /// One a stat: what follows it in its block.
    pub members: &'t mut [u32],
}

/// The tables of [`Plans`](super::Plans).
#[derive(Debug)]
pub struct PlanTables<'t> {
    /// One a block freed in a round.
    pub stats: &'t mut [AllocStat],
    /// The order in which the fit takes the stats, so one for each.
    pub order: &'t mut [u32],
    /// The tables of each [`Interval`](super::Interval), in their order.
    pub policies: [PolicyTables<'t>; 3],
    /// The tables for sizes up to 32 KiB, if they are planned too.
    pub small: Option<PolicyTables<'t>>,
}
