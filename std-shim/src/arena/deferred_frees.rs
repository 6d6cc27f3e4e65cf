//! [`Deferred`]: blocks whose free could not take the BFC's lock without sleeping. The next holder
//! frees them.
//!
//! So a thread that only frees never waits, however long the holder stays off the processor.
//!
//! # Invariants
//! * DEFER1 to the BFC, a deferred block is in use; it has no owner. Its first word links it to the
//!   next. Any thread pushes. A holder of the BFC's lock takes all deferred blocks at once, frees a
//!   bounded number, and leaves the rest to the next holder. While any block is deferred, the arena
//!   counts as having idle memory, so that a tick comes.

use core::ptr::{self, NonNull};

use larder_core::PageIndex;
use larder_core::sync::{AtomicPtr, Ordering, fence};

use super::ArenaPool;
use super::blocks::free_at;
use crate::safety::check;

/// The first word of a deferred block.
struct DeferredLink {
    next: *mut DeferredLink,
}

/// Maximum number of blocks that one holder of the lock frees. Each costs a few cache misses; all
/// together cost about 50 microseconds.
const FREED: usize = 128;

/// The deferred blocks of an arena.
pub(super) struct Deferred {
    pushed: AtomicPtr<DeferredLink>,
    /// The taken blocks that are not freed yet. Changed only under the BFC's lock.
    taken: AtomicPtr<DeferredLink>,
}

impl Deferred {
    /// Creates an empty list.
    pub(super) const fn new() -> Self {
        Self {
            pushed: AtomicPtr::new(ptr::null_mut()),
            taken: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Returns whether the list is empty. A hint.
    pub(super) fn is_empty(&self) -> bool {
        let is_null = |list: &AtomicPtr<DeferredLink>| list.load(Ordering::Relaxed).is_null();
        is_null(&self.pushed) && is_null(&self.taken)
    }

    /// Leaves a block to the next holder of the lock.
    ///
    /// # Safety
    /// The block is committed, aligned for a pointer, and given up by the caller.
    pub(super) unsafe fn push(&self, block: *mut u8) {
        let link = block.cast::<DeferredLink>();
        let mut next = self.pushed.load(Ordering::Relaxed);
        loop {
            // SAFETY: the block is committed and aligned for a pointer, and the caller gives it up.
            unsafe { link.write(DeferredLink { next }) };
            // Release: the thread that takes the blocks reads the links.
            match (self.pushed).compare_exchange_weak(
                next,
                link,
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => break,
                Err(now) => next = now,
            }
        }
        // The state of the purger is read after this, and the purger reads this list after changing
        // its state (PURGE2).
        fence(Ordering::SeqCst);
    }

    /// Frees some of the blocks. The caller holds the lock of `pool`.
    #[inline]
    pub(super) fn free_some(&self, pool: &mut ArenaPool, index: PageIndex<'_>) {
        if !self.is_empty() {
            self.free_taken(pool, index);
        }
    }

    #[cold]
    fn free_taken(&self, pool: &mut ArenaPool, index: PageIndex<'_>) {
        // Relaxed: the lock orders the accesses.
        let mut at = self.taken.load(Ordering::Relaxed);
        if at.is_null() {
            // Acquire: see push.
            at = self.pushed.swap(ptr::null_mut(), Ordering::Acquire);
        }
        for _ in 0..FREED {
            let Some(link) = NonNull::new(at) else {
                break;
            };
            // SAFETY: DEFER1: the block is in use for the BFC and taken by this thread; its link is
            // read before the block is freed.
            at = unsafe { link.read() }.next;
            if !free_at(pool, index, link.as_ptr().cast()) {
                check::fail(b"larder: freed an address where no block of this heap starts\n");
            }
        }
        self.taken.store(at, Ordering::Relaxed);
    }
}
