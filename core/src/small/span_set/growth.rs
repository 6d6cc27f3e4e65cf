//! Growing: memory for new spans, and the flush of cached lists before the heap grows.

use super::super::class::SizeClass;
use super::super::pages::Pages;
use super::super::remote::RemoteQueue;
use super::super::span::SpanMemory;
use super::super::thread_cache::ThreadCache;
use super::SpanSet;
use super::class_spans::ClassSpans;

/// Number of bytes of new spans between two turns of flushing; see [`SpanSet::flush_is_due`].
pub(super) const FLUSH_EVERY_BYTES: usize = 16 << 20;

/// Number of bytes of new spans after which a turn is considered again.
const ASKED_AFTER: usize = 1 << 20;

/// Maximum number of blocks that one call flushes, not counting the rest of its last list. Flushing them takes 0.1 to
/// 0.4 ms.
const GIVEN_UP: usize = 4096;

/// During a turn, a call flushes this many times the bytes that it allocates, so that a turn ends before the heap has
/// grown by a quarter of the flushed bytes. The heap grows by more if [`GIVEN_UP`] blocks are fewer bytes than that.
const GIVEN_UP_FOR_EACH: usize = 4;

impl SpanSet {
    /// Allocates memory for a span. If it is the first span of the class, pages that were written before are discarded:
    /// the class may need few of them, and otherwise all of them would stay in memory.
    ///
    /// # Safety
    /// The conditions of [`refill`](Self::refill).
    pub(super) unsafe fn find_span(
        &mut self,
        owner: *const RemoteQueue,
        class: SizeClass,
        cache: &mut ThreadCache,
        pages: &mut impl Pages,
    ) -> Option<SpanMemory> {
        // SAFETY: the conditions of `refill` are those of `find_memory`.
        let mut memory = unsafe { self.find_memory(owner, class, cache, pages) }?;
        if !memory.clean && self.class(class).spans == 0 && pages.page_bytes() > 0 {
            let bytes = pages.span_bytes(class);
            // SAFETY: the span is new, and no block of it in use.
            memory.clean = unsafe { pages.discard(memory.base, bytes) }.is_some();
        }
        Some(memory)
    }

    /// Allocates memory for a span: first from held memory, then from cached blocks of other classes (in the transfer
    /// caches and in the thread cache) and large ones, then by growth.
    ///
    /// # Safety
    /// The conditions of [`refill`](Self::refill).
    unsafe fn find_memory(
        &mut self,
        owner: *const RemoteQueue,
        class: SizeClass,
        cache: &mut ThreadCache,
        pages: &mut impl Pages,
    ) -> Option<SpanMemory> {
        if let Some(memory) = pages.alloc_held_span(class) {
            return Some(memory);
        }
        // If a turn was already under way, this refill has flushed its part.
        if self.lists_to_flush == 0 && self.flush_is_due() {
            let bytes = pages.span_bytes(class);
            // SAFETY: the conditions of `refill` hold: the queue and the pages belong to this set, and the cache to the
            // caller.
            unsafe { self.flush_some(owner, cache, bytes, pages) };
            if let Some(memory) = pages.alloc_held_span(class) {
                return Some(memory);
            }
        }
        if Self::flush_large(cache, pages)
            && let Some(memory) = pages.alloc_held_span(class)
        {
            return Some(memory);
        }
        pages.alloc_span(class)
    }

    /// Returns whether cached lists should be flushed, given that the heap would otherwise grow. Lists are flushed in
    /// *turns*, one for each 16 MiB of new spans. A turn flushes as many lists as there were when it began, some with
    /// each refill. So a program that needs its cached blocks again does not lose them each time.
    pub fn flush_is_due(&mut self) -> bool {
        if self.lists_to_flush == 0 && self.made_bytes >= FLUSH_EVERY_BYTES {
            (self.made_bytes, self.asked_bytes) = (0, 0);
            self.lists_to_flush = 1 + self.lists();
        }
        self.lists_to_flush > 0
    }

    /// Returns whether cached lists should be flushed although the heap need not grow yet. They are flushed during a
    /// turn, and immediately under pressure. A turn may begin here once `free`, the free part of held memory, is less
    /// than a quarter of the cached bytes.
    pub(super) fn early_flush_is_due(
        &mut self,
        under_pressure: bool,
        free: impl FnOnce() -> u64,
    ) -> bool {
        if self.lists_to_flush == 0 && under_pressure {
            let lists = self.lists();
            if lists == 0 {
                return false;
            }
            self.lists_to_flush = 1 + lists;
        } else if self.lists_to_flush == 0 {
            if self.made_bytes < FLUSH_EVERY_BYTES.max(self.asked_bytes) {
                return false;
            }
            if free() > self.list_bytes() / GIVEN_UP_FOR_EACH as u64 {
                self.asked_bytes = self.made_bytes + ASKED_AFTER;
                return false;
            }
        }
        self.flush_is_due()
    }

    /// Returns the bytes in the transfer caches. O(classes).
    fn list_bytes(&self) -> u64 {
        let bytes = |class: SizeClass| {
            self.classes[class.index()].transfer_blocks * class.block_bytes() as u64
        };
        SizeClass::all().map(bytes).sum()
    }

    /// Returns the number of lists in the transfer caches. O(classes).
    fn lists(&self) -> usize {
        let lists = |state: &ClassSpans| state.transfer_lists as usize;
        self.classes.iter().map(lists).sum()
    }

    /// Flushes lists of the transfer caches for a call that allocates `bytes`. At the end of a turn it also flushes the
    /// thread cache, since each block there may be the only used one of its span. O(classes + 4096 blocks + one list),
    /// plus O(blocks in the cache) at the end of a turn.
    ///
    /// # Safety
    /// The conditions of [`refill`](Self::refill).
    pub unsafe fn flush_some(
        &mut self,
        owner: *const RemoteQueue,
        cache: &mut ThreadCache,
        bytes: usize,
        pages: &mut impl Pages,
    ) {
        let (mut blocks, mut bytes) = (GIVEN_UP, GIVEN_UP_FOR_EACH.saturating_mul(bytes));
        let before = self.lists();
        let pay = |class: SizeClass, count: usize| {
            let may = blocks > 0 && bytes > 0;
            blocks = blocks.saturating_sub(count);
            bytes = bytes.saturating_sub(count * class.block_bytes());
            may
        };
        // SAFETY: the caller promises the queue and the pages of this set.
        let all = unsafe { self.flush_while(owner, pay, pages) };
        let given = before - self.lists();
        self.lists_to_flush = self.lists_to_flush.saturating_sub(given.max(1));
        if all || self.lists_to_flush == 0 {
            self.lists_to_flush = 0;
            // SAFETY: the caller promises the cache of this set.
            unsafe { self.flush(owner, cache, pages) };
            for class in SizeClass::all() {
                // SAFETY: the caller passes the same `pages` at every call.
                unsafe { self.release_empty(class, pages) };
            }
        }
    }
}
