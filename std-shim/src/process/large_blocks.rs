//! Blocks without a size class. They lie in an arena; above a certain length or alignment, they
//! have mappings of their own.
//!
//! A thread caches the large blocks of arenas that it freed last (`LargeCache` in the core): an
//! allocation or a free then takes some dozens of instructions, without a locked one.
//!
//! # Invariants
//! * BLOCK1 a cached block is in use for the arena, and its length says that it is cached
//!   (LENGTH2). So a second free of it finds no block, whichever thread makes it. Any byte of it may
//!   have been written.
//! * BLOCK2 all threads together cache at most `large_units`, 8 MiB for each processor: each thread
//!   that has a heap has an equal share. A block longer than a share is not cached. A thread that
//!   had a larger share, because there were fewer threads, keeps more until it next frees such a
//!   block, or until the second tick.
//! * BLOCK3 near a memory limit nothing is cached, nor in heaps that check blocks, nor if the system
//!   has no barrier by which other threads could take blocks from a thread that sleeps (CACHE3).
//!   Blocks of steps and blocks with mappings of their own are not cached.
//!
//! Cached blocks go to their arenas: those not used since the previous tick with a tick; all of a
//! thread's when a request fits none of them, before the heap grows for the thread, before a request
//! is refused, with a trim, and when the thread ends. They count as idle.

use core::alloc::Layout;
use core::ptr::NonNull;

use larder_core::small::{LARGE_UNIT, MAX_LARGE_BYTES, MAX_SMALL_BYTES, ThreadCache};
use larder_core::sync::Ordering;

use super::Process;
use crate::arena::{Arena, Cacheable, ClaimOutcome, Grown, MOVE_LEAST_BYTES};
use crate::os::{FIRST_ARENA_BYTES, Os};

/// Minimum length in bytes of a block with its own mapping: a fraction of the addresses of an
/// arena.
const MAPPING_LEAST_BYTES: usize = FIRST_ARENA_BYTES / 64;
/// Where addresses are scarce, this minimum is the first arena's length divided by this, because a
/// freed mapping leaves no hole.
const SCARCE_PART: usize = 16;

/// A reserve for which the heap grows is longer by its length divided by this.
const RESERVE_SLACK: usize = 8;

impl<O: Os> Process<O> {
    /// Returns the bytes of large blocks that each thread may cache (BLOCK2, BLOCK3).
    #[inline(always)]
    pub(crate) fn large_share(&'static self) -> usize {
        if self.memory_limit.under_pressure() {
            return 0;
        }
        // Relaxed, both: a number that is a little old bounds a little more or less.
        let units = self.large_units.load(Ordering::Relaxed);
        // In 32 bits, because that is much faster.
        let share = units / (self.purger.threads() as u32).max(1);
        share as usize * LARGE_UNIT
    }

    /// Takes a large block from a thread's cache. Returns `None` if it has no suitable one.
    ///
    /// # Safety
    /// The cache is the calling thread's, or always empty.
    #[inline(always)]
    pub(crate) unsafe fn take_cached(
        &'static self,
        cache: *mut ThreadCache,
        layout: Layout,
    ) -> Option<NonNull<u8>> {
        let (bytes, above) = (layout.size(), MAX_SMALL_BYTES + 1);
        if bytes.wrapping_sub(above) > MAX_LARGE_BYTES - above || layout.align() > LARGE_UNIT {
            return None;
        }
        // SAFETY: the caller's cache, or one that stays empty, and more bytes than a class has.
        let block = NonNull::new(unsafe { ThreadCache::take_large(cache, bytes) })?;
        if let Some(arena) = self.arena_of(block.as_ptr()) {
            arena.request(block.as_ptr(), bytes);
        }
        Some(block)
    }

    /// Caches a freed block without a class, if there is room. Returns its length;
    /// 0 if the block is still the caller's.
    ///
    /// # Safety
    /// The cache is the calling thread's, or always empty. If a block starts there, the caller gives
    /// it up.
    #[inline(always)]
    pub(crate) unsafe fn cache(&'static self, cache: *mut ThreadCache, block: *mut u8) -> usize {
        let Some(cacheable) = self.cacheable(block) else {
            return 0;
        };
        let (bytes, share) = (cacheable.bytes, self.large_share());
        let record = || cacheable.cache();
        // SAFETY: the caller's cache, or one that stays empty; a block of an arena, that long, which
        // the caller gives up.
        match unsafe { ThreadCache::put_large(cache, block, bytes, share, record) } {
            true => bytes,
            false => 0,
        }
    }

