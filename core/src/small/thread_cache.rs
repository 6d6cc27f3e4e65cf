//! [`ThreadCache`]: a bin of free blocks for each size class, owned by one thread (or by the holder of the heap's
//! lock), with as few instructions as possible between a request and its block.
//!
//! # Invariants
//! * CACHE1 a bin is all zero, or `room + length = capacity`.
//! * CACHE2 a bin's list is whole between any two instructions of its owner, so the child of a fork can use it once its
//!   blocks have been counted. Until then the count may be off by one.
//! * CACHE3 only the holder of `long` touches the bins of the long classes and the large blocks: the owner for one call,
//!   or a thread that has revoked `long` and holds the heap's lock. So the blocks that a sleeping thread caches there,
//!   which are most of its cached bytes, can be taken from that thread.
//! * CACHE4 `capacity_bytes` is the sum over all bins of the capacity in bytes. Only the set changes capacities.
//!
//! A fresh bin is all zero: it has no block and no room. So its first allocation and its first free take the slow path,
//! and the fast paths need no test for a thread's first allocation.
//!
//! The capacity follows the use: it doubles up to the bound of the set's policy, or until all bins together have the
//! bytes that a thread's cache may have; from then on a bin that is empty or full takes capacity from other bins, in
//! turn. If a longer list was taken as a whole, the capacity is large enough for that list, and the cache shrinks again
//! with the next such calls.

mod capacity;

use super::class::{CLASSES, SPACING, SizeClass};
use super::large_cache::{EntryWords, LARGE_UNIT, LargeCache, MAX_LARGE_BYTES, sum_units};
use super::slot::{Links, Slot};
use crate::sync::{BiasedLock, ListHead};

/// A thread's cached free blocks of one size class.
#[derive(Debug)]
#[repr(C)]
pub struct CacheBin {
    head: ListHead<Slot>,
    room: i32,
    capacity: i32,
}

