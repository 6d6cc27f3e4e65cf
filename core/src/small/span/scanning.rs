//! Holes of a span: pages without a used block are returned to the system, and are used again later.

use core::ptr;

use super::super::holes::Holes;
use super::super::slot::Slot;
use super::{Own, SpanShape};

impl Own {
    /// Lists the blocks of the first hole, or of its first part.
    ///
    /// # Safety
    /// `shape` belongs to this span; no block is listed.
    pub(super) unsafe fn fill_hole(&mut self, shape: &SpanShape) {
        let blocks = self.holes.fill(&self.grid(shape));
        self.free_count = blocks.len() as u16;
        for number in blocks.rev() {
            let slot = shape.block(number).cast::<Slot>();
            // SAFETY: the slot is a carved block that is free (SPAN6) and no longer holed.
            unsafe { shape.links.set_next(slot, self.free) };
            self.free = slot;
        }
    }

    /// Makes holes of whole pages of free blocks, if these holes have at least `least` bytes in total, and passes their
    /// memory to `discard`. If `again` is set, the memory of the existing holes is also passed to `discard`, since the
    /// system may have put pages there. O(carved), touching free blocks only.
    ///
    /// # Safety
    /// `shape` belongs to this span. Memory is returned in pages of `page_bytes`, a power of two, and the span starts
    /// at a multiple of it.
    pub(in super::super) unsafe fn scan(
        &mut self,
        shape: &SpanShape,
        page_bytes: usize,
        least: usize,
        again: bool,
        mut discard: impl FnMut(*mut u8, usize),
    ) {
        let grid = self.grid(shape);
        let Some(holes) = self.holes.with_pages(&grid, page_bytes) else {
            return;
        };
        if again {
            for bytes in holes.runs() {
                discard(shape.base.wrapping_add(bytes.start), bytes.len());
            }
        }
        // SAFETY: the caller promises this span's shape.
        let found = unsafe { self.candidates(shape, holes) };
        if found.is_empty() || found.bytes() < least {
            return;
        }
        self.holes = holes.and(found);
        // SAFETY: the list belongs to this span and satisfies SLOT1.
        (self.free, self.free_count) = unsafe { self.without_holed(self.free, shape) };
        // SAFETY: the list belongs to this span and satisfies SLOT1.
        (self.received, self.received_count) = unsafe { self.without_holed(self.received, shape) };
        for bytes in found.runs() {
            discard(shape.base.wrapping_add(bytes.start), bytes.len());
        }
    }

    /// Returns the units that may become holes. Not inlined, because the caller's stack may be small.
    ///
    /// # Safety
    /// `shape` belongs to this span.
    #[inline(never)]
    unsafe fn candidates(&self, shape: &SpanShape, holes: Holes) -> Holes {
        let (grid, mut found) = (self.grid(shape), holes.cleared());
        for first in holes.counts(&grid) {
            let mut tally = holes.tally(&grid, first);
            for list in [self.free, self.received] {
                let mut slot = list;
                while !slot.is_null() {
                    holes.count(shape.number(slot.cast()), &grid, &mut tally);
                    // SAFETY: `slot` is in a list of this span (SLOT1), so its first word is a link.
                    slot = unsafe { shape.links.next(slot) };
                }
            }
            found = found.and(holes.candidates(&grid, &tally));
        }
        found
    }

    /// Returns a list without the blocks that overlap a hole, in the same order, and its length.
    ///
    /// # Safety
    /// The list satisfies SLOT1, and its blocks belong to the caller.
    unsafe fn without_holed(&self, list: *mut Slot, shape: &SpanShape) -> (*mut Slot, u16) {
        let grid = self.grid(shape);
        let (mut head, mut tail, mut count) = (ptr::null_mut(), ptr::null_mut(), 0);
        let mut slot = list;
        while !slot.is_null() {
            // SAFETY: `slot` is in the caller's list (SLOT1), so its first word is a link.
            let next = unsafe { shape.links.next(slot) };
            if !self.holes.have_block(shape.number(slot.cast()), &grid) {
                if count == 0 {
                    head = slot;
                } else {
                    // SAFETY: `tail` is a slot of the caller's list.
                    unsafe { shape.links.set_next(tail, slot) };
                }
                (tail, count) = (slot, count + 1);
            }
            slot = next;
        }
        if count > 0 {
            // SAFETY: `tail` is a slot of the caller's list.
            unsafe { shape.links.set_next(tail, ptr::null_mut()) };
        }
        (head, count)
    }
}
