//! [`Kept`]: all spans and large blocks of one heap, in two lists.
//!
//! # Invariants
//! * KEPT1 every span of the heap except the one in `fresh` is in the list of spans, which
//!   runs through [`Span::neighbours`]. These spans have no owner.
//! * KEPT2 every large block has a [`Large`] behind its bytes, at the next multiple of the
//!   alignment of [`Large`], and all these trailers form one list.

use core::alloc::Layout;
use core::ptr::{self, NonNull};

use larder_core::small::{Fresh, Pages, SizeClass, Span, SpanMemory};

use crate::process::{PROCESS, span_bytes};

/// The memory that a heap has from the arenas.
pub(super) struct Kept {
    spans: *mut Span,
    /// A span whose record is not written yet.
    fresh: *mut Span,
    larges: *mut Large,
    large_blocks: u64,
    large_bytes: u64,
}

/// The trailer of a large block.
struct Large {
    prev: *mut Large,
    next: *mut Large,
    block: *mut u8,
    /// Length of the block with this trailer.
    bytes: usize,
}

impl Large {
    /// Returns the offset of a block's trailer, and the length of block and trailer.
    fn place(bytes: usize) -> Option<(usize, usize)> {
        let at = bytes.checked_next_multiple_of(align_of::<Self>())?;
        Some((at, at.checked_add(size_of::<Self>())?))
    }

    /// Returns the trailer of a block of `bytes` bytes.
    fn of(block: NonNull<u8>, bytes: usize) -> *mut Self {
        let at = bytes.next_multiple_of(align_of::<Self>());
        block.as_ptr().wrapping_add(at).cast()
    }
}

impl Kept {
    pub(super) const NONE: Self = Self {
        spans: ptr::null_mut(),
        fresh: ptr::null_mut(),
        larges: ptr::null_mut(),
        large_blocks: 0,
        large_bytes: 0,
    };

    /// Returns the number of large blocks, and their bytes with their trailers.
    pub(super) const fn large(&self) -> (u64, u64) {
        (self.large_blocks, self.large_bytes)
    }

    /// Enters the newly made span, if there is one (KEPT1).
    pub(super) fn link_fresh(&mut self) {
        let span = core::mem::replace(&mut self.fresh, ptr::null_mut());
        if span.is_null() {
            return;
        }
        let first = self.spans;
        // SAFETY: ours and without an owner (KEPT1).
        unsafe { Span::set_neighbours(span, ptr::null_mut(), first) };
        if !first.is_null() {
            // SAFETY: listed spans are ours and without an owner (KEPT1).
            let (_, next) = unsafe { Span::neighbours(first) };
            // SAFETY: listed spans are ours and without an owner (KEPT1).
            unsafe { Span::set_neighbours(first, span, next) };
        }
        self.spans = span;
    }

    /// Takes a span out of the list.
    ///
    /// # Safety
    /// The span is in the list.
    unsafe fn unlink_span(&mut self, span: *mut Span) {
        // SAFETY: listed spans are ours and without an owner (KEPT1).
        let (prev, next) = unsafe { Span::neighbours(span) };
        if prev.is_null() {
            self.spans = next;
        } else {
            // SAFETY: listed spans are ours and without an owner (KEPT1).
            let (before, _) = unsafe { Span::neighbours(prev) };
            // SAFETY: listed spans are ours and without an owner (KEPT1).
            unsafe { Span::set_neighbours(prev, before, next) };
        }
        if !next.is_null() {
            // SAFETY: listed spans are ours and without an owner (KEPT1).
            let (_, behind) = unsafe { Span::neighbours(next) };
            // SAFETY: listed spans are ours and without an owner (KEPT1).
            unsafe { Span::set_neighbours(next, prev, behind) };
        }
    }

    /// Allocates a block without a class.
    pub(super) fn alloc_large(&mut self, layout: Layout) -> Option<Fresh> {
        let (_, bytes) = Large::place(layout.size())?;
        let align = layout.align().max(align_of::<Large>());
        let block = PROCESS.alloc_large(bytes, align)?;
        // SAFETY: ours, with room for the trailer.
        unsafe { self.link_large(block, layout.size()) };
        Some(Fresh {
            block,
            clean: false,
        })
    }

    /// Zeroes the parts of a newly allocated large block that are not known to be zero.
    ///
    /// # Safety
    /// The block is the caller's and `bytes` long.
    pub(super) unsafe fn zero_large(block: NonNull<u8>, bytes: usize) {
        // SAFETY: the block is the caller's and that long; the trailer lies behind it.
        unsafe { PROCESS.zero_large(block.as_ptr(), bytes) };
    }