impl CacheBin {
    /// No blocks and no room.
    #[allow(
        clippy::declare_interior_mutable_const,
        reason = "a value to begin with, which nobody borrows"
    )]
    pub const EMPTY: Self = Self {
        head: ListHead::new(core::ptr::null_mut()),
        room: 0,
        capacity: 0,
    };

    /// Pops the first block of a list with plain links. Returns null, and writes nothing, if the list is empty.
    ///
    /// # Safety
    /// The bin is valid, and its blocks satisfy SLOT1. The bin belongs to the caller alone, or is always empty.
    #[inline(always)]
    pub unsafe fn pop(bin: *mut Self) -> *mut u8 {
        // SAFETY: the caller promises the conditions of `pop_linked`, and that the links are plain.
        unsafe { Self::pop_linked(bin, Links::PLAIN) }
    }

    /// Pops the first block of the list. Returns null, and writes nothing, if the list is empty.
    ///
    /// # Safety
    /// The conditions of [`pop`](Self::pop), and the bin's blocks have these links.
    #[inline(always)]
    pub unsafe fn pop_linked(bin: *mut Self, links: Links) -> *mut u8 {
        // SAFETY: the bin is valid. A shared one is always empty, so a bin with a block belongs to the caller alone:
        // its slots are in a list of the caller (SLOT1), and no other thread reads the words written.
        unsafe {
            let slot = (*bin).head.get();
            if !slot.is_null() {
                (*bin).head.set(links.next(slot));
                (*bin).room += 1;
            }
            slot.cast()
        }
    }

    /// Returns the block that was pushed last, or null.
    ///
    /// # Safety
    /// The bin is valid, and belongs to the caller alone or is always empty.
    #[inline(always)]
    pub unsafe fn newest(bin: *mut Self) -> *mut u8 {
        // SAFETY: the bin is valid, and a shared one is never written.
        unsafe { (*bin).head.get() }.cast()
    }

    /// Pushes a block, with plain links. Returns `false`, and writes nothing, if there is no room.
    ///
    /// # Safety
    /// The bin is valid, its blocks satisfy SLOT1, and it belongs to the caller alone or is always empty. `block` is a
    /// block of the bin's class, which the caller no longer uses.
    #[inline(always)]
    pub unsafe fn push(bin: *mut Self, block: *mut u8) -> bool {
        // SAFETY: the caller promises the conditions of `push_linked`, and that the links are plain.
        unsafe { Self::push_linked(bin, block, Links::PLAIN) }
    }

    /// Pushes a block. Returns `false`, and writes nothing, if there is no room.
    ///
    /// # Safety
    /// The conditions of [`push`](Self::push), and the bin's blocks have these links.
    #[inline(always)]
    pub unsafe fn push_linked(bin: *mut Self, block: *mut u8, links: Links) -> bool {
        let slot = block.cast::<Slot>();
        // SAFETY: the bin is valid. A shared one has no room, so a bin with room belongs to the caller alone. The block
        // is free, as its owner no longer uses it, and as large and aligned as its class says: at least a pointer.
        unsafe {
            if (*bin).room <= 0 {
                return false;
            }
            links.set_next(slot, (*bin).head.get());
            (*bin).head.set(slot);
            (*bin).room -= 1;
        }
        true
    }

    /// Returns whether the bin is empty.
    pub fn is_empty(&self) -> bool {
        self.head.get().is_null()
    }

    /// Returns the number of blocks in the bin.
    pub const fn len(&self) -> usize {
        (self.capacity - self.room) as usize
    }

    /// Takes all blocks. Returns the first of the list, or null.
    pub(super) fn take(&mut self) -> *mut Slot {
        let first = self.head.get();
        self.head.set(core::ptr::null_mut());
        self.room = self.capacity;
        first
    }

    /// Takes the first `count` blocks, at most all. Returns the first of the list, or null. O(`count`).
    ///
    /// # Safety
    /// The bin's blocks satisfy SLOT1 and have these links.
    unsafe fn take_some(&mut self, count: usize, links: Links) -> *mut Slot {
        let (list, count) = (self.head.get(), count.min(self.len()));
        if count == 0 {
            return core::ptr::null_mut();
        }
        // SAFETY: the list is the bin's (SLOT1), and at least that long.
        self.head.set(unsafe { links.cut(list, count) });
        self.room += count as i32;
        list
    }

    /// Fills an empty bin with `head`, a list of `count` blocks, and sets its capacity, at least `count`.
    fn put(&mut self, capacity: usize, head: *mut Slot, count: usize) {
        debug_assert!(count <= capacity);
        self.head.set(head);
        self.capacity = capacity as i32;
        self.room = self.capacity - count as i32;
    }

    /// Returns the maximum number of blocks that the bin may hold now.
    pub(super) const fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// Sets the capacity to `capacity` blocks, at least as many as the bin holds.
    const fn set_capacity(&mut self, capacity: usize) {
        self.room += capacity as i32 - self.capacity;
        self.capacity = capacity as i32;
    }
}

/// A thread's bins, one for each class, and its large blocks.
#[derive(Debug)]
#[repr(C)]
pub struct ThreadCache {
    bins: [CacheBin; CLASSES],
    /// Guards the bins of the long classes, and the large blocks (CACHE3).
    long: BiasedLock,
    /// The bytes that all bins together may hold (CACHE4).
    capacity_bytes: usize,
    /// The class that [`shrink_next`](Self::shrink_next) visited last.
    hand: usize,
    /// Calls of [`must_shrink`](Self::must_shrink) since a bin last shrank.
    turn: u32,
    large: LargeCache,
}

impl ThreadCache {
    /// Creates a cache whose bins are all zero.
    #[cfg(not(larder_loom))]
    pub const fn new() -> Self {
        Self {
            bins: [CacheBin::EMPTY; CLASSES],
            long: BiasedLock::new(),
            capacity_bytes: 0,
            hand: 0,
            turn: 0,
            large: LargeCache::new(),
        }
    }

    /// Creates a cache whose bins are all zero.
    #[cfg(larder_loom)]
    pub fn new() -> Self {
        Self {
            bins: [CacheBin::EMPTY; CLASSES],
            long: BiasedLock::new(),
            capacity_bytes: 0,
            hand: 0,
            turn: 0,
            large: LargeCache::new(),
        }
    }

    /// Creates a shared, always empty cache for threads without a heap.
    #[cfg(not(larder_loom))]
    pub const fn always_empty() -> Self {
        Self {
            bins: [CacheBin::EMPTY; CLASSES],
            long: BiasedLock::always_revoked(),
            capacity_bytes: 0,
            hand: 0,
            turn: 0,
            large: LargeCache::new(),
        }
    }

