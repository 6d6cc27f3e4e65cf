//! Growing: memory for new spans, and what is kept at hand given up before there are more.

use super::super::class::SizeClass;
use super::super::pages::Pages;
use super::super::remote::RemoteQueue;
use super::super::span::SpanMemory;
use super::super::thread_cache::ThreadCache;
use super::SpanSet;
use super::class_spans::ClassSpans;

/// See [`SpanSet::has_turn`].
pub(super) const TURN_BYTES: usize = 16 << 20;

/// Bytes of spans made before it is asked again whether it is time for a turn.
const ASKED_AFTER: usize = 1 << 20;

/// Blocks that one call gives up, but for the rest of its last list: 0.1 to 0.4 ms.
const GIVEN_UP: usize = 4096;

/// While a turn lasts a call gives up so many times the bytes that it gets, so that a turn is over before the heap has
/// grown by a quarter of what is given up; by more where [`GIVEN_UP`] blocks are less than that.
const GIVEN_UP_FOR_EACH: usize = 4;

impl SpanSet {
    /// Memory for a span, of which pages that were written before go back if it is the class's first: the class
    /// may need little of it, and they would stay in memory with it.
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
        // SAFETY: the conditions of `refill`, which `find_memory` asks for, too.
        let mut memory = unsafe { self.find_memory(owner, class, cache, pages) }?;
        if !memory.clean && self.class(class).spans == 0 && pages.page_bytes() > 0 {
            let bytes = pages.span_bytes(class);
            // SAFETY: nobody has the span yet.
            memory.clean = unsafe { pages.discard(memory.base, bytes) }.is_some();
        }
        Some(memory)
    }

    /// What is held, then what was kept at hand for other classes, in transfer caches and in the cache, then more.
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
        // One under way has had its part of this refill.
        if self.turn == 0 && self.has_turn() {
            let bytes = pages.span_bytes(class);
            // SAFETY: the conditions of `refill`: the queue and the pages are this set's, the cache is the caller's.
            unsafe { self.give_up_some(owner, cache, bytes, pages) };
            if let Some(memory) = pages.alloc_held_span(class) {
                return Some(memory);
            }
        }
        pages.alloc_span(class)
    }

    /// Whether what is kept at hand is to be given up, as the heap would grow. That has its turn once for each 16 MiB of
    /// spans made, and then as many lists go as there were, some with each refill: so a program that needs again what
    /// it has at hand does not give it up each time.
    pub fn has_turn(&mut self) -> bool {
        if self.turn == 0 && self.made_bytes >= TURN_BYTES {
            (self.made_bytes, self.asked_bytes) = (0, 0);
            self.turn = 1 + self.lists();
        }
        self.turn > 0
    }

    /// Whether what is kept at hand is to be given up before the heap would grow: while a turn lasts, and from when what
    /// is held and `free` is less than a quarter of what is at hand, or at once under pressure.
    pub(super) fn has_turn_ahead(
        &mut self,
        under_pressure: bool,
        free: impl FnOnce() -> u64,
    ) -> bool {
        if self.turn == 0 && under_pressure {
            let lists = self.lists();
            if lists == 0 {
                return false;
            }
            self.turn = 1 + lists;
        } else if self.turn == 0 {
            if self.made_bytes < TURN_BYTES.max(self.asked_bytes) {
                return false;
            }
            if free() > self.list_bytes() / GIVEN_UP_FOR_EACH as u64 {
                self.asked_bytes = self.made_bytes + ASKED_AFTER;
                return false;
            }
        }
        self.has_turn()
    }

    /// Bytes in the transfer caches. O(classes).
    fn list_bytes(&self) -> u64 {
        let bytes = |class: SizeClass| {
            let lists = u64::from(self.classes[class.index()].transfer_lists);
            lists * (self.policy.bin_blocks(class) * class.block_bytes()) as u64
        };
        SizeClass::all().map(bytes).sum()
    }

    /// Lists in the transfer caches. O(classes).
    fn lists(&self) -> usize {
        let lists = |state: &ClassSpans| state.transfer_lists as usize;
        self.classes.iter().map(lists).sum()
    }

    /// Gives up lists of the transfer caches for a call that gets `bytes`, or in the end what the thread cache has: each
    /// block there may be the only used one of its span. O(classes + 4096 blocks and one list), in the end O(blocks in
    /// the cache).
    ///
    /// # Safety
    /// The conditions of [`refill`](Self::refill).
    pub unsafe fn give_up_some(
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
        // SAFETY: the queue and the pages are this set's.
        let all = unsafe { self.give_up(owner, pay, pages) };
        let given = before - self.lists();
        self.turn = self.turn.saturating_sub(given.max(1));
        if all || self.turn == 0 {
            self.turn = 0;
            // SAFETY: the caller's cache.
            unsafe { self.flush(owner, cache, pages) };
            for class in SizeClass::all() {
                // SAFETY: the caller passes the same `pages` at every call.
                unsafe { self.release_empty(class, pages) };
            }
        }
    }
}
