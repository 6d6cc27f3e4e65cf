//! An arena: one reserved range of addresses with its BFC, its span records and its maps of memory.
//! It provides spans of small blocks, and large blocks.
//!
//! ```text
//!   tables, committed with the range, touched where used   range, committed as the BFC grows
//!   │ Arena │ chunks │ index │ records │ heads, classes, lengths │ dirty, young, seams, split │   │ spans and large blocks ... │ free │
//! ```
//! All tables have addresses for the whole range, so nothing here moves. They are committed with
//! the range (`table_memory`), and their untouched pages cost nothing.
//!
//! # Files
//! * `tables` creates an arena · `table_memory` the memory of its tables · `committed` its memory,
//!   committed from the start of the range upward
//! * `blocks` large blocks · `lengths` their lengths · `zero` zeroing blocks · `move_pages` blocks
//!   that grow at another address, moved from seam to seam (`seams`) · `deferred_frees` blocks
//!   whose free is deferred
//! * `spans` spans of small blocks
//! * `idle` returns free memory to the system · `marks` a bit for each granule · `residency` how
//!   much of the memory is resident
//!
//! # Invariants
//! * ARENA1 `heads[slice]` is 0 if the slice lies in no span, otherwise 1 + the slice's distance in
//!   slices from the first slice of its span; `classes[slice]` is 0, or the class of that span.
//!   Both change only while no block of the span is allocated.
//! * ARENA2 memory of a free granule that is not marked dirty reads as zero. The mark of a used
//!   granule describes the granule as it was when its block was allocated, and only the holder of
//!   the granule acts upon it: a mark is set before the granule becomes free, and is cleared by the
//!   thread that discards the granule while holding it.
//! * ARENA3 memory in the BFC is committed, and no other part of the range is used.

mod blocks;
mod committed;
mod deferred_frees;
mod idle;
mod lengths;
mod marks;
mod move_pages;
mod residency;
mod seams;
mod spans;
mod table_memory;
mod tables;
mod zero;

use larder_core::small::Span;
use larder_core::sync::{AtomicU8, LockWord};
use larder_core::{Addr, BestFit, BlockAllocator, Granule, Locked, PageIndex, RegionPool, Shared};

use crate::config::Tuning;
use crate::os::Os;
use crate::thread::wait::Sleep;

use committed::Committed;
use deferred_frees::Deferred;
use lengths::Lengths;
use marks::Marks;
use residency::Residency;
use seams::Seams;

pub(crate) use idle::{Aging, ArenaWalk, PAUSE_NS};
pub(crate) use lengths::Cacheable;
pub(crate) use move_pages::{Grown, MOVE_LEAST_BYTES};

/// Spans have multiples of this length, and start at multiples of it.
pub(crate) const SLICE_BYTES: usize = 64 << 10;
/// Unit of commits, and alignment of the range: a huge page, so that committed memory ends where a
/// huge page ends.
pub(crate) const GROWTH_BYTES: usize = 2 << 20;
/// Number of bytes examined at a time under a lock when residency is counted.
pub(crate) const PIECE_BYTES: usize = 64 << 20;

type ArenaPool = RegionPool<'static>;
type Allocator<O> = Shared<RegionPool<'static>, Committed<O>, Sleep>;

/// Result of an allocation that neither grows nor sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ClaimOutcome<T> {
    Found(T),
    /// No free committed memory can serve it.
    Full,
    /// Another thread holds the lock.
    Busy,
}

/// A reserved range and everything that manages it. Never freed; lies in front of its tables.
pub(crate) struct Arena<O: Os> {
    os: &'static O,
    tuning: &'static Tuning,
    start: *mut u8,
    bytes: usize,
    granule: Granule,
    pool: &'static Allocator<O>,
    /// Every block, by its address.
    index: PageIndex<'static>,
    /// Blocks that were freed while another thread held the BFC's lock (DEFER1).
    deferred: Deferred,
    /// Held while the committed range grows or shrinks, system calls included.
    growing: Locked<(), Sleep>,
    residency: &'static Residency,
    /// Held while free memory is discarded (IDLE1).
    discarding: Locked<(), Sleep>,
    records: *mut Span,
    heads: &'static [AtomicU8],
    classes: &'static [AtomicU8],
    lengths: Lengths,
    marks: Marks,
    /// Marks of memory freed recently; see `idle`.
    young: Marks,
    /// Whether the last tick found young memory, which the next one may discard.
    expires: AtomicU8,
    seams: Seams,
    /// Marks of split huge pages. Since the whole page was last discarded, and since huge pages
    /// were last requested, a part of such a page has been discarded near a limit. Hints; see
    /// `idle`.
    split: Marks,
}

// SAFETY: the BFC behind its lock divides the range; records belong to the spans' owners; the other
// tables are atomic.
unsafe impl<O: Os> Sync for Arena<O> {}

