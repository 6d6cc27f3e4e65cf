//! [`Pages`]: the layer below spans.

use core::ptr::NonNull;

use super::class::SizeClass;
use super::span::{Span, SpanMemory};

/// Provides memory for spans, finds the span of an address, and serves single blocks.
///
/// # Safety
/// An implementation promises:
/// 1. memory from `alloc_span` and `alloc_block` is valid for reads and writes, has the requested length and alignment,
///    and belongs to the caller alone until it is freed. The same is true of the place for the record, which also keeps
///    its address and stays readable as long as the implementation lives;
/// 2. `span_of` returns the record of the span in use that contains the address, and `None` for an address in no
///    span; any holder of a block may call it.
pub unsafe trait Pages {
    /// Returns the length of a span for blocks of this class, or 0 if such blocks are served singly. The result is
    /// always the same for a class.
    fn span_bytes(&self, class: SizeClass) -> usize;

    /// Allocates memory for a span of a class that has spans. The memory has the length of the class's spans and starts
    /// at a multiple of the largest small alignment.
    fn alloc_span(&mut self, class: SizeClass) -> Option<SpanMemory>;

    /// Allocates memory for a span, only from held memory. This is called first. If there is no such memory, unneeded
    /// cached blocks are flushed before [`alloc_span`](Self::alloc_span) is called.
    fn alloc_held_span(&mut self, class: SizeClass) -> Option<SpanMemory> {
        self.alloc_span(class)
    }

    /// Returns the bytes that are held and free. When few of them are left, cached blocks are flushed before the heap
    /// grows. Returns `u64::MAX` if the number is unknown; cached blocks are then flushed only once the heap grows.
    /// O(1), without a wait.
    fn free_bytes(&self) -> u64 {
        u64::MAX
    }

    /// Returns the bytes that the bins of a thread's cache may hold together. The number may change at any time; a cache
    /// that has more shrinks with its next refills. O(1), without a wait.
    fn cache_bytes(&self) -> usize {
        usize::MAX
    }

    /// Returns whether memory is under pressure. A set then caches blocks only in its bins. O(1), without a wait.
    fn under_pressure(&self) -> bool {
        false
    }

    /// Frees the memory of a span.
    ///
    /// # Safety
    /// `span` is the record of a span from `alloc_span` with no used block (SPAN5).
    unsafe fn free_span(&mut self, span: *mut Span);

    /// Returns the length of the pages in which memory can be returned to the system while its addresses stay. This is
    /// a power of two, and spans start at a multiple of it. Returns 0 if memory cannot be returned. The result is
    /// always the same.
    fn page_bytes(&self) -> usize {
        0
    }

    /// Discards the memory of whole pages. Their contents may be lost, and they can be written again. Returns the cost
    /// beyond up to three system calls, in blocks of the budget of [`SpanSet::settle`](super::SpanSet::settle). Returns
    /// `None` if the pages might not read as zero now. This is called only if [`page_bytes`](Self::page_bytes) is not
    /// 0.
    ///
    /// # Safety
    /// The pages lie in a span, and no byte of them is in use.
    unsafe fn discard(&mut self, _start: *mut u8, _bytes: usize) -> Option<usize> {
        None
    }

    /// Notes that `bytes` bytes of spans were returned to the system: their pages were discarded, and their blocks
    /// cannot be allocated until [`note_reused`](Self::note_reused).
    fn note_discarded(&mut self, _bytes: usize) {}

    /// Notes that the blocks in `bytes` bytes of these can be allocated again, or that their span is released.
    fn note_reused(&mut self, _bytes: usize) {}

    /// Returns the span that contains `block`.
    fn span_of(&self, block: *mut u8) -> Option<NonNull<Span>>;

    /// Allocates a single block.
    fn alloc_block(&mut self, bytes: usize, align: usize) -> Option<NonNull<u8>>;

    /// Frees a single block.
    ///
    /// # Safety
    /// `block` is from `alloc_block`, or was cached by [`ThreadCache::put_large`](super::ThreadCache::put_large), and
    /// belongs to the caller.
    unsafe fn free_block(&mut self, block: *mut u8);
}
