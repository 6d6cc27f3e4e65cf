//! The table of a decorator that stands between its callers and the blocks below: one row a block.
//!
//! A block that it gives carries its row's number and the table's place in memory, as those of the
//! core carry their chunk's, so a free looks nothing up and finds out about foreign blocks.
//!
//! # Invariants
//! * W1 a row below `fresh` is vacant (on the list, no entry), reserved (neither), or used (an entry).
//!   Rows from `fresh` up were never touched; they may hold what a former owner left.
//! * W2 no other decorator has the same `owner` at the same time: tables lie apart, and a row is no
//!   smaller than the unit of places.

use crate::block::{AllocatorId, Block, ChunkHandle};
use crate::units::Addr;

/// One row of a decorator's table, lent as `[const { Row::VACANT }; N]`.
#[derive(Debug)]
pub struct Row<E> {
    entry: Option<E>,
    /// The next vacant row's number, 0 for none.
    next: u32,
}

impl<E> Row<E> {
    /// A row without a block.
    pub const VACANT: Self = Self {
        entry: None,
        next: 0,
    };
}

/// What a row keeps: at least the block below.
pub(super) trait Entry {
    /// First address of the block that the caller holds.
    fn addr(&self) -> Addr;
}

/// The rows, and which are vacant.
pub(super) struct Rows<'t, E> {
    rows: &'t mut [Row<E>],
    /// Rows that were ever used.
    fresh: u32,
    /// The first vacant row below `fresh`, 0 for none.
    vacant: u32,
    owner: u32,
}

impl<'t, E: Entry> Rows<'t, E> {
    pub(super) fn new(rows: &'t mut [Row<E>]) -> Self {
        const { assert!(size_of::<Row<E>>() >= AllocatorId::TABLE_UNIT_BYTES) };
        let AllocatorId(owner) = AllocatorId::of_table(rows.as_ptr().addr());
        Self {
            rows,
            fresh: 0,
            vacant: 0,
            owner,
        }
    }

    /// How many blocks can be out.
    pub(super) fn capacity(&self) -> u32 {
        // The last number is left out, so that a row's number plus one is one as well.
        u32::try_from(self.rows.len()).unwrap_or(u32::MAX - 1)
    }

    /// Rows that were ever used: numbers from 1 to this.
    pub(super) const fn used(&self) -> u32 {
        self.fresh
    }

    /// Takes a vacant row aside.
    pub(super) fn reserve(&mut self) -> Option<ChunkHandle> {
        let number = match self.vacant {
            0 if self.fresh == self.capacity() => return None,
            0 => self.fresh + 1,
            vacant => vacant,
        };
        let handle = ChunkHandle::new(number)?;
        let row = self.rows.get_mut(number as usize - 1)?;
        if self.vacant == 0 {
            self.fresh = number;
        } else {
            self.vacant = row.next;
        }
        *row = Row::VACANT;
        Some(handle)
    }

    /// A reserved row is used now.
    pub(super) fn put(&mut self, handle: ChunkHandle, entry: E) {
        if let Some(row) = self.rows.get_mut(handle.get() as usize - 1) {
            row.entry = Some(entry);
        }
    }

    /// A reserved row is vacant again.
    pub(super) fn vacate(&mut self, handle: ChunkHandle) {
        let vacant = self.vacant;
        if let Some(row) = self.rows.get_mut(handle.get() as usize - 1) {
            *row = Row {
                entry: None,
                next: vacant,
            };
            self.vacant = handle.get();
        }
    }

    /// The entry of a row by its number.
    pub(super) fn at_mut(&mut self, number: u32) -> Option<&mut E> {
        if number > self.fresh {
            return None;
        }
        self.rows
            .get_mut(number.checked_sub(1)? as usize)?
            .entry
            .as_mut()
    }

    /// The entry behind a block, if the block is one of this table's.
    pub(super) fn find(&mut self, block: &Block) -> Option<&mut E> {
        if block.owner() != self.owner {
            return None;
        }
        let entry = self.at_mut(block.handle().get())?;
        (entry.addr() == block.addr()).then_some(entry)
    }

    /// Takes the entry behind a block out; its row stays reserved.
    pub(super) fn take(&mut self, block: &Block) -> Option<E> {
        self.find(block)?;
        self.rows
            .get_mut(block.handle().get() as usize - 1)?
            .entry
            .take()
    }

    /// The block that stands for a row.
    pub(super) const fn block(&self, handle: ChunkHandle, addr: Addr, bytes: u64) -> Block {
        Block::new(addr, bytes, handle, self.owner)
    }
}
