//! Heaps of threads: creating, adopting and parking them, and operations on all of them.

use core::ptr;

use larder_core::small::{self, CLASSES, SpanSet, ThreadCache};
use larder_core::sync::Ordering;

use super::Process;
use crate::arena::SLICE_BYTES;
use crate::os::Os;
use crate::thread::wait::Sleep;

/// Length in bytes of a piece of memory for heaps.
const META_BYTES: usize = 64 << 10;
/// Maximum number of heaps with sets of their own per processor. More concurrent threads share sets.
const PRIMARIES_PER_PROCESSOR: usize = 2;
/// The capacity of all threads' caches together, in full bins per processor, and the least capacity of each cache.
const BINS_PER_PROCESSOR: usize = 384;
const CACHE_LEAST_BYTES: usize = 128 << 10;

/// A heap of one thread at a time.
pub(crate) type ThreadHeap = small::ThreadHeap<Sleep>;

/// The initial value of each heap.
static NEW_HEAP: ThreadHeap = ThreadHeap::new(small::Policy::BALANCED);

/// Memory for heaps, never freed.
pub(super) struct Meta {
    at: *mut u8,
    left: usize,
    /// Bytes of all pieces ever allocated.
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

    /// Takes memory from the current piece, if it has that much left.
    fn take(&mut self, bytes: usize) -> Option<*mut u8> {
        self.left = self.left.checked_sub(bytes)?;
        let place = self.at;
        self.at = place.wrapping_add(bytes);
        Some(place)
    }
}