    /// Returns the bin of a class.
    #[inline(always)]
    pub const fn of(&mut self, class: SizeClass) -> &mut CacheBin {
        debug_assert!(class.index() < CLASSES);
        // A class's index is below the length, which the compiler does not know.
        &mut self.bins[class.index()]
    }

    /// Returns a pointer to the bin of a class, for callers that may not create a reference because an always empty
    /// cache may be shared.
    #[inline(always)]
    pub const fn bin_of(cache: *mut Self, class: SizeClass) -> *mut CacheBin {
        debug_assert!(class.index() < CLASSES);
        cache.cast::<CacheBin>().wrapping_add(class.index())
    }

    /// Returns a pointer to the bin for a common layout of this size; see [`SizeClass::is_common`].
    #[inline(always)]
    pub const fn bin_of_common(cache: *mut Self, size: usize) -> *mut CacheBin {
        if size_of::<CacheBin>() != SPACING {
            return Self::bin_of(cache, SizeClass::of_common(size));
        }
        // A bin is as long as the distance between sizes, so no shift is needed.
        let offset = (size + SPACING - 1) & !(SPACING - 1);
        cache.cast::<u8>().wrapping_add(offset + SPACING).cast()
    }

    /// Pops a block of the class. Returns null, and writes nothing, if there is none.
    ///
    /// # Safety
    /// The cache is valid, and its blocks satisfy SLOT1. The cache belongs to the caller alone, except for bins of long
    /// classes that were taken from it, or it is always empty.
    #[inline(always)]
    pub unsafe fn pop(cache: *mut Self, class: SizeClass) -> *mut u8 {
        let pop = |bin| {
            // SAFETY: the bin is in a valid cache, and `with_bin` runs this only while the bin belongs to the caller or
            // is always empty.
            unsafe { CacheBin::pop(bin) }
        };
        // SAFETY: the cache is valid, and belongs to the caller or is always empty.
        unsafe { Self::with_bin(cache, class, pop) }.unwrap_or(core::ptr::null_mut())
    }

    /// Pushes a block of the class. Returns `false`, and writes nothing, if there is no room.
    ///
    /// # Safety
    /// The conditions of [`pop`](Self::pop). `block` is a block of the class, which the caller no longer uses.
    #[inline(always)]
    pub unsafe fn push(cache: *mut Self, class: SizeClass, block: *mut u8) -> bool {
        let push = |bin| {
            // SAFETY: as in `pop`, and the caller no longer uses the block.
            unsafe { CacheBin::push(bin, block) }
        };
        // SAFETY: the cache is valid, and belongs to the caller or is always empty.
        unsafe { Self::with_bin(cache, class, push) }.unwrap_or(false)
    }

    /// Runs `f` with a bin, for the cache's owner. Returns `None` if the bin is of a long class and those bins were
    /// taken from the owner (CACHE3).
    ///
    /// # Safety
    /// The cache is valid, and belongs to the caller or is always empty.
    #[inline(always)]
    unsafe fn with_bin<R>(
        cache: *mut Self,
        class: SizeClass,
        f: impl FnOnce(*mut CacheBin) -> R,
    ) -> Option<R> {
        let bin = Self::bin_of(cache, class);
        if !class.is_of_long() {
            return Some(f(bin));
        }
        // SAFETY: the cache is valid, and a lock may be shared.
        let long = unsafe { &(*cache).long };
        if !long.enter() {
            return None;
        }
        let result = f(bin);
        long.leave();
        Some(result)
    }

    /// Takes a large block of at least `bytes` bytes that is at most an eighth longer, at a multiple of [`LARGE_UNIT`].
    /// Returns null, and writes nothing, if there is none. A few instructions for each entry.
    ///
    /// # Safety
    /// The cache is valid, and belongs to the caller or is always empty. `bytes` is more than a block with a class has.
    #[inline(always)]
    pub unsafe fn take_large(cache: *mut Self, bytes: usize) -> *mut u8 {
        // SAFETY: the cache is valid, and the lock and the large blocks may be shared.
        let (long, large) = unsafe { (&(*cache).long, &(*cache).large) };
        if !long.enter() {
            return core::ptr::null_mut();
        }
        let block = large.take(bytes.div_ceil(LARGE_UNIT));
        long.leave();
        block
    }