    /// Writes the trailer of a block and enters it (KEPT2).
    ///
    /// # Safety
    /// The block is ours, in no list, and has room for a trailer behind `bytes` bytes.
    unsafe fn link_large(&mut self, block: NonNull<u8>, bytes: usize) {
        let large = Large::of(block, bytes);
        let bytes = large.addr() - block.addr().get() + size_of::<Large>();
        // SAFETY: the trailer lies in the block, behind its bytes, and the block is ours.
        unsafe {
            large.write(Large {
                prev: ptr::null_mut(),
                next: self.larges,
                block: block.as_ptr(),
                bytes,
            });
        }
        // SAFETY: a listed trailer is ours.
        if let Some(next) = unsafe { self.larges.as_mut() } {
            next.prev = large;
        }
        self.larges = large;
        self.large_blocks += 1;
        self.large_bytes += bytes as u64;
    }

    /// Takes a block out of the list. Returns its length with the trailer.
    ///
    /// # Safety
    /// The block is ours, with a trailer behind `bytes` bytes.
    unsafe fn unlink_large(&mut self, block: NonNull<u8>, bytes: usize) -> usize {
        // SAFETY: KEPT2: the block has a trailer there.
        let Large {
            prev, next, bytes, ..
        } = unsafe { Large::of(block, bytes).read() };
        // SAFETY: null, or a listed trailer, which is ours.
        match unsafe { prev.as_mut() } {
            Some(prev) => prev.next = next,
            None => self.larges = next,
        }
        // SAFETY: null, or a listed trailer, which is ours.
        if let Some(next) = unsafe { next.as_mut() } {
            next.prev = prev;
        }
        self.large_blocks -= 1;
        self.large_bytes -= bytes as u64;
        bytes
    }

    /// Frees a large block.
    ///
    /// # Safety
    /// The block is one of ours, of this layout, given up by the caller.
    pub(super) unsafe fn free_large(&mut self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: one of our blocks, of this layout, so it is linked (KEPT2).
        let bytes = unsafe { self.unlink_large(block, layout.size()) };
        PROCESS.free_large(block.as_ptr(), bytes);
    }

    /// Resizes a large block in place. Returns whether that was possible.
    ///
    /// # Safety
    /// The block is one of ours, of the old layout.
    pub(super) unsafe fn resize_large(
        &mut self,
        block: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> bool {
        let Some((_, new_bytes)) = Large::place(new.size()) else {
            return false;
        };
        // SAFETY: one of our blocks, of the old layout, so it is linked (KEPT2).
        let old_bytes = unsafe { self.unlink_large(block, old.size()) };
        let resized = PROCESS.resize_large(block.as_ptr(), old_bytes, new_bytes);
        let bytes = if resized { new.size() } else { old.size() };
        // SAFETY: taken out above, with room for a trailer behind either.
        unsafe { self.link_large(block, bytes) };
        resized
    }

    /// Frees all spans and large blocks.
    ///
    /// # Safety
    /// No block of the heap is used any more, and neither is the heap's set.
    pub(super) unsafe fn free_all(&mut self) {
        let mut span = self.spans;
        while !span.is_null() {
            // SAFETY: KEPT1: a listed span has neighbours, and is ours.
            let (_, next) = unsafe { Span::neighbours(span) };
            // SAFETY: one of our spans (KEPT1), of which no block is used.
            unsafe { PROCESS.pages().free_span(span) };
            span = next;
        }
        let mut large = self.larges;
        while !large.is_null() {
            // SAFETY: KEPT2: a listed trailer, read before its memory is freed.
            let Large {
                next, block, bytes, ..
            } = unsafe { large.read() };
            PROCESS.free_large(block, bytes);
            large = next;
        }
        *self = Self::NONE;
    }
}

// SAFETY: promises 1 and 2 are kept by the process's pages.
unsafe impl Pages for Kept {
    fn span_bytes(&self, class: SizeClass) -> usize {
        span_bytes(class)
    }

    fn alloc_span(&mut self, class: SizeClass) -> Option<SpanMemory> {
        PROCESS.wait_for_fork();
        let memory = PROCESS.pages().alloc_span(class)?;
        self.fresh = memory.record;
        Some(memory)
    }

    unsafe fn free_span(&mut self, span: *mut Span) {
        // SAFETY: a span of ours, linked when it was made.
        unsafe { self.unlink_span(span) };
        // SAFETY: a span that the set gives up, with no block of it used.
        unsafe { PROCESS.pages().free_span(span) };
    }

    fn span_of(&self, block: *mut u8) -> Option<NonNull<Span>> {
        PROCESS.pages().span_of(block)
    }

    /// Returns `None`: a block without a span could not be found again.
    fn alloc_block(&mut self, _: usize, _: usize) -> Option<NonNull<u8>> {
        None
    }

    unsafe fn free_block(&mut self, _: *mut u8) {}
}