impl<O: Os> Process<O> {
    /// Adopts a heap for the calling thread: a parked heap as its last thread left it; otherwise a
    /// new heap, which is secondary beyond `max_primaries`.
    pub(crate) fn adopt(&'static self) -> Option<&'static ThreadHeap> {
        self.wait_for_fork();
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

    /// Parks a heap. Flushes the cache of a secondary heap, because its next owner may have another
    /// primary.
    ///
    /// # Safety
    /// The calling thread owns the heap, and no longer uses it.
    pub(crate) unsafe fn park(&'static self, heap: &'static ThreadHeap) {
        if heap.is_secondary() {
            let flush = |owner, set: &mut SpanSet| {
                // SAFETY: the cache belongs to the caller, including the bins of the long classes
                // (HEAP4).
                let cache = unsafe { &mut *heap.cache() };
                // SAFETY: the set's own remote-free queue, and a cache of the holder of its lock.
                unsafe { set.flush(owner, cache, &mut self.pages()) };
            };
            // SAFETY: the caller owns the heap.
            unsafe { self.pool.with_set(heap, flush) };
        }
        // SAFETY: the caller owns the heap, and no longer uses it.
        unsafe { self.pool.park(heap) };
    }

    /// Returns the policy of each thread's heap: the sizes of its caches, and the masking of its
    /// links if the heap is hardened and was hardened when the first thread heap was created.
    fn policy(&'static self) -> small::Policy {
        let secret = || self.tuning.is_hardened().then(|| self.os.secret())?;
        small::Policy {
            bin_bytes: self.tuning.config().bin_bytes,
            whole_bins: self.tuning.is_hardened(),
            links: self.mask.links(secret),
            ..small::Policy::BALANCED
        }
    }

    /// Returns the maximum number of heaps with sets of their own.
    fn max_primaries(&self) -> usize {
        #[cfg(test)]
        if let max @ 1.. = self.max_primaries.load(Ordering::Relaxed) {
            return max;
        }
        PRIMARIES_PER_PROCESSOR * self.processors()
    }

    /// Returns the number of processors that the process may use, at least one, as of the first call.
    fn processors(&self) -> usize {
        match self.processors.load(Ordering::Relaxed) {
            0 => {
                let processors = self.os.processors().max(1);
                // Relaxed: every thread computes the same value.
                self.processors.store(processors, Ordering::Relaxed);
                processors
            }
            processors => processors,
        }
    }

    /// Divides the bytes that all caches may hold among the threads that have a heap now. Called when a thread gets or
    /// loses its heap. A thread's cache follows with the thread's next refills.
    pub(crate) fn divide_cache_bytes(&self) {
        let each = BINS_PER_PROCESSOR * self.tuning.config().bin_bytes as usize;
        let all = each.saturating_mul(self.processors());
        let each = (all / self.purger.threads().max(1)).max(CACHE_LEAST_BYTES);
        // Relaxed: if two threads store in the wrong order, the next thread corrects it.
        self.cache_bytes.0.store(each, Ordering::Relaxed);
    }

    /// Returns the bytes that the bins of a thread's cache may hold together.
    pub(super) fn cache_bytes(&self) -> usize {
        self.cache_bytes.0.load(Ordering::Relaxed)
    }

    /// Makes all heaps beyond the first `primaries` secondary.
    #[cfg(test)]
    pub(crate) fn share_after(&self, primaries: usize) {
        self.max_primaries.store(primaries, Ordering::Relaxed);
    }

    /// Creates a heap in its final place: it is some kilobytes long, and a thread's stack may be
    /// small.
    #[cold]
    #[inline(never)]
    fn place_heap(&'static self, secondary: bool) -> Option<&'static ThreadHeap> {
        let bytes = size_of::<ThreadHeap>().next_multiple_of(align_of::<ThreadHeap>());
        let place = match self.meta.with(|meta| meta.take(bytes)) {
            Some(place) => place,
            None => self.take_from_new_piece(bytes)?,
        }
        .cast::<ThreadHeap>();
        // SAFETY: inside a piece, aligned, and no other heap's. The source is a static heap that is
        // never used.
        unsafe { place.copy_from_nonoverlapping(&raw const NEW_HEAP, 1) };
        // SAFETY: written just now, never freed, and not shared yet.
        let heap = unsafe { &mut *place };
        heap.prepare(self.policy(), secondary);
        Some(heap)
    }

    /// Takes memory for a heap after adding a piece, which may take long, so other threads may do the
    /// same.
    pub(crate) fn take_from_new_piece(&'static self, bytes: usize) -> Option<*mut u8> {
        let piece = self.alloc_in_arenas(META_BYTES, SLICE_BYTES)?.as_ptr();
        let (place, is_added) = self.meta.with(|meta| {
            if let Some(place) = meta.take(bytes) {
                return (Some(place), false);
            }
            (meta.at, meta.left) = (piece, META_BYTES);
            meta.bytes += META_BYTES;
            (meta.take(bytes), true)
        });
        if !is_added {
            self.free_large(piece, META_BYTES);
        }
        place
    }

    /// Returns the bytes of the pieces that hold heaps.
    pub(crate) fn meta_bytes(&self) -> u64 {
        self.meta.with(|meta| meta.bytes as u64)
    }

    /// Receives the blocks freed by threads other than the one that allocated them.
    pub(crate) fn receive(&'static self) {
        self.pool.for_each(|heap| while !self.receive_some(heap) {});
    }

    /// Receives some blocks of a heap that other threads freed. Returns whether none are left.
    pub(crate) fn receive_some(&'static self, heap: &'static ThreadHeap) -> bool {
        let receive = |owner, set: &mut SpanSet| {
            // SAFETY: the heap's own remote-free queue and set (HEAP3).
            unsafe { set.receive(owner, &mut self.pages()) }
        };
        // SAFETY: the set stays where it is.
        unsafe { heap.with(receive) }
    }

    /// Returns whether long and large blocks can be taken from threads' caches. They are not taken
    /// if there is one owner and no purge thread: that owner is the caller, which flushes its cache
    /// itself. Orders what threads have cached so far before later reads of the caller.
    pub(crate) fn can_take_long(&'static self) -> bool {
        let others = self.pool.owned() > 1 || self.tuning.config().background;
        // The first barrier takes long, and must not run under a heap's lock.
        others && self.os.barrier()
    }

    /// Takes the long and large blocks from the caches of threads that are not using them now.
    pub(crate) fn take_long(&'static self) {
        if self.can_take_long() {
            self.pool.for_each(|heap| self.take_long_of(heap, true));
        }
    }

    /// Takes the long and large blocks from a thread's cache that it has not used since the last
    /// call, or, with `at_once`, if it is not using them now.
    pub(crate) fn take_long_of(&'static self, heap: &'static ThreadHeap, at_once: bool) {
        let take = |owner, set: &mut SpanSet, lost| {
            // SAFETY: the bins, and the set that serves them with its own remote-free queue (HEAP3,
            // CACHE3).
            unsafe { set.take_long(owner, &lost, &mut self.idle_pages()) };
        };
        // SAFETY: the set stays where it is, and the system reports whether there was a barrier.
        unsafe { heap.with_lost_bins(at_once, || self.os.barrier(), take) };
    }

    /// Returns the bytes of the large blocks in the caches of all threads, which may be using them.
    pub(crate) fn cached_large_bytes(&'static self) -> u64 {
        let mut bytes = 0;
        self.pool.for_each(|heap| {
            // SAFETY: the heap's own cache, which is valid.
            bytes += unsafe { ThreadCache::large_bytes(heap.cache()) } as u64;
        });
        bytes
    }

    /// Flushes the caches of heaps without a thread; if a fork left the heap behind, only if
    /// `at_once`.
    pub(crate) fn flush_idle_caches(&'static self, at_once: bool) {
        self.pool.for_each(|heap| {
            let mut all = usize::MAX;
            self.flush_idle_cache(heap, at_once, &mut all);
        });
    }

    /// Flushes up to `budget` blocks of a heap's cache if it has no thread; if a fork left the heap
    /// behind, only if `at_once`. Returns whether the cache is done.
    pub(crate) fn flush_idle_cache(
        &'static self,
        heap: &'static ThreadHeap,
        at_once: bool,
        budget: &mut usize,
    ) -> bool {
        let flush = |owner, set: &mut SpanSet, cache: &mut ThreadCache| {
            // SAFETY: the cache, and the set that serves it with its own remote-free queue (HEAP3,
            // HEAP4).
            unsafe { set.flush_from(0, owner, cache, budget, &mut self.pages()) }
        };
        // SAFETY: both stay where they are.
        let class = unsafe { heap.with_idle_cache(at_once, flush) };
        class.is_none_or(|class| class == CLASSES)
    }
}