    /// Returns the block that starts at an address, if blocks of its length are cached.
    #[inline(always)]
    pub(crate) fn cacheable(&'static self, block: *mut u8) -> Option<Cacheable> {
        let cacheable = self.arena_of(block)?.cacheable(block)?;
        let least = MAX_SMALL_BYTES + LARGE_UNIT;
        let fits = cacheable.bytes.wrapping_sub(least) <= MAX_LARGE_BYTES - least;
        fits.then_some(cacheable)
    }

    /// Returns the minimum length or alignment of a block with its own mapping. Such blocks stay
    /// out of the arenas because an arena is committed up to its highest block.
    fn mapping_least_bytes(&'static self) -> usize {
        match self.arenas().next() {
            Some(first) if first.bytes() < self.arena_bytes => {
                (first.bytes() / SCARCE_PART).max(MOVE_LEAST_BYTES)
            }
            _ => MAPPING_LEAST_BYTES,
        }
    }

    /// Allocates a block without a class from committed memory.
    pub(crate) fn alloc_held(
        &'static self,
        bytes: usize,
        align: usize,
    ) -> ClaimOutcome<NonNull<u8>> {
        if bytes.max(align) >= self.mapping_least_bytes() {
            return ClaimOutcome::Busy;
        }
        self.wait_for_fork();
        let found = self.find_held(bytes, |arena| arena.alloc_held(bytes, align));
        if let ClaimOutcome::Found(_) = found {
            self.memory_limit.take(bytes);
        }
        found
    }

    /// Allocates a reserve for the blocks of a step in memory that the arenas hold.
    pub(crate) fn reserve_held(&'static self, bytes: usize) -> Option<NonNull<u8>> {
        self.wait_for_fork();
        match self.find_held(bytes, |arena| arena.reserve_held(bytes)) {
            ClaimOutcome::Found(start) => {
                self.memory_limit.take(bytes);
                Some(start)
            }
            ClaimOutcome::Full | ClaimOutcome::Busy => None,
        }
    }

    /// Allocates a reserve by growing an arena, after as much idle memory has been returned to the
    /// system; `None` if there is less. The reserve is a little longer, so that its place will do for
    /// a plan that is.
    pub(crate) fn reserve_grown(&'static self, bytes: usize) -> Option<NonNull<u8>> {
        self.wait_for_fork();
        if self.discard_idle(bytes as u64) < bytes as u64 {
            return None;
        }
        let longer = bytes.checked_add(bytes / RESERVE_SLACK)?;
        let start = self
            .arenas()
            .find_map(|arena| arena.reserve_grown(longer))?;
        self.memory_limit.take(bytes);
        self.note_growth();
        Some(start)
    }

