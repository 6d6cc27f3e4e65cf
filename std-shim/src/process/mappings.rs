//! [`Mappings`]: very long blocks, each a mapping of its own, outside the arenas and their tables.
//!
//! The tables of an arena are as long as the range they describe, and freed memory of an arena
//! counts as written. For a block of gibibytes of which little is touched, both would cost more
//! than the block. So the system manages such a block: it refuses the block as it would refuse any
//! mapping, returns zeroed memory, and unmaps all of it when the block is freed.
//!
//! # Invariants
//! * MAP1 every mapping is in the table, with its length, while its block is allocated. A thread
//!   that removes a mapping from the table unmaps it; a thread that changes a mapping holds the
//!   table's lock.

use core::ptr::NonNull;

use larder_core::Locked;
use larder_core::sync::{AtomicU64, Ordering};

use crate::block_table::BlockTable;
use crate::os::Os;
use crate::thread::wait::Sleep;

/// The mappings of a process.
pub(crate) struct Mappings {
    pub(super) table: Locked<BlockTable<usize>, Sleep>,
    /// Bytes of all mappings. Relaxed: only a number.
    bytes: AtomicU64,
}

impl Mappings {
    pub(crate) const fn new() -> Self {
        Self {
            table: Locked::new(BlockTable::new()),
            bytes: AtomicU64::new(0),
        }
    }

    /// Returns the bytes of all mappings.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Allocates a block of `bytes` bytes that reads as zero. Two system calls.
    pub(crate) fn alloc(&self, os: &impl Os, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        let page = os.page_bytes();
        let length = bytes.max(1).checked_next_multiple_of(page)?;
        let start = os.map(length, align.max(page))?;
        if self.enter(start, length) {
            return Some(start);
        }
        // SAFETY: mapped just now, not used.
        unsafe { os.release(start.as_ptr(), length) };
        None
    }

    /// Frees a block. Returns `false` if none starts there.
    pub(crate) fn free(&self, os: &impl Os, block: *mut u8) -> bool {
        let Some(length) = self.take(block) else {
            return false;
        };
        // SAFETY: a mapping that is ours alone now, because it was taken out of the table (MAP1).
        unsafe { os.release(block, length) };
        true
    }

    /// Returns the length of the block that starts there.
    pub(crate) fn bytes_at(&self, block: *mut u8) -> Option<usize> {
        if self.bytes() == 0 {
            return None;
        }
        self.table.with(|table| table.get(block.addr()))
    }

    /// Resizes a block and keeps its contents, at the same address or, if an alignment is given,
    /// at another multiple of that alignment. Returns `None`, and does nothing, if no block starts
    /// there or the system refuses.
    ///
    /// # Safety
    /// The block is the caller's, and not used during the call.
    pub(crate) unsafe fn resize(
        &self,
        os: &impl Os,
        block: *mut u8,
        bytes: usize,
        align: Option<usize>,
    ) -> Option<NonNull<u8>> {
        let length = bytes.max(1).checked_next_multiple_of(os.page_bytes())?;
        self.table.with(|table| {
            let before = table.get(block.addr())?;
            // SAFETY: a mapping that is the caller's (MAP1).
            let resized = unsafe { os.remap(block, before, length, align) }?;
            table.remove(block.addr());
            // The table has room: an entry was just removed.
            table.insert(resized.addr().get(), length).ok();
            self.bytes.fetch_add(length as u64, Ordering::Relaxed);
            self.bytes.fetch_sub(before as u64, Ordering::Relaxed);
            Some(resized)
        })
    }

    /// Enters a mapping. Returns whether there was memory for the entry.
    fn enter(&self, start: NonNull<u8>, length: usize) -> bool {
        let insert = |table: &mut BlockTable<usize>| table.insert(start.addr().get(), length);
        let entered = self.table.with(insert).is_ok();
        if entered {
            self.bytes.fetch_add(length as u64, Ordering::Relaxed);
        }
        entered
    }

    /// Takes a mapping out of the table. Returns its length.
    fn take(&self, block: *mut u8) -> Option<usize> {
        if self.bytes() == 0 {
            return None;
        }
        let length = self.table.with(|table| table.remove(block.addr()))?;
        self.bytes.fetch_sub(length as u64, Ordering::Relaxed);
        Some(length)
    }
}
