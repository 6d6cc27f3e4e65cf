//! Spans of small blocks in an arena, and the way from a block to its span (ARENA1).

use core::ptr::NonNull;

use larder_core::small::{SizeClass, Span, SpanMemory};
use larder_core::sync::{AtomicU8, Ordering};

use super::{Arena, ClaimOutcome, SLICE_BYTES};
use crate::os::Os;
use crate::process::span_bytes;

impl<O: Os> Arena<O> {
    /// Allocates memory and a record for a span from committed memory.
    pub(crate) fn alloc_held_span(&self, class: SizeClass) -> ClaimOutcome<SpanMemory> {
        match self.alloc_held(span_bytes(class), SLICE_BYTES) {
            ClaimOutcome::Found(base) => ClaimOutcome::Found(self.make_span(base.as_ptr(), class)),
            ClaimOutcome::Full => ClaimOutcome::Full,
            ClaimOutcome::Busy => ClaimOutcome::Busy,
        }
    }

    /// Allocates memory and a record for a span. Grows the arena if necessary.
    pub(crate) fn alloc_span(&self, class: SizeClass) -> Option<SpanMemory> {
        let base = self.alloc(span_bytes(class), SLICE_BYTES)?;
        Some(self.make_span(base.as_ptr(), class))
    }

    fn make_span(&self, base: *mut u8, class: SizeClass) -> SpanMemory {
        let slice = self.slice_of(base);
        let bytes = span_bytes(class);
        self.set_heads(slice, bytes, class, |below| below as u8 + 1);
        self.residency.span_made(bytes);
        SpanMemory {
            record: self.records.wrapping_add(slice),
            base,
            clean: !self.marks.any(base.addr(), bytes),
        }
    }

    /// Frees a span's memory; `idle` is set if that memory has already been idle for long.
    ///
    /// # Safety
    /// The record belongs to a span of this arena that has no used blocks.
    pub(crate) unsafe fn free_span(&self, span: *mut Span, idle: bool) {
        // SAFETY: the record of a span, which has a shape.
        let shape = *unsafe { Span::shape(span) };
        let (base, bytes) = (shape.base.addr(), shape.bytes as usize);
        self.set_heads(self.slice_of(shape.base), bytes, SizeClass::NONE, |_| 0);
        self.residency.span_gone(bytes);
        if idle {
            self.mark_idle(base, bytes);
        } else {
            self.mark_freed(base, bytes);
        }
        self.free_in_bfc(shape.base);
    }

    /// Returns the class of each slice's span.
    pub(crate) const fn classes(&self) -> &'static [AtomicU8] {
        self.classes
    }

    /// Returns the span that contains a block of this arena.
    #[inline]
    pub(crate) fn span_of(&self, block: *mut u8) -> Option<NonNull<Span>> {
        let slice = self.slice_of(block);
        // Relaxed: a thread that holds a block got it from a thread that saw its span (ARENA1).
        let head = self.heads.get(slice)?.load(Ordering::Relaxed);
        if head == 0 {
            return None;
        }
        NonNull::new(self.records.wrapping_add(slice + 1 - head as usize))
    }

    /// Returns the class of the span that contains an address, and whether a block starts there;
    /// `None` if the address lies in no span. Reads only the tables, as any thread may (ARENA1).
    pub(crate) fn look_up(&self, address: *mut u8) -> Option<(SizeClass, bool)> {
        let slice = self.slice_of(address);
        // Relaxed: a thread that holds a block there got it from a thread that saw its span. Other
        // threads get an arbitrary answer.
        let head = usize::from(self.heads.get(slice)?.load(Ordering::Relaxed));
        let class = SizeClass::from_entry(self.classes.get(slice)?.load(Ordering::Relaxed));
        if head == 0 || class == SizeClass::NONE {
            return None;
        }
        let base = self.start.addr() + (slice + 1).saturating_sub(head) * SLICE_BYTES;
        let (offset, bytes) = (address.addr() - base, class.block_bytes());
        let is_whole = offset / bytes < span_bytes(class) / bytes;
        Some((class, is_whole && offset.is_multiple_of(bytes)))
    }

    #[inline]
    fn slice_of(&self, block: *mut u8) -> usize {
        block.addr().wrapping_sub(self.start.addr()) / SLICE_BYTES
    }

    fn set_heads(&self, slice: usize, bytes: usize, class: SizeClass, head: impl Fn(usize) -> u8) {
        for below in 0..bytes / SLICE_BYTES {
            if let Some(entry) = self.classes.get(slice + below) {
                entry.store(class.index() as u8, Ordering::Relaxed);
            }
            if let Some(entry) = self.heads.get(slice + below) {
                entry.store(head(below), Ordering::Relaxed);
            }
        }
    }
}
