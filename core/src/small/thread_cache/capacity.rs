//! The capacities of a cache's bins, and their sum (CACHE4).

use super::{CacheBin, ThreadCache};
use crate::small::class::{CLASSES, SizeClass};
use crate::small::slot::{Links, Slot};

/// Number of calls that want a longer bin, in a cache that has all the bytes that it may have, for each time that
/// another bin shrinks; and the number of bins visited to find that bin.
const TURNS: u32 = 8;
const VISITED: usize = 8;

impl ThreadCache {
    /// Returns the bytes that all bins together may hold.
    #[cfg(test)]
    pub(in crate::small) const fn capacity_bytes(&self) -> usize {
        self.capacity_bytes
    }

    /// Fills the empty bin of a class with `head`, a list of `count` blocks, and sets its capacity, at least `count`.
    pub(in crate::small) fn put(
        &mut self,
        class: SizeClass,
        capacity: usize,
        head: *mut Slot,
        count: usize,
    ) {
        self.resize(class, |bin| bin.put(capacity, head, count));
    }

    /// Sets the capacity of a class's bin to `capacity` blocks, at least as many as the bin holds.
    pub(in crate::small) fn set_capacity(&mut self, class: SizeClass, capacity: usize) {
        self.resize(class, |bin| bin.set_capacity(capacity));
    }

    /// Changes the capacity of a bin by `change` (CACHE4).
    fn resize(&mut self, class: SizeClass, change: impl FnOnce(&mut CacheBin)) {
        let bin = self.of(class);
        let before = bin.capacity();
        change(bin);
        let after = bin.capacity();
        self.capacity_bytes += after * class.block_bytes();
        self.capacity_bytes -= before * class.block_bytes();
    }

    /// Returns the capacity that a class's bin may have if all bins together may hold `max_bytes`.
    pub(in crate::small) fn room_for(&mut self, class: SizeClass, max_bytes: usize) -> usize {
        max_bytes.saturating_sub(self.other_bytes(class)) / class.block_bytes()
    }

    /// Returns the bytes that all bins except that of a class may hold.
    pub(in crate::small) fn other_bytes(&mut self, class: SizeClass) -> usize {
        self.capacity_bytes - self.of(class).capacity() * class.block_bytes()
    }

    /// Returns whether a bin should shrink for the benefit of another, if all bins together may hold `max_bytes`: if
    /// they may hold more now, and otherwise in one call of [`TURNS`].
    pub(in crate::small) const fn must_shrink(&mut self, max_bytes: usize) -> bool {
        self.turn = (self.turn + 1) % TURNS;
        self.turn == 0 || self.capacity_bytes > max_bytes
    }

    /// Takes a quarter of its capacity, at least one block, from the next bin that has any, except that of `kept`.
    /// Visits at most [`VISITED`] bins. Returns the blocks that no longer fit, as a list. O(blocks in the list).
    ///
    /// # Safety
    /// The lists satisfy SLOT1 and have these links, and the caller owns the cache.
    pub(in crate::small) unsafe fn shrink_next(
        &mut self,
        kept: SizeClass,
        links: Links,
    ) -> *mut Slot {
        for _ in 0..VISITED {
            self.hand = (self.hand + 1) % CLASSES;
            let class = SizeClass::from_index(self.hand).unwrap_or(SizeClass::NONE);
            let bin = self.of(class);
            let capacity = bin.capacity();
            if class == kept || capacity == 0 {
                continue;
            }
            let less = capacity - capacity.div_ceil(4);
            let count = bin.len().saturating_sub(less);
            // SAFETY: the caller promises the lists and the links.
            let list = unsafe { bin.take_some(count, links) };
            self.set_capacity(class, less);
            return list;
        }
        core::ptr::null_mut()
    }
}
