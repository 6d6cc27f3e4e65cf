//! [`Pages`]: what spans need from below.

use core::ptr::NonNull;

use super::class::SizeClass;
use super::span::{Span, SpanMemory};

/// Gives memory for spans, knows which span an address lies in, and serves single blocks.
///
/// # Safety
/// An implementation promises:
/// 1. memory from `alloc_span` and `alloc_block` is valid for reads and writes, as long as asked,
///    aligned as asked, and nobody else's until it is freed; so is the place for the record, which
///    keeps its address and stays readable as long as the implementation lives;
/// 2. `span_of` gives the record of the span in use that contains the address, and `None` for what
///    lies in no span; it may be called by anybody who holds a block.
pub unsafe trait Pages {
    /// Length of a span for blocks of this class, or 0 if such blocks are to be served singly. A
    /// class has one answer for ever.
    fn span_bytes(&self, class: SizeClass) -> usize;

    /// Memory for a span of a class that has spans, as long as they are, at a multiple of the largest
    /// small alignment.
    fn alloc_span(&mut self, class: SizeClass) -> Option<SpanMemory>;

    /// Memory for a span that is held already, asked for first: if there is none, what is kept at hand and
    /// not needed is given up before [`alloc_span`](Self::alloc_span) is called.
    fn alloc_held_span(&mut self, class: SizeClass) -> Option<SpanMemory> {
        self.alloc_span(class)
    }

    /// Bytes that are held and free: when they come to an end, what is kept at hand is given up ahead of growth. The
    /// largest number if that is not known: then it is given up once the heap grows. O(1), without a wait.
    fn free_bytes(&self) -> u64 {
        u64::MAX
    }

    /// Whether there is pressure on memory: then a set keeps nothing at hand but what its bins hold. O(1), without a wait.
    fn under_pressure(&self) -> bool {
        false
    }

    /// Takes the memory of a span back.
    ///
    /// # Safety
    /// `span` is the record of a span from `alloc_span` with no used block (SPAN5).
    unsafe fn free_span(&mut self, span: *mut Span);

    /// Length of the pages in which memory can go back to the system while its addresses stay, a power
    /// of two; spans start at a multiple of it. 0 if it cannot. The same answer always.
    fn page_bytes(&self) -> usize {
        0
    }

    /// Takes the memory of whole pages; what they hold may be lost, and they can be written again. Returns what it cost
    /// beyond up to three system calls, in the blocks of [`SpanSet::settle`](super::SpanSet::settle)'s budget, or `None` if
    /// the pages may not read as zero now. Called only if there is a length of pages.
    ///
    /// # Safety
    /// The pages lie in a span, and nobody uses a byte of them.
    unsafe fn discard(&mut self, _start: *mut u8, _bytes: usize) -> Option<usize> {
        None
    }

    /// Told that so many bytes of spans went back: pages were discarded, and their blocks are not given meanwhile.
    fn dug(&mut self, _bytes: usize) {}

    /// Told that so many of these bytes are given again, or that their span is.
    fn filled(&mut self, _bytes: usize) {}

    /// The span that contains `block`.
    fn span_of(&self, block: *mut u8) -> Option<NonNull<Span>>;

    /// A single block.
    fn alloc_block(&mut self, bytes: usize, align: usize) -> Option<NonNull<u8>>;

    /// Takes a single block back.
    ///
    /// # Safety
    /// `block` is from `alloc_block` and the caller's.
    unsafe fn free_block(&mut self, block: *mut u8);
}