    /// Caches a large block, unless the large blocks would then have more than `max_bytes` bytes, or too many are
    /// cached. Returns whether it does. Runs `record` before another thread can take the block.
    ///
    /// # Safety
    /// The conditions of [`take_large`](Self::take_large). `block` is `bytes` bytes long, a multiple of [`LARGE_UNIT`]
    /// up to [`MAX_LARGE_BYTES`], and starts at such a multiple; the caller no longer uses it.
    #[inline(always)]
    pub unsafe fn put_large(
        cache: *mut Self,
        block: *mut u8,
        bytes: usize,
        max_bytes: usize,
        record: impl FnOnce(),
    ) -> bool {
        debug_assert!(bytes <= MAX_LARGE_BYTES && bytes.is_multiple_of(LARGE_UNIT));
        // SAFETY: the cache is valid, and the lock and the large blocks may be shared.
        let (long, large) = unsafe { (&(*cache).long, &(*cache).large) };
        if !long.enter() {
            return false;
        }
        let (units, max) = (bytes / LARGE_UNIT, max_bytes / LARGE_UNIT);
        let kept = large.put(block, units as u32, max as u32, record);
        long.leave();
        kept
    }

    /// Returns whether the owner has lost the long bins and the large blocks until it takes its heap's lock (CACHE3).
    ///
    /// # Safety
    /// The cache is valid.
    #[inline]
    pub unsafe fn has_lost_long(cache: *mut Self) -> bool {
        // SAFETY: the cache is valid, and a lock may be shared.
        unsafe { &(*cache).long }.is_revoked()
    }

    /// Takes any large block. Returns null if there is none. The caller owns the cache, or holds its heap's lock while
    /// the owner has lost its long bins (CACHE3).
    pub fn evict_large(&mut self) -> *mut u8 {
        self.large.evict()
    }

    /// Returns the bytes of the large blocks. The owner may be using the cache.
    ///
    /// # Safety
    /// The cache is valid.
    pub unsafe fn large_bytes(cache: *mut Self) -> usize {
        // SAFETY: the cache is valid; each entry is one word, which the owner writes in one access.
        let words = unsafe { Self::large_words(cache) };
        sum_units(&words) as usize * LARGE_UNIT
    }

    /// Returns the entries of the large blocks, by which a later call sees a change. The owner may be using the cache.
    ///
    /// # Safety
    /// The cache is valid.
    pub(super) unsafe fn large_words(cache: *mut Self) -> EntryWords {
        // SAFETY: the cache is valid; each entry is one word, which the owner writes in one access.
        unsafe { (*cache).large.words() }
    }

    /// Takes a large block whose entry is as it was in `seen`. Returns null if there is none.
    ///
    /// # Safety
    /// The cache is valid, and the caller has its long bins (CACHE3).
    pub(super) unsafe fn take_unused_large(cache: *mut Self, seen: &EntryWords) -> *mut u8 {
        // SAFETY: the cache is valid, and no other thread has the large blocks.
        unsafe { (*cache).large.take_unused(seen) }
    }

    /// Returns the lock of the bins of the long classes (CACHE3).
    ///
    /// # Safety
    /// The cache is valid.
    pub(super) unsafe fn long<'c>(cache: *mut Self) -> &'c BiasedLock {
        // SAFETY: the cache is valid, and a lock may be shared.
        unsafe { &(*cache).long }
    }

    /// Passes all bins to the next owner.
    pub(super) fn pass_on(&mut self) {
        self.long.pass_on();
    }

    /// Returns a hash of the first blocks in the bins of the long classes, by which a later call sees a change. Returns
    /// 0 if these bins are empty. The owner may be using the cache.
    ///
    /// # Safety
    /// The cache is valid.
    pub(super) unsafe fn first_long(cache: *mut Self) -> usize {
        SizeClass::long().fold(0, |seen, class| {
            // SAFETY: the cache is valid; the head is one word, which the owner writes in one access.
            let first = unsafe { (*Self::bin_of(cache, class)).head.get() }.addr();
            seen.rotate_left(7) ^ first
        })
    }

