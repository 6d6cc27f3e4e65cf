//! Heaps of threads: made, adopted, parked, and what is done with all of them.

use core::ptr;

use larder_core::small::{self, CLASSES, SpanSet, ThreadCache};
use larder_core::sync::Ordering;

use super::Process;
use crate::arena::SLICE_BYTES;
use crate::os::Os;
use crate::thread::wait::Sleep;

/// Heaps are laid in pieces of this size.
const META_BYTES: usize = 64 << 10;
/// Heaps with sets of their own for each processor, and where memory comes first. More threads than that at once
/// share them.
const PRIMARIES_PER_PROCESSOR: usize = 4;
const PRIMARIES_FOR_MEMORY: usize = 2;

/// A heap of one thread at a time.
pub(crate) type ThreadHeap = small::ThreadHeap<Sleep>;

/// What each heap is at first.
static NEW_HEAP: ThreadHeap = ThreadHeap::new(small::Policy::BALANCED);

/// Memory for heaps, handed out and never taken back.
pub(super) struct Meta {
    at: *mut u8,
    left: usize,
    /// All that was ever got.
    bytes: usize,
}

// SAFETY: the memory belongs to the value.
unsafe impl Send for Meta {}

impl Meta {
    pub(super) const NONE: Self = Self {
        at: ptr::null_mut(),
        left: 0,
        bytes: 0,
    };
}

