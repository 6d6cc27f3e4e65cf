//! Growing: memory for new spans, and what is kept at hand given up before there are more.

use super::super::class::{CLASSES, SizeClass};
use super::super::pages::Pages;
use super::super::remote::RemoteQueue;
use super::super::span::SpanMemory;
use super::super::thread_cache::ThreadCache;
use super::SpanSet;

/// See [`SpanSet::has_turn`].
pub(super) const TURN_BYTES: usize = 16 << 20;

/// Blocks that are given up for one span that is needed, and a list more: each costs one or two cache misses, so
/// together some 100 microseconds.
const GIVEN_UP: usize = 1024;

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
        // SAFETY: the caller's promise.
        let mut memory = unsafe { self.find_memory(owner, class, cache, pages) }?;
        if !memory.clean && self.class(class).spans == 0 && pages.page_bytes() > 0 {
            let bytes = pages.span_bytes(class);
            // SAFETY: nobody has the span yet.
            memory.clean = unsafe { pages.discard(memory.base, bytes) };
        }
        Some(memory)
    }

    /// What is held, then more; but if the set has its turn, some of what was kept at hand is given up before each.
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
        if self.turn == 0
            && let Some(memory) = pages.alloc_held_span(class)
        {
            return Some(memory);
        }
        if self.has_turn(cache) {
            // SAFETY: the caller's promise.
            unsafe { self.give_up_some(owner, cache, pages) };
            if let Some(memory) = pages.alloc_held_span(class) {
                return Some(memory);
            }
        }
        pages.alloc_span(class)
    }

    /// Whether what is kept at hand is to be given up now, in transfer caches and in this cache. That has its turn once
    /// for each 16 MiB of spans made, when the heap would grow, and then as many blocks go as there were: so a program
    /// that needs again what it has at hand does not give it up each time.
    pub fn has_turn(&mut self, cache: &ThreadCache) -> bool {
        if self.turn == 0 && self.made_bytes >= TURN_BYTES {
            self.made_bytes = 0;
            self.turn = 1;
            for class in SizeClass::all() {
                let lists = self.class(class).transfer_lists as usize;
                self.turn += lists * self.policy.bin_blocks(class) + cache.len(class);
            }
        }
        self.turn > 0
    }

    /// Gives up some lists of the transfer caches, and in the end what the thread cache has: each block there may be the
    /// only used one of its span. O(classes), and for 1024 blocks and a list.
    ///
    /// # Safety
    /// The conditions of [`refill`](Self::refill).
    pub unsafe fn give_up_some(
        &mut self,
        owner: *const RemoteQueue,
        cache: &mut ThreadCache,
        pages: &mut impl Pages,
    ) {
        let mut budget = GIVEN_UP.min(self.turn);
        self.turn -= budget;
        // SAFETY: the caller's promise.
        if !unsafe { self.give_up(owner, &mut budget, pages) } {
            return;
        }
        // SAFETY: the caller's cache.
        if unsafe { self.flush_from(0, owner, cache, &mut budget, pages) } < CLASSES {
            return;
        }
        self.turn = 0;
        for class in SizeClass::all() {
            // SAFETY: the caller passes the same `pages` at every call.
            unsafe { self.release_empty(class, pages) };
        }
    }
}