impl<O: Os> Arena<O> {
    /// Returns whether the address lies in the range.
    #[inline]
    pub(crate) fn contains(&self, block: *mut u8) -> bool {
        block.addr().wrapping_sub(self.start.addr()) < self.bytes
    }

    /// Returns the start of the range.
    pub(crate) fn start_addr(&self) -> usize {
        self.start.addr()
    }

    /// Returns the length of the range.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the bytes of the range that are not committed.
    pub(crate) fn room(&self) -> u64 {
        self.bytes as u64 - self.pool.stats().reserved_bytes
    }

    /// Runs `f` with the BFC, after some of the deferred frees.
    fn with_pool<R>(&self, f: impl FnOnce(&mut ArenaPool) -> R) -> R {
        self.pool.with(|pool| {
            self.deferred.free_some(pool, self.index);
            f(pool)
        })
    }

    /// Runs `f` with the BFC, after some of the deferred frees. Returns `None` if this would have
    /// to sleep.
    fn with_bfc_soon<R>(&self, f: impl FnOnce(&mut ArenaPool) -> R) -> Option<R> {
        self.pool.lock().try_with(|pool| {
            self.deferred.free_some(pool, self.index);
            f(pool)
        })
    }

    fn pointer(&self, addr: Addr) -> *mut u8 {
        self.start.with_addr(addr.get() as usize)
    }

    /// Returns the length that a request of `bytes` bytes is granted.
    pub(crate) fn granted_bytes(&self, bytes: usize) -> u64 {
        (bytes.max(1) as u64).next_multiple_of(self.granule.bytes())
    }

    /// Returns the granted length of the block that starts there. The caller holds that block.
    /// Takes no lock.
    #[inline]
    pub(crate) fn bytes_at(&self, block: *mut u8) -> Option<u64> {
        self.lengths.get(block.addr())
    }

    /// Returns the length that the holder of the block which starts there was granted for its
    /// request. A cached block may have been a little longer.
    pub(crate) fn requested_at(&self, block: *mut u8) -> Option<u64> {
        self.lengths.requested(block.addr())
    }

    /// Runs `f` for the arena's locks, in the lock order, for a fork.
    ///
    /// # Safety
    /// `f` releases a lock only if this thread has taken it.
    pub(crate) unsafe fn each_lock<'a>(&'a self, f: &mut dyn FnMut(&'a LockWord)) {
        // SAFETY: the caller's `f` releases only what this thread has taken.
        unsafe {
            f(self.discarding.word());
            f(self.growing.word());
            f(self.pool.lock().word());
        }
    }

    /// Returns the resident bytes, if the system reports them.
    pub(crate) fn resident_bytes(&self) -> Option<u64> {
        let (mut at, mut resident) = (0, 0);
        loop {
            // One piece at a time, so that growth does not wait long. Nothing is decommitted under
            // this lock.
            let piece = self.growing.with(|()| {
                let bytes = (self.numbers().1 as usize)
                    .saturating_sub(at)
                    .min(PIECE_BYTES);
                let start = self.start.wrapping_add(at);
                // SAFETY: the range is committed so far.
                (bytes > 0).then(|| unsafe { self.os.resident_bytes(start, bytes) })
            });
            match piece {
                None => return Some(resident),
                Some(bytes) => resident += bytes? as u64,
            }
            at += PIECE_BYTES;
        }
    }

    /// Returns the bytes in blocks and spans, and the committed bytes.
    pub(crate) fn numbers(&self) -> (u64, u64) {
        self.with_pool(|pool| (pool.stats().live_bytes, pool.stats().reserved_bytes))
    }

    /// Returns the committed bytes that are in no block or span; `None` if this would have to
    /// sleep.
    pub(crate) fn free_bytes_soon(&self) -> Option<u64> {
        let free = |pool: &mut ArenaPool| {
            let stats = pool.stats();
            stats.reserved_bytes.saturating_sub(stats.live_bytes)
        };
        self.with_bfc_soon(free)
    }

    /// Returns the bytes committed for the arena itself and for its tables.
    #[cfg(test)]
    pub(crate) fn table_bytes(&self) -> usize {
        let front = tables::front_bytes::<O>(self.os.page_bytes());
        front + self.pool.source().table_bytes()
    }

    /// Runs `f` while the BFC's lock is held.
    #[cfg(test)]
    pub(crate) fn while_locked(&self, f: impl FnOnce()) {
        self.pool.with(|_| f());
    }

    /// Returns whether frees are deferred.
    #[cfg(test)]
    pub(crate) fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Returns whether the BFC's invariants hold.
    #[cfg(test)]
    pub(crate) fn is_sound(&self) -> bool {
        self.pool.with(|pool| pool.check_invariants()).is_ok()
    }
}

const _: () = assert!(GROWTH_BYTES.is_multiple_of(SLICE_BYTES));