impl<O: Os> Process<O> {
    /// A heap for the calling thread: one as its last thread left it, else a new one, else, where
    /// there are as many as that, a secondary one.
    pub(crate) fn adopt(&'static self) -> Option<&'static ThreadHeap> {
        if let Some(heap) = self.pool.adopt() {
            return Some(heap);
        }
        if self.pool.primaries() < self.max_primaries() {
            let heap = self.place_heap(false)?;
            // SAFETY: made just now.
            unsafe { self.pool.enter(heap) };
            return Some(heap);
        }
        if let Some(heap) = self.pool.adopt_secondary() {
            return Some(heap);
        }
        let heap = self.place_heap(true)?;
        // SAFETY: made just now.
        unsafe { self.pool.enter_secondary(heap) }
    }

    /// Gives up a heap. A secondary heap's cache is emptied: its next owner may have another primary.
    ///
    /// # Safety
    /// The calling thread owns the heap, and uses it no more.
    pub(crate) unsafe fn park(&'static self, heap: &'static ThreadHeap) {
        if heap.is_secondary() {
            // SAFETY: the caller owns the heap.
            unsafe { heap.empty_cache(&mut self.pages()) };
        }
        // SAFETY: the caller owns the heap, and uses it no more.
        unsafe { self.pool.park(heap) };
    }

    /// What each thread's heap keeps, and how it links its free blocks: masked, if the heap is hardened and was when the
    /// first one was made.
    fn policy(&'static self) -> small::Policy {
        let secret = || self.tuning.is_hardened().then(|| self.os.secret())?;
        small::Policy {
            bin_bytes: self.tuning.config().bin_bytes,
            whole_bins: self.tuning.is_hardened(),
            links: self.mask.links(secret),
            ..small::Policy::BALANCED
        }
    }

    /// So many heaps have sets of their own.
    fn max_primaries(&self) -> usize {
        match self.max_primaries.load(Ordering::Relaxed) {
            0 => {
                let each = match self.tuning.has_short_delay() {
                    true => PRIMARIES_FOR_MEMORY,
                    false => PRIMARIES_PER_PROCESSOR,
                };
                let max = each * self.os.processors().max(1);
                // Relaxed: whoever asks gets the same answer.
                self.max_primaries.store(max, Ordering::Relaxed);
                max
            }
            max => max,
        }
    }

    /// Gives all threads beyond the first so many secondary heaps.
    #[cfg(test)]
    pub(crate) fn share_after(&self, primaries: usize) {
        self.max_primaries.store(primaries, Ordering::Relaxed);
    }

    /// Makes a heap where it is to lie: it is some kilobytes long, and a thread's stack may be short.
    #[cold]
    #[inline(never)]
    fn place_heap(&'static self, secondary: bool) -> Option<&'static ThreadHeap> {
        let bytes = size_of::<ThreadHeap>().next_multiple_of(align_of::<ThreadHeap>());
        let place = self.meta.with(|meta| {
            if meta.left < bytes {
                let piece = self.alloc_in_arenas(META_BYTES, SLICE_BYTES)?;
                (meta.at, meta.left) = (piece.as_ptr(), META_BYTES);
                meta.bytes += META_BYTES;
            }
            let place = meta.at.cast::<ThreadHeap>();
            (meta.at, meta.left) = (meta.at.wrapping_add(bytes), meta.left - bytes);
            Some(place)
        })?;
        // SAFETY: inside a piece, aligned, nobody else's. What is copied is a heap that nobody ever uses.
        unsafe { place.copy_from_nonoverlapping(&raw const NEW_HEAP, 1) };
        // SAFETY: written just now, never freed, and nobody else's yet.
        let heap = unsafe { &mut *place };
        heap.prepare(self.policy(), secondary);
        Some(heap)
    }

    /// Bytes that the heaps themselves take.
    pub(crate) fn meta_bytes(&self) -> u64 {
        self.meta.with(|meta| meta.bytes as u64)
    }

    /// Brings back what was freed by threads other than the one that allocated it.
    pub(crate) fn receive(&'static self) {
        self.pool.for_each(|heap| while !self.receive_some(heap) {});
    }

    /// Brings back some of what others freed of a heap's blocks; returns whether that was all.
    pub(crate) fn receive_some(&'static self, heap: &'static ThreadHeap) -> bool {
        let receive = |owner, set: &mut SpanSet| {
            // SAFETY: the heap's own remote-free queue and set (HEAP3).
            unsafe { set.receive(owner, &mut self.pages()) }
        };
        // SAFETY: the set stays where it is.
        unsafe { heap.with(receive) }
    }

    /// Whether what threads keep of the long classes can be taken. Not if there is one owner and no thread of the heap's
    /// own ticks: that owner is the caller, who empties its cache itself.
    pub(crate) fn can_take_long(&'static self) -> bool {
        let others = self.pool.owned() > 1 || self.tuning.config().background;
        // The first barrier takes long, and is not to be waited for under a heap's lock.
        others && self.os.barrier()
    }

    /// Takes what threads keep of the long classes and do not use just now.
    pub(crate) fn take_long(&'static self) {
        if self.can_take_long() {
            self.pool.for_each(|heap| self.take_long_of(heap, true));
        }
    }

    /// Takes what a thread keeps of the long classes if it has not used it since the last call, or `at_once` if it does
    /// not use it just now.
    pub(crate) fn take_long_of(&'static self, heap: &'static ThreadHeap, at_once: bool) {
        let take = |owner, set: &mut SpanSet, cache| {
            // SAFETY: the bins, and a set that serves them with its own remote-free queue (HEAP3, CACHE3).
            unsafe { set.take_long(owner, cache, &mut self.idle_pages()) };
        };
        // SAFETY: the set stays where it is, and the system says whether there was a barrier.
        unsafe { heap.with_lost_bins(at_once, || self.os.barrier(), take) };
    }

    /// Empties the caches of heaps without a thread; those that a fork left behind if `at_once` only.
    pub(crate) fn flush_idle_caches(&'static self, at_once: bool) {
        self.pool.for_each(|heap| {
            let mut all = usize::MAX;
            self.flush_idle_cache(heap, at_once, &mut all);
        });
    }

    /// Empties the cache of a heap if it has no thread, one that a fork left behind if `at_once` only, for as many blocks as
    /// `budget` says; returns whether that was all.
    pub(crate) fn flush_idle_cache(
        &'static self,
        heap: &'static ThreadHeap,
        at_once: bool,
        budget: &mut usize,
    ) -> bool {
        let flush = |owner, set: &mut SpanSet, cache: &mut ThreadCache| {
            // SAFETY: the cache, and a set that serves it with its own remote-free queue (HEAP3, HEAP4).
            unsafe { set.flush_from(0, owner, cache, budget, &mut self.pages()) }
        };
        // SAFETY: both stay where they are.
        let class = unsafe { heap.with_idle_cache(at_once, flush) };
        class.is_none_or(|class| class == CLASSES)
    }
}