    /// Returns whether nothing is cached. O(classes).
    pub fn are_empty(&self) -> bool {
        self.bins.iter().all(CacheBin::is_empty) && self.large.units() == 0
    }

    /// Sets the room of every bin to match its list, and counts the large blocks, for a cache whose owner was stopped
    /// between two instructions.
    ///
    /// # Safety
    /// The lists satisfy SLOT1 and have these links, and the caller owns them now.
    pub(super) unsafe fn recount(&mut self, links: Links) {
        for class in SizeClass::all() {
            let bin = self.of(class);
            let (mut count, mut slot) = (0, bin.head.get());
            while !slot.is_null() {
                count += 1;
                // SAFETY: `slot` is in a list of the caller (SLOT1), so its first word is a link.
                slot = unsafe { links.next(slot) };
            }
            if bin.capacity > 0 {
                bin.room = bin.capacity - count;
            }
        }
        self.large.recount();
    }

    /// Runs `f` for every cached block, in lists with plain links.
    ///
    /// # Safety
    /// The lists satisfy SLOT1, and the caller owns the cache.
    #[cfg(not(larder_loom))]
    pub(super) unsafe fn for_each(&self, mut f: impl FnMut(SizeClass, *mut u8)) {
        for class in SizeClass::all() {
            let bin = &self.bins[class.index()];
            let mut slot = bin.head.get();
            // The walk ends by the count, because a block that a program freed twice makes the list a ring.
            for _ in 0..bin.len() {
                f(class, slot.cast());
                // SAFETY: `slot` is in a list of the caller (SLOT1), so its first word is a link.
                slot = unsafe { Slot::next(slot) };
            }
        }
    }

    /// Returns whether a block is among the first 64 cached ones of its class, in a list with plain links. For
    /// checks.
    ///
    /// # Safety
    /// The lists satisfy SLOT1, and the caller owns the cache.
    #[cfg(not(larder_loom))]
    pub unsafe fn has(&self, class: SizeClass, block: *mut u8) -> bool {
        let bin = &self.bins[class.index()];
        let mut slot = bin.head.get();
        (0..bin.len().min(64)).any(|_| {
            let here = slot;
            // SAFETY: `slot` is in a list of the caller (SLOT1), so its first word is a link.
            slot = unsafe { Slot::next(slot) };
            core::ptr::eq(here.cast(), block)
        })
    }

    /// Returns the number of cached blocks of a class.
    pub const fn len(&self, class: SizeClass) -> usize {
        self.bins[class.index()].len()
    }
}

impl Default for ThreadCache {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(larder_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_common_size_finds_the_bin_of_its_class() {
        let mut cache = ThreadCache::new();
        let cache = &raw mut cache;
        for size in (0..2000).filter(|size| SizeClass::is_common(*size, 16)) {
            let class = SizeClass::of_common(size);
            assert_eq!(
                ThreadCache::bin_of_common(cache, size),
                ThreadCache::bin_of(cache, class),
                "{size}"
            );
        }
    }

    #[test]
    fn a_cache_whose_owner_was_stopped_counts_its_large_blocks() {
        let mut cache = ThreadCache::new();
        let block = core::ptr::without_provenance_mut(LARGE_UNIT);
        let bytes = 9 * LARGE_UNIT;
        // SAFETY: the cache is the test's, which never follows the address.
        assert!(unsafe { ThreadCache::put_large(&raw mut cache, block, bytes, bytes, || ()) });
        // Stopped before the length was counted.
        cache.large.units.set(0);
        // SAFETY: all lists are empty.
        unsafe { cache.recount(Links::PLAIN) };
        assert_eq!(cache.large.units(), 9);
        assert!(!cache.are_empty());
        assert_eq!(cache.evict_large(), block);
        assert!(cache.are_empty());
    }

    #[test]
    fn the_capacity_of_a_bin_follows_its_use() {
        let mut bin = CacheBin::EMPTY;
        let list = core::ptr::dangling_mut::<Slot>();
        for count in [0, 31, 32] {
            bin.put(32, list, count);
            assert_eq!((bin.capacity(), bin.len()), (32, count));
        }
        bin.set_capacity(64);
        assert_eq!((bin.capacity(), bin.len()), (64, 32));
        assert_eq!((bin.take(), bin.len()), (list, 0));
    }
}
