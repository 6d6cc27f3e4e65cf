//! [`PagesOf`]: the source of spans of small blocks.

use core::ptr::NonNull;

use larder_core::small::{Pages, SizeClass, Span, SpanMemory};

use super::Process;
use crate::arena::{Arena, ClaimOutcome, SLICE_BYTES};
use crate::os::Os;

/// Maximum size in bytes of blocks in spans of one slice; larger blocks have spans of eight.
const SMALL_SPAN_BLOCK: usize = 8 << 10;
const LARGE_SPAN_BYTES: usize = 8 * SLICE_BYTES;

/// A process as a source of spans. `IDLE` says that freed spans have been idle for long.
pub(crate) struct PagesOf<O: Os, const IDLE: bool = false>(&'static Process<O>);

impl<O: Os> Process<O> {
    /// Returns the source of spans, for freeing spans that were in use until now.
    pub(crate) const fn pages(&'static self) -> PagesOf<O> {
        PagesOf(self)
    }

    /// Returns the source of spans, for freeing spans that have been idle for long.
    pub(crate) const fn idle_pages(&'static self) -> PagesOf<O, true> {
        PagesOf(self)
    }
}

// SAFETY: promise 1: spans are blocks of BFCs over ranges that do not overlap, committed; records
// lie in tables that are never freed. Promise 2: ARENA1.
unsafe impl<O: Os, const IDLE: bool> Pages for PagesOf<O, IDLE> {
    fn span_bytes(&self, class: SizeClass) -> usize {
        span_bytes(class)
    }

    fn alloc_span(&mut self, class: SizeClass) -> Option<SpanMemory> {
        self.0.memory_limit.take(span_bytes(class));
        // With room for the alignment.
        self.0.find_in_arenas(
            span_bytes(class) + SLICE_BYTES,
            |arena| arena.alloc_held_span(class),
            |arena| arena.alloc_span(class),
        )
    }

    fn alloc_held_span(&mut self, class: SizeClass) -> Option<SpanMemory> {
        match (self.0).find_held(span_bytes(class), |arena| arena.alloc_held_span(class)) {
            ClaimOutcome::Found(memory) => {
                self.0.memory_limit.take(span_bytes(class));
                Some(memory)
            }
            ClaimOutcome::Full => None,
            // Try another arena rather than wait.
            ClaimOutcome::Busy => self.alloc_span(class),
        }
    }

    fn free_bytes(&self) -> u64 {
        let free = self.0.arenas().map(Arena::free_bytes_soon);
        // The number is unknown while an arena's lock is taken.
        free.sum::<Option<u64>>().unwrap_or(u64::MAX)
    }

    fn cache_bytes(&self) -> usize {
        self.0.cache_bytes()
    }

    fn under_pressure(&self) -> bool {
        self.0.memory_limit.under_pressure()
    }

    unsafe fn free_span(&mut self, span: *mut Span) {
        // SAFETY: the record of a span in use.
        let shape = unsafe { Span::shape(span) };
        let base = shape.base;
        self.0.memory_limit.free(shape.bytes as usize);
        if let Some(arena) = self.0.arena_of(base) {
            // SAFETY: the record of a span of this arena, which the caller gives up with no block
            // of it used.
            unsafe { arena.free_span(span, IDLE) };
        }
    }

    fn page_bytes(&self) -> usize {
        self.0.os.page_bytes()
    }

    fn note_discarded(&mut self, bytes: usize) {
        self.0.memory_limit.note_discarded(bytes);
    }

    fn note_reused(&mut self, bytes: usize) {
        self.0.memory_limit.note_reused(bytes);
    }

    unsafe fn discard(&mut self, start: *mut u8, bytes: usize) -> Option<usize> {
        let arena = self.0.arena_of(start)?;
        let asks = self.0.purger.asks(&self.0.os);
        // SAFETY: committed with the span; the caller promises that these pages are not used.
        let given = unsafe { arena.discard_hole(start, bytes, asks) }?;
        self.0.purger.count_purged(given.bytes);
        Some(given.split_cost())
    }

    #[inline]
    fn span_of(&self, block: *mut u8) -> Option<NonNull<Span>> {
        self.0.arena_of(block)?.span_of(block)
    }

    fn alloc_block(&mut self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        self.0.alloc_in_arenas(bytes, align)
    }

    unsafe fn free_block(&mut self, block: *mut u8) {
        let Some(arena) = self.0.arena_of(block) else {
            return;
        };
        self.0.memory_limit.free(arena.free_cached(block, IDLE));
    }
}

/// Returns the length of a span for a class.
pub(crate) const fn span_bytes(class: SizeClass) -> usize {
    if class.block_bytes() <= SMALL_SPAN_BLOCK {
        SLICE_BYTES
    } else {
        LARGE_SPAN_BYTES
    }
}

/// By class, the factor that tests whether a block starts at an offset below 64 KiB: `offset *
/// factor`, truncated to 32 bits, is less than the factor for multiples of the block length, and
/// for no other offset. (After Lemire, Kaser and Kurz, *Faster remainder by direct computation*,
/// 2019.) Padded for an index of 8 bits.
static START_FACTORS: [u32; 256] = {
    let mut factors = [0; 256];
    let mut index = 1;
    while let Some(class) = SizeClass::from_index(index) {
        // Within a slice, blocks of longer spans start at multiples of their alignment.
        let step = match span_bytes(class) == SLICE_BYTES {
            true => class.block_bytes(),
            false => class.block_align(),
        };
        factors[index] = (u32::MAX / step as u32) + 1;
        index += 1;
    }
    factors
};

/// Returns whether a block of the class may start at an address in one of its spans. For blocks
/// above 8 KiB some addresses inside blocks pass, too; for [`SizeClass::NONE`] no address does.
#[inline(always)]
pub(crate) fn may_start(class: SizeClass, block: *mut u8) -> bool {
    // Spans start at a multiple of a slice.
    let offset = (block.addr() % SLICE_BYTES) as u32;
    let factor = START_FACTORS[class.index() % START_FACTORS.len()];
    offset.wrapping_mul(factor) < factor
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_may_start_at_multiples_of_their_length_only() {
        for class in SizeClass::all().skip(1) {
            let step = match span_bytes(class) {
                SLICE_BYTES => class.block_bytes(),
                _ => class.block_align(),
            };
            for offset in 0..SLICE_BYTES {
                let block = std::ptr::without_provenance_mut(7 * SLICE_BYTES + offset);
                assert_eq!(
                    may_start(class, block),
                    offset % step == 0,
                    "{class:?} {offset}"
                );
                assert!(!may_start(SizeClass::NONE, block));
            }
        }
    }
}
