//! The table of a decorator. It has one row per block and leads from the caller's block to the block of the allocator
//! below.
//!
//! A caller's block carries its row's number and the table's number, just as the core's blocks carry their chunk's
//! number. So a free needs no look-up and detects foreign blocks.
//!
//! # Invariants
//! * ROW1 a row of the slab that is not vacant is reserved (without an entry) or used (with one).

use crate::block::{Block, ChunkHandle};
use crate::error::ConfigError;
use crate::table::fixed_vec::FixedVec;
use crate::table::slab::{Record, SlabOver};
use crate::units::Addr;

/// One row of a decorator's table.
#[derive(Debug)]
pub(super) struct BlockRow<E> {
    entry: Option<E>,
    /// Number of the next vacant row, 0 for none.
    next: u32,
}

/// The entry of a row: at least the block below.
pub(super) trait RowEntry {
    /// Returns the first address of the block that the caller holds.
    fn addr(&self) -> Addr;
}

impl<E> Record for BlockRow<E> {
    type Link = u32;
    const KEPT_BACK: u32 = 0;
    const VACANT: Self = Self {
        entry: None,
        next: 0,
    };

    fn next_vacant(&self) -> u32 {
        self.next
    }

    fn set_next_vacant(&mut self, link: u32) {
        self.next = link;
    }
}

/// The rows.
pub(super) struct Rows<E>(SlabOver<FixedVec<BlockRow<E>>>);

impl<E: RowEntry> Rows<E> {
    /// Creates a table of `rows` rows.
    pub(super) fn new(rows: usize) -> Result<Self, ConfigError> {
        Ok(Self(SlabOver::with_records(rows)?))
    }

    /// Returns the maximum number of blocks in use.
    pub(super) fn capacity(&self) -> u32 {
        self.0.capacity()
    }

    /// Returns the number of rows that were ever used. Rows are numbered from 1.
    pub(super) const fn used(&self) -> u32 {
        self.0.used()
    }

    /// Reserves a vacant row.
    pub(super) fn reserve(&mut self) -> Option<ChunkHandle> {
        self.0.insert(BlockRow::VACANT).and_then(ChunkHandle::new)
    }

    /// Puts an entry into a reserved row.
    pub(super) fn put(&mut self, handle: ChunkHandle, entry: E) {
        if let Some(row) = self.0.get_mut(handle.get()) {
            row.entry = Some(entry);
        }
    }

    /// Vacates a reserved row.
    pub(super) fn vacate(&mut self, handle: ChunkHandle) {
        self.0.remove(handle.get());
    }

    /// Returns the entry of a row by its number.
    pub(super) fn at_mut(&mut self, number: u32) -> Option<&mut E> {
        if !self.0.knows(number) {
            return None;
        }
        self.0.get_mut(number)?.entry.as_mut()
    }

    /// Returns the entry of a block, if the block is in this table.
    pub(super) fn find(&mut self, block: &Block) -> Option<&mut E> {
        if block.owner() != self.0.owner() {
            return None;
        }
        let entry = self.at_mut(block.handle().get())?;
        (entry.addr() == block.addr()).then_some(entry)
    }

    /// Takes the entry of a block; its row stays reserved.
    pub(super) fn take(&mut self, block: &Block) -> Option<E> {
        self.find(block)?;
        self.0.get_mut(block.handle().get())?.entry.take()
    }

    /// Returns the block of a row.
    pub(super) const fn block(&self, handle: ChunkHandle, addr: Addr, bytes: u64) -> Block {
        Block::new(addr, bytes, handle, self.0.owner())
    }
}
