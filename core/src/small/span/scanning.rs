//! Holes of a span: pages in which no block is used go back to the system, and come again.

use core::ptr;

use super::super::holes::Holes;
use super::super::slot::Slot;
use super::{Own, SpanShape};

impl Own {
    /// Lists the blocks of the first hole, or of its first part.
    ///
    /// # Safety
    /// `shape` is this span's; no block is listed.
    pub(super) unsafe fn fill_hole(&mut self, shape: &SpanShape) {
        let blocks = self.holes.fill(&self.grid(shape));
        self.free_count = blocks.len() as u16;
        for number in blocks.rev() {
            let slot = shape.block(number).cast::<Slot>();
            // SAFETY: a carved block that is free (SPAN6), and holed no longer.
            unsafe { shape.links.set_next(slot, self.free) };
            self.free = slot;
        }
    }

    /// Makes holes where whole pages of free blocks lie, if they are `least` bytes together, and has `discard` take
    /// their memory; that of the holes there are too, if `again`: the system may have put pages there.
    /// O(carved), touching free blocks only.
    ///
    /// # Safety
    /// `shape` is this span's. Memory goes back in pages of `page_bytes`, a power of two, and the
    /// span starts at a multiple of it.
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
        // SAFETY: this span's shape, as the caller says.
        let found = unsafe { self.candidates(shape, holes) };
        if found.is_empty() || found.bytes() < least {
            return;
        }
        self.holes = holes.and(found);
        // SAFETY: SLOT1.
        (self.free, self.free_count) = unsafe { self.without_holed(self.free, shape) };
        // SAFETY: SLOT1.
        (self.received, self.received_count) = unsafe { self.without_holed(self.received, shape) };
        for bytes in found.runs() {
            discard(shape.base.wrapping_add(bytes.start), bytes.len());
        }
    }

    /// Units that may become holes. Not part of its caller, whose stack may be short.
    ///
    /// # Safety
    /// `shape` is this span's.
    #[inline(never)]
    unsafe fn candidates(&self, shape: &SpanShape, holes: Holes) -> Holes {
        let (grid, mut found) = (self.grid(shape), holes.cleared());
        for first in holes.counts(&grid) {
            let mut tally = holes.tally(&grid, first);
            for list in [self.free, self.received] {
                let mut slot = list;
                while !slot.is_null() {
                    holes.count(shape.number(slot.cast()), &grid, &mut tally);
                    // SAFETY: SLOT1.
                    slot = unsafe { shape.links.next(slot) };
                }
            }
            found = found.and(holes.candidates(&grid, &tally));
        }
        found
    }

    /// A list without the blocks that overlap a hole, in the same order, and its length.
    ///
    /// # Safety
    /// The list satisfies SLOT1, and its blocks are the caller's.
    unsafe fn without_holed(&self, list: *mut Slot, shape: &SpanShape) -> (*mut Slot, u16) {
        let grid = self.grid(shape);
        let (mut head, mut tail, mut count) = (ptr::null_mut(), ptr::null_mut(), 0);
        let mut slot = list;
        while !slot.is_null() {
            // SAFETY: SLOT1.
            let next = unsafe { shape.links.next(slot) };
            if !self.holes.have_block(shape.number(slot.cast()), &grid) {
                if count == 0 {
                    head = slot;
                } else {
                    // SAFETY: a slot of the list.
                    unsafe { shape.links.set_next(tail, slot) };
                }
                (tail, count) = (slot, count + 1);
            }
            slot = next;
        }
        if count > 0 {
            // SAFETY: a slot of the list.
            unsafe { shape.links.set_next(tail, ptr::null_mut()) };
        }
        (head, count)
    }
}
