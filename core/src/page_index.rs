//! [`PageIndex`]: finds blocks by address alone, for front ends whose frees pass only a pointer.
//!
//! The allocator itself does not use it. A result need not be true: the allocator checks it against its own records
//! ([`RegionPool::block_from_raw`](crate::RegionPool::block_from_raw)). So an entry is written when a block is
//! allocated and never cleared, and the initial entries may have any value.

use crate::block::{Block, ChunkHandle, RawBlock};
use crate::sync::{AtomicU32, Ordering};
use crate::units::{Addr, Granule};

/// The handle of the block that starts at each page of a range of addresses: four bytes a page.
///
/// Pages are the granules of the allocator, or smaller, so at most one block starts at each. Addresses outside the
/// range are not found. All accesses are relaxed: a thread that looks a block up holds it, and got it from the thread
/// that entered it.
///
/// ```
/// use larder_core::{Addr, AddrRange, BestFit, Chunk, RegionConfig, RegionPool, Granule, PageIndex, Request};
/// use larder_core::sync::AtomicU32;
/// let mut table = [Chunk::VACANT; 64];
/// let entries = [const { AtomicU32::new(0) }; 16];
/// let mut pool = RegionPool::new(RegionConfig::fixed(), &mut table)?;
/// pool.add_region(AddrRange::new(Addr::new(0x10000), 0x1000).unwrap())?;
/// let index = PageIndex::new(Addr::new(0x10000), Granule::DEFAULT, &entries);
/// let block = pool.alloc(&Request::new(1000))?.block;
/// index.enter(&block);
/// let addr = block.into_raw().addr; // all that is left of it
/// let found = index.find(addr).unwrap();
/// pool.free(pool.block_from_raw(found)?)?;
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct PageIndex<'t> {
    base: u64,
    page_shift: u32,
    entries: &'t [AtomicU32],
}

impl<'t> PageIndex<'t> {
    /// Creates an index of pages of `page` bytes from `base`, one for each entry lent. No entry is read or written
    /// until a block needs it, so untouched pages of memory stay untouched.
    pub const fn new(base: Addr, page: Granule, entries: &'t [AtomicU32]) -> Self {
        Self {
            base: base.get(),
            page_shift: page.align().log2(),
            entries,
        }
    }

    /// Enters a block under its first address. O(1).
    #[inline]
    pub fn enter(&self, block: &Block) {
        if let Some(entry) = self.entry(block.addr()) {
            entry.store(block.handle().get(), Ordering::Relaxed);
        }
    }

    /// Returns the block entered last under an address, or `None` if none ever was. O(1), one access.
    #[inline]
    pub fn find(&self, addr: Addr) -> Option<RawBlock> {
        let handle = ChunkHandle::new(self.entry(addr)?.load(Ordering::Relaxed))?;
        Some(RawBlock { addr, handle })
    }

    fn entry(&self, addr: Addr) -> Option<&AtomicU32> {
        let page = addr.get().checked_sub(self.base)? >> self.page_shift;
        self.entries.get(usize::try_from(page).ok()?)
    }
}
