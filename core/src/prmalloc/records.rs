//! The records of a plan: bins, blocks and virtual blocks, and the lists that link them.
//!
//! The same records are used while a plan is made and while it serves. The comment of a field that is used only in one
//! of these phases says so.

use super::life::OpenLife;
use crate::units::Align;

/// The index of a record in its table, or none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RecordLink(u32);

impl RecordLink {
    pub(super) const NIL: Self = Self(0);

    /// Returns the link to the record at `index`, which is below [`MAX_RECORDS`].
    pub(super) const fn to(index: usize) -> Self {
        Self(index as u32 + 1)
    }

    pub(super) const fn index(self) -> Option<usize> {
        match self.0 {
            0 => None,
            place => Some(place as usize - 1),
        }
    }
}

/// Maximum number of records that links can name.
pub(super) const MAX_RECORDS: usize = u32::MAX as usize - 1;

/// A record in a list.
pub(super) trait Listed {
    fn next(&mut self) -> &mut RecordLink;
}

/// A list through records of one table.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordList {
    pub(super) first: RecordLink,
    last: RecordLink,
}

impl RecordList {
    pub(super) const EMPTY: Self = Self {
        first: RecordLink::NIL,
        last: RecordLink::NIL,
    };

    /// Appends the record at `index`.
    pub(super) fn append<R: Listed>(&mut self, records: &mut [R], index: usize) {
        let link = RecordLink::to(index);
        *records[index].next() = RecordLink::NIL;
        match self.last.index() {
            Some(last) => *records[last].next() = link,
            None => self.first = link,
        }
        self.last = link;
    }

    /// Pushes the record at `index` to the front. From then on the list is a stack, and no record is appended to it.
    pub(super) fn push<R: Listed>(&mut self, records: &mut [R], index: usize) {
        *records[index].next() = self.first;
        self.first = RecordLink::to(index);
    }

    /// Removes the first record.
    pub(super) fn pop<R: Listed>(&mut self, records: &mut [R]) -> Option<usize> {
        let index = self.first.index()?;
        self.first = *records[index].next();
        Some(index)
    }

    /// Reverses the list. The last appended record is then on top of the stack.
    pub(super) fn reverse<R: Listed>(&mut self, records: &mut [R]) {
        let mut rest = core::mem::replace(self, Self::EMPTY);
        while let Some(index) = rest.pop(records) {
            self.push(records, index);
        }
    }
}

/// The blocks of one size class.
#[derive(Debug)]
pub(super) struct Bin {
    pub(super) class: u64,
    /// The largest requested alignment.
    pub(super) align: Align,
    /// Number of the bin's own blocks.
    pub(super) block_count: u32,
    /// Virtual blocks.
    pub(super) virtual_count: u32,
    /// The bin's blocks, oldest first; in a plan that serves, a stack of the free ones.
    pub(super) blocks: RecordList,
    /// The bin's virtual blocks, oldest first; in a plan that serves, a stack of those that are not lent.
    pub(super) virtuals: RecordList,
    /// In a plan that serves, the address at which the bin's blocks begin.
    pub(super) base: u64,
    /// In a plan that serves, the place of the bin's first block.
    pub(super) first_place: usize,
}

impl Bin {
    pub(super) const fn new(class: u64) -> Self {
        Self {
            class,
            align: Align::ONE,
            block_count: 0,
            virtual_count: 0,
            blocks: RecordList::EMPTY,
            virtuals: RecordList::EMPTY,
            base: 0,
            first_place: 0,
        }
    }
}

/// A block of a bin.
#[derive(Debug)]
pub(super) struct PlanBlock {
    /// The class of the block's bin.
    pub(super) class: u64,
    next: RecordLink,
    /// While the plan is made, the first of the block's stats, which are in order of beginnings and do not overlap.
    pub(super) first_member: RecordLink,
    /// The member after which the last search ended.
    pub(super) cursor: RecordLink,
    /// The tick at which the last stat of earlier rounds ended.
    pub(super) busy_until: u64,
    /// In a plan that serves, the index of the block's bin.
    pub(super) bin: usize,
    /// The block's place: the number of blocks before it, in its bin and in smaller ones.
    pub(super) place: usize,
    /// The virtual block through which this block was lent, if it was.
    pub(super) lent: RecordLink,
    /// The life that the block serves now.
    pub(super) life: Option<OpenLife>,
}

impl PlanBlock {
    pub(super) const fn new(class: u64) -> Self {
        Self {
            class,
            next: RecordLink::NIL,
            first_member: RecordLink::NIL,
            cursor: RecordLink::NIL,
            busy_until: 0,
            bin: 0,
            place: 0,
            lent: RecordLink::NIL,
            life: None,
        }
    }
}

impl Listed for PlanBlock {
    fn next(&mut self) -> &mut RecordLink {
        &mut self.next
    }
}

/// A virtual block: a bin's right to use one block of a larger bin.
#[derive(Debug)]
pub(super) struct VirtualBlock {
    /// The class of the borrowing bin.
    pub(super) class: u64,
    /// The block for which it was planned. Any other block of the same bin serves as well.
    pub(super) block: u32,
    pub(super) next: RecordLink,
}

impl Listed for VirtualBlock {
    fn next(&mut self) -> &mut RecordLink {
        &mut self.next
    }
}