    /// Allocates a block without a class.
    pub(crate) fn alloc_large(&'static self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        if bytes > isize::MAX as usize {
            return None;
        }
        self.wait_for_fork();
        let in_arenas = || self.alloc_in_arenas(bytes, align);
        let mapping = || self.alloc_mapping(bytes, align);
        match bytes.max(align) < self.mapping_least_bytes() {
            true => in_arenas().or_else(mapping),
            // If a mapping is refused, a gap between other blocks may have room. If addresses are
            // not scarce, the system has refused memory, so the arenas must not grow either.
            false if self.is_scarce() => mapping().or_else(in_arenas),
            false => mapping().or_else(|| {
                match self.find_held(bytes, |arena| arena.alloc_held(bytes, align)) {
                    ClaimOutcome::Found(block) => Some(block),
                    ClaimOutcome::Full | ClaimOutcome::Busy => None,
                }
            }),
        }
    }

    /// Allocates a block in an arena.
    pub(super) fn alloc_in_arenas(
        &'static self,
        bytes: usize,
        align: usize,
    ) -> Option<NonNull<u8>> {
        self.memory_limit.take(bytes);
        // Skips arenas that could never hold the block.
        let may = |arena: &Arena<O>| arena.bytes() >= bytes;
        self.find_in_arenas(
            bytes.checked_add(align)?,
            |arena| match may(arena) {
                true => arena.alloc_held(bytes, align),
                false => ClaimOutcome::Full,
            },
            |arena| may(arena).then(|| arena.alloc(bytes, align)).flatten(),
        )
    }

    fn alloc_mapping(&'static self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        if self.is_scarce() && !self.leaves_some(bytes) {
            return None;
        }
        // An address range that an arena lost to the system stays unused: blocks there would count
        // as the arena's.
        let is_apart = |block: &NonNull<u8>| self.arena_of(block.as_ptr()).is_none();
        let block = (0..2)
            .filter_map(|_| self.mappings.alloc(&self.os, bytes, align))
            .find(is_apart)?;
        if self.tuning.begins_short() {
            // SAFETY: mapped just now. If the advice is refused, the pages stay as they are.
            unsafe { self.os.advise_short(block.as_ptr(), bytes) };
        }
        Some(block)
    }

    /// Zeroes the parts of a newly allocated block without a class that are not known to be zero.
    ///
    /// # Safety
    /// The block is the caller's and `bytes` long.
    pub(crate) unsafe fn zero_large(&'static self, block: *mut u8, bytes: usize) {
        // A mapping reads as zero.
        if let Some(arena) = self.arena_of(block) {
            // SAFETY: the block is the caller's and that long.
            unsafe { arena.zero(block, bytes) };
        }
    }

    /// Zeroes a newly allocated block that was cached.
    ///
    /// # Safety
    /// The block is the caller's and `bytes` long.
    pub(crate) unsafe fn zero_cached(&'static self, block: *mut u8, bytes: usize) {
        if let Some(arena) = self.arena_of(block) {
            // SAFETY: the block is the caller's and that long.
            unsafe { arena.zero_cached(block, bytes) };
        }
    }

    /// Zeroes a long block whose contents are no longer needed, by returning its memory to the
    /// system where possible.
    ///
    /// # Safety
    /// The block is the caller's, unused, and `bytes` long.
    pub(crate) unsafe fn clear_large(&'static self, block: *mut u8, bytes: usize) {
        match self.arena_of(block) {
            // A mapping returns to the system as a whole when it is freed.
            None => {}
            Some(arena) if arena.discard_held(block) => {}
            // SAFETY: the block is the caller's, unused, and that long.
            Some(_) => unsafe { block.write_bytes(0, bytes) },
        }
    }

    /// Returns the length of the block without a class that starts at an address of an arena.
    #[inline]
    pub(crate) fn bytes_at(&'static self, block: *mut u8) -> Option<usize> {
        usize::try_from(self.arena_of(block)?.bytes_at(block)?).ok()
    }

    /// Resizes a block without a class in place. Returns whether that was possible.
    pub(crate) fn resize_large(
        &'static self,
        block: *mut u8,
        old_bytes: usize,
        new_bytes: usize,
    ) -> bool {
        if let Some(arena) = self.arena_of(block) {
            if arena.has_room(block, old_bytes, new_bytes) {
                return true;
            }
            self.wait_for_fork();
            let grown_bytes = new_bytes.saturating_sub(old_bytes);
            self.purger.taken(grown_bytes, &self.tuning);
            self.memory_limit.take(grown_bytes);
            return arena.resize(block, new_bytes);
        }
        // SAFETY: the caller's block, whose end is given up; it keeps its address.
        let shrunk = || unsafe { self.mappings.resize(&self.os, block, new_bytes, None) };
        new_bytes <= old_bytes && shrunk().is_some()
    }

    /// Grows a block without a class by moving its pages to a longer block. Returns `None`, and
    /// does nothing, if the pages cannot be moved.
    ///
    /// # Safety
    /// The block is the caller's, `layout.size()` long, and not used during the call.
    pub(crate) unsafe fn grow_elsewhere(
        &'static self,
        block: *mut u8,
        layout: Layout,
        new_bytes: usize,
    ) -> Option<Grown> {
        if layout.size() < MOVE_LEAST_BYTES || new_bytes > isize::MAX as usize {
            return None;
        }
        self.wait_for_fork();
        let Some(arena) = self.arena_of(block) else {
            if self.is_scarce() && !self.leaves_some(new_bytes.saturating_sub(layout.size())) {
                return None;
            }
            let align = Some(layout.align());
            // SAFETY: the block is the caller's, and not used while it moves.
            let grown = unsafe { self.mappings.resize(&self.os, block, new_bytes, align) };
            return grown.map(|block| Grown {
                block,
                idle_bytes: 0,
            });
        };
        let mapping = match new_bytes < self.mapping_least_bytes() {
            true => None,
            false => self.alloc_mapping(new_bytes, layout.align()),
        };
        let Some(to) = mapping else {
            self.purger.taken(new_bytes, &self.tuning);
            self.memory_limit.take(new_bytes);
            // SAFETY: the block is the caller's, and not used while it moves.
            return unsafe {
                arena.grow_elsewhere(block, layout.size(), new_bytes, layout.align())
            };
        };
        // SAFETY: the block is the caller's, and not used while its contents move to a longer
        // block.
        unsafe { arena.leave(block, to.as_ptr(), layout.size()) };
        Some(Grown {
            block: to,
            idle_bytes: 0,
        })
    }

    /// Frees a block without a class. Returns `false` if the block is not one of the heap's.
    pub(crate) fn free_large(&'static self, block: *mut u8, bytes: usize) -> bool {
        match self.arena_of(block) {
            Some(arena) => {
                self.memory_limit.free(bytes);
                arena.free(block)
            }
            None => self.mappings.free(&self.os, block),
        }
    }
}
