//! Blocks freed by threads that do not own their span.
//!
//! `RemoteList` and [`RemoteQueue`] are stacks of the simplest kind: any thread pushes with one compare-and-swap, and
//! only the owner takes, always the whole stack. Since no element is popped singly, a value that a compare-and-swap
//! sees again later (ABA) does no harm: the push goes onto whatever list the value heads by then.
//!
//! ```text
//!   freeing threads ──CAS──► RemoteList of a span ──first one in──CAS──► RemoteQueue of its owner
//!                                   ▲                                        │
//!                                   └────────take all──── owner ◄──take all──┘
//! ```
//!
//! # Invariants
//! * REMOTE1 a remote list becomes non-empty through exactly one push, and the thread that made this push puts the span
//!   in the queue. Only the thread that takes the queue empties the list. So a span is in the queue at most once, and
//!   only the thread that made the push may write its link. The same is true of the record of the list's last slot.
//!   This is the last slot of the pushed chain, since later chains come before it.
//! * REMOTE2 the owner empties remote lists only of spans that it took from its queue. A span whose list is not empty
//!   but which is not yet in the queue therefore keeps used blocks, is not released, and may still be touched by the
//!   pusher.

use super::slot::{Chain, Links, Slot};
use super::span::Span;
use crate::sync::{AtomicPtr, AtomicU32, Ordering};

/// Number of bits of the word that count blocks; a span has at most 8192 blocks.
const COUNT_BITS: u32 = 14;
const COUNT_MASK: u32 = (1 << COUNT_BITS) - 1;
/// Alignment of slots.
const UNIT: usize = 8;

/// Maximum number of blocks in a span, and maximum length of a span, for the word to hold both.
pub(super) const MAX_BLOCKS: u32 = COUNT_MASK;
pub(super) const MAX_SPAN_BYTES: usize = UNIT << (32 - COUNT_BITS);

/// Free blocks of one span in one word: the place of the first block and the number of blocks.
#[derive(Debug)]
pub(super) struct RemoteList(AtomicU32);

impl RemoteList {
    /// Creates an empty list.
    #[cfg(not(larder_loom))]
    pub(super) const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Creates an empty list.
    #[cfg(larder_loom)]
    pub(super) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Puts a chain before the list. Returns whether the list was empty, in which case the caller has to announce the
    /// span (REMOTE1).
    ///
    /// # Safety
    /// The chain's blocks belong to the span that starts at `base` and has this list, are linked by `links`, and belong
    /// to the caller (SLOT1).
    pub(super) unsafe fn push(&self, base: *mut u8, chain: Chain, links: Links) -> bool {
        let start = chain.head.addr() - base.addr();
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            // SAFETY: the chain belongs to the caller until the exchange below succeeds.
            unsafe { links.set_next(chain.tail, first(base, word)) };
            let count = (word & COUNT_MASK) + chain.count;
            let new = ((start / UNIT) as u32) << COUNT_BITS | count;
            // Release: the taker reads the links written above. Earlier pushes are read through the same word, which
            // only such exchanges have changed since. Acquire: the pusher that finds the list empty gets the right to
            // the span's queue link, which the owner read before it emptied the list (REMOTE1).
            match self
                .0
                .compare_exchange_weak(word, new, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => return word & COUNT_MASK == 0,
                Err(now) => word = now,
            }
        }
    }

    /// Takes the whole list. Returns its first slot, or null, and its length.
    pub(super) fn take(&self, base: *mut u8) -> (*mut Slot, u32) {
        // Acquire: the links. Release: the queue link passes to the next announcer.
        let word = self.0.swap(0, Ordering::AcqRel);
        (first(base, word), word & COUNT_MASK)
    }
}

/// Returns the slot that a word names, or null.
fn first(base: *mut u8, word: u32) -> *mut Slot {
    if word & COUNT_MASK == 0 {
        return core::ptr::null_mut();
    }
    // The offset was stored by `push` and lies inside the span; the slot is not accessed here.
    base.wrapping_add((word >> COUNT_BITS) as usize * UNIT)
        .cast()
}

/// The spans of one owner with remote frees to receive.
#[derive(Debug)]
pub struct RemoteQueue(AtomicPtr<Span>);

impl RemoteQueue {
    /// Creates an empty queue.
    #[cfg(not(larder_loom))]
    pub const fn new() -> Self {
        Self(AtomicPtr::new(core::ptr::null_mut()))
    }

    /// Creates an empty queue.
    #[cfg(larder_loom)]
    pub fn new() -> Self {
        Self(AtomicPtr::new(core::ptr::null_mut()))
    }

    /// Returns whether the queue is empty. The result is only a hint, which may be out of date.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.load(Ordering::Relaxed).is_null()
    }

    /// Announces a span.
    ///
    /// # Safety
    /// The caller's push made the span's remote list non-empty (REMOTE1).
    pub unsafe fn push(&self, span: *mut Span) {
        let mut head = self.0.load(Ordering::Relaxed);
        loop {
            // SAFETY: only the caller may access the link until the exchange succeeds (REMOTE1), and the span exists
            // (REMOTE2).
            unsafe { Span::set_queue_link(span, head) };
            // Release: the taker reads the link.
            match self
                .0
                .compare_exchange_weak(head, span, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Takes all announced spans. Returns the first, or null; the others follow through [`Span::queue_link`].
    ///
    /// # Safety
    /// The caller is the spans' owner (REMOTE1), or announces them again.
    pub unsafe fn take(&self) -> *mut Span {
        // Acquire: see push.
        self.0.swap(core::ptr::null_mut(), Ordering::Acquire)
    }
}

impl Default for RemoteList {
    fn default() -> Self {
        Self::new()
    }
}

impl Default for RemoteQueue {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(larder_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_list_gives_all_blocks_that_were_put_in_the_last_chain_first() {
        let mut slots: [[Slot; 2]; 5] =
            core::array::from_fn(|_| [(); 2].map(|()| Slot::unlinked()));
        let base = slots.as_mut_ptr().cast::<Slot>();
        let slot = |number: usize| base.wrapping_add(2 * number);
        let list = RemoteList::new();
        assert_eq!(list.take(base.cast()), (core::ptr::null_mut(), 0));
        // In reverse order of their places, one, two and two at a time.
        for (newest, oldest) in [(4, 4), (2, 3), (0, 1)] {
            let mut chain = Chain::one(slot(oldest));
            for number in (newest..oldest).rev() {
                // SAFETY: a slot of the test.
                unsafe { chain.push(slot(number)) };
            }
            // SAFETY: slots of the test, from `base` on.
            let was_empty = unsafe { list.push(base.cast(), chain, Links::PLAIN) };
            assert_eq!(was_empty, newest == 4);
        }
        let (mut first, count) = list.take(base.cast());
        assert_eq!(count, 5);
        for number in 0..5 {
            assert_eq!(first, slot(number));
            // SAFETY: a slot of the test.
            first = unsafe { Slot::next(first) };
        }
        assert!(first.is_null());
        assert_eq!(list.take(base.cast()).1, 0);
    }
}
