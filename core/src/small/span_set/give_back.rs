//! Returning blocks from thread caches, transfer caches and other threads to their spans, and releasing spans without
//! a used block to the pages.

use core::ptr;

use super::super::class::SizeClass;
use super::super::pages::Pages;
use super::super::remote::RemoteQueue;
use super::super::slot::{Chain, Slot};
use super::super::span::Span;
use super::SpanSet;
use super::walk::EXPIRED;

/// Maximum number of spans whose remote frees are received in one call. Each span costs two or three cache misses, and
/// a call of the pages if it has no used block left. All of them together cost about 100 microseconds.
pub(super) const RECEIVED: usize = 256;

/// Number of blocks that are fetched ahead in a walk over a list. Their links are in no near cache, and blocks are
/// often freed at equal distances.
const AHEAD: usize = 4;

impl SpanSet {
    /// Releases the span of a class without a used block, if there is one. O(1).
    ///
    /// # Safety
    /// The conditions of [`refill`](Self::refill).
    pub(super) unsafe fn release_empty(&mut self, class: SizeClass, pages: &mut impl Pages) {
        let state = self.class(class);
        let span = core::mem::replace(&mut state.empty, ptr::null_mut());
        if !span.is_null() {
            // SAFETY: the span is listed, belongs to this set, and has no used block (SET3).
            unsafe { self.release(span, pages) };
        }
    }

    /// Moves the remote frees of at most 256 spans into the spans' own lists. Returns whether all were received.
    ///
    /// # Safety
    /// The conditions of [`refill`](Self::refill).
    pub unsafe fn receive(&mut self, owner: *const RemoteQueue, pages: &mut impl Pages) -> bool {
        // SAFETY: `owner` is null or the remote-free queue of this set, which lives as long as the set's spans.
        let Some(remote_queue) = (unsafe { owner.as_ref() }) else {
            return true;
        };
        if self.received.is_null() {
            if remote_queue.is_empty() {
                return true;
            }
            // SAFETY: the queue is this set's own, so no other thread takes from it.
            self.received = unsafe { remote_queue.take() };
        }
        for _ in 0..RECEIVED {
            let span = self.received;
            if span.is_null() {
                return true;
            }
            // SAFETY: the span was taken from the remote-free queue, and its list is not emptied yet (SET8).
            self.received = unsafe { Span::queue_link(span) };
            // SAFETY: the span was taken from this set's remote-free queue (REMOTE2).
            let count = unsafe { Span::receive(span) };
            // SAFETY: the span belongs to this set; `count` blocks have come back.
            unsafe { self.came_back(span, count, pages) };
        }
        self.received.is_null()
    }

    /// Returns a list of blocks to their spans, each run of blocks of one span as a group.
    ///
    /// # Safety
    /// The conditions of [`refill`](Self::refill); the list satisfies SLOT1 and belongs to the caller.
    pub(super) unsafe fn give_back(
        &mut self,
        owner: *const RemoteQueue,
        list: *mut Slot,
        pages: &mut impl Pages,
    ) {
        let (mut slot, links) = (list, self.links());
        while !slot.is_null() {
            let Some(span) = pages.span_of(slot.cast()) else {
                // SAFETY: `slot` is in a list of the caller (SLOT1), so its first word is a link.
                let next = unsafe { links.next(slot) };
                // SAFETY: a block in no span was allocated singly.
                unsafe { pages.free_block(slot.cast()) };
                slot = next;
                continue;
            };
            let span = span.as_ptr();
            // SAFETY: the caller holds a block of the span, so its shape may be read (SPAN1).
            let shape = unsafe { Span::shape(span) };
            let mut chain = Chain::one(slot);
            // SAFETY: `slot` is in a list of the caller (SLOT1), so its first word is a link.
            let mut next = unsafe { links.next(slot) };
            while !next.is_null()
                && next.addr().wrapping_sub(shape.base.addr()) < shape.bytes as usize
            {
                let stride = next.addr().wrapping_sub(chain.tail.addr());
                Slot::prefetch(next.wrapping_byte_add(AHEAD.wrapping_mul(stride)));
                chain.tail = next;
                chain.count += 1;
                // SAFETY: `next` is in a list of the caller (SLOT1), so its first word is a link.
                next = unsafe { links.next(next) };
            }
            if ptr::eq(shape.owner, owner) {
                // SAFETY: the span's owner is this set's queue, so the span belongs to this set, and no other reference
                // to its own part exists (SPAN3).
                let own = unsafe { Span::own(span) };
                // SAFETY: the blocks are in this span and belonged to the caller.
                unsafe { own.give(shape, chain) };
                // SAFETY: the span's owner is this set's queue, so the span belongs to this set.
                unsafe { self.came_back(span, chain.count, pages) };
            } else {
                // SAFETY: the blocks are in this span and belonged to the caller.
                unsafe { Span::give_remote(span, chain) };
            }
            slot = next;
        }
    }

    /// Counts `count` blocks that have come back to a span, and lists or releases the span.
    ///
    /// # Safety
    /// The span belongs to this set.
    pub(super) unsafe fn came_back(&mut self, span: *mut Span, count: u32, pages: &mut impl Pages) {
        if count == 0 {
            return;
        }
        // SAFETY: the span belongs to this set, so other threads access only the remote list of its record (SPAN1,
        // SPAN3).
        let (shape, own) = unsafe { (Span::shape(span), Span::own(span)) };
        let (idle, listed) = (own.used() == 0, own.listed);
        let aging = self.aging;
        let state = self.class(shape.class());
        state.used -= u64::from(count);
        if aging {
            own.rest = EXPIRED;
            state.to_scan = true;
        } else {
            state.touched = true;
        }
        if !listed {
            // SAFETY: the span belongs to this set and is not listed.
            unsafe { state.list(span) };
        }
        // A span whose last blocks were idle for long is also released.
        if idle && (aging || !state.empty.is_null()) {
            // SAFETY: the span is listed and has no used block.
            unsafe { self.release(span, pages) };
        } else if idle {
            state.empty = span;
            state.idle = false;
        }
    }

    /// Releases a span's memory to the pages.
    ///
    /// # Safety
    /// The span belongs to this set, is listed, and has no used block; `empty` is another span.
    unsafe fn release(&mut self, span: *mut Span, pages: &mut impl Pages) {
        // SAFETY: the span belongs to this set, so other threads access only the remote list of its record (SPAN1,
        // SPAN3).
        let (shape, holes) = unsafe { (*Span::shape(span), Span::own(span).hole_bytes()) };
        if holes > 0 {
            pages.note_reused(holes);
        }
        let state = self.class(shape.class());
        state.spans -= 1;
        state.blocks -= u64::from(shape.capacity);
        // SAFETY: the span is listed.
        unsafe { state.unlist(span) };
        // SAFETY: the span has no used block, so no thread can reach its record (SPAN5).
        unsafe { pages.free_span(span) };
    }
}
