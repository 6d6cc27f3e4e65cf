//! [`RegionPages`]: spans and single blocks from one region of memory, over a BFC.
//!
//! All tables are at the front of the region itself:
//!
//! ```text
//!  start                                                              start + bytes
//!   │ chunks │ index, 4 B a granule │ records and heads of spans, one a page │ granules ... │
//! ```
//! A page here is the shortest span. Granules, pages and the longest span grow with the region, so that the tables
//! remain a few hundredths of the region, and a span remains a small share of it.
//!
//! # Invariants
//! * RPAGES1 `heads[page]` is 0 if the page lies in no span, otherwise 1 + the number of pages down to the span's
//!   first one. The record of a span is that of its first page.

use core::ops::RangeInclusive;
use core::ptr::NonNull;

use super::class::{CLASSES, MAX_SMALL_ALIGN, SizeClass};
use super::pages::Pages;
use super::span::{Span, SpanMemory};
use crate::best_fit::BestFit;
use crate::block::{Block, Request};
use crate::engine::Chunk;
use crate::error::RegionError;
use crate::page_index::PageIndex;
use crate::regions::{RegionConfig, RegionPool};
use crate::sync::AtomicU32;
use crate::units::{Addr, AddrRange, Align, Granule};

/// Length in bytes of the smallest region whose memory outweighs its tables.
pub(super) const MIN_BYTES: usize = 32 << 10;
/// Bytes of the region for each chunk record; there are [`LEAST_CHUNKS`] records in addition. Blocks shorter than a
/// page come from spans, and a free chunk may lie between any two chunks.
const BYTES_PER_CHUNK: usize = 2048;
const LEAST_CHUNKS: usize = 64;
/// Number of pages in a region, within the bounds on a page's length. One span record for each page suffices.
const PAGES: usize = 1024;
const MAX_PAGE_BYTES: usize = 64 << 10;
/// The longest block that comes from a span is the region's length divided by this, within bounds. Longer blocks are
/// served singly.
const BLOCKS_IN_REGION: usize = 256;
const MAX_BLOCK_BYTES: usize = 4 << 10;
/// Bounds on the minimum number of blocks in a span whose blocks do not fill a page. The minimum is one block for each
/// half MiB of the region: two in a region of a MiB, where the unused part of each class's last span matters.
const SPAN_BLOCKS: RangeInclusive<usize> = 2..=8;
const REGION_BYTES_PER_BLOCK: usize = 512 << 10;
/// In regions below this many bytes, sizes above `FINE_BYTES` are rounded to `COARSE_SPACING` for fewer classes, since
/// each class has a span that is not full.
const FEW_CLASSES_BELOW: usize = 2 << 20;
const FINE_BYTES: usize = 128;
const COARSE_SPACING: usize = 64;
/// A block that moves because it grows is cut from a chunk of this many times its length, which leaves room for three
/// more doublings.
const GROWTH_ROOM: usize = 8;
/// The granule is the longest span's length divided by this, so that rounding wastes little of a single block.
const GRANULE_SHARE: usize = 64;
const MIN_GRANULE_BYTES: usize = 256;

// A head has one byte, and a granule is never longer than a page.
const _: () = assert!(MAX_PAGE_BYTES / MAX_SMALL_ALIGN < 255);
const _: () = assert!(MAX_PAGE_BYTES / GRANULE_SHARE <= MAX_SMALL_ALIGN);
// The longest span is no longer than the longest page.
const _: () = assert!(*SPAN_BLOCKS.end() * MAX_BLOCK_BYTES <= MAX_PAGE_BYTES);

/// The lengths that follow from the region's length.
#[derive(Clone, Copy)]
struct RegionLengths {
    page: usize,
    span_blocks: usize,
    max_block: usize,
    granule: usize,
    /// Sizes above `FINE_BYTES` are rounded to this, a power of two.
    spacing: usize,
}

impl RegionLengths {
    fn new(bytes: usize) -> Self {
        let power = |bytes: usize| 1 << bytes.max(1).ilog2();
        let page = power(bytes / PAGES).clamp(MAX_SMALL_ALIGN, MAX_PAGE_BYTES);
        let span_blocks =
            power(bytes / REGION_BYTES_PER_BLOCK).clamp(*SPAN_BLOCKS.start(), *SPAN_BLOCKS.end());
        let wanted = span_blocks * power(bytes / BLOCKS_IN_REGION).min(MAX_BLOCK_BYTES);
        let max_span = wanted.max(page);
        let max_block = (max_span / span_blocks).min(MAX_BLOCK_BYTES);
        let granule = (max_span / GRANULE_SHARE).max(MIN_GRANULE_BYTES);
        Self {
            page,
            span_blocks,
            max_block,
            granule,
            spacing: match bytes {
                0..FEW_CLASSES_BELOW => COARSE_SPACING,
                _ => 1,
            },
        }
    }
}

/// The memory below a heap that has one region.
pub(super) struct RegionPages {
    pool: RegionPool<'static>,
    /// Every block, by its address.
    index: PageIndex<'static>,
    /// Start of the region, from which pointers into it are derived.
    region: *mut u8,
    bytes: usize,
    /// Bytes of the tables.
    table_bytes: usize,
    /// Records and heads of spans, by page.
    records: *mut Span,
    heads: &'static mut [u8],
    span_bytes: u64,
    lengths: RegionLengths,
    /// Number of classes that have spans; they are the lowest ones.
    classes: usize,
}

// SAFETY: the region and everything in it belong to this value.
unsafe impl Send for RegionPages {}

/// Lays out tables one after the other.
struct TableCursor {
    at: *mut u8,
    left: usize,
}

impl TableCursor {
    /// Returns a pointer to room for a table of `count` entries.
    fn place<T>(&mut self, count: usize) -> Option<*mut T> {
        let pad = self.at.align_offset(align_of::<T>());
        let bytes = count.checked_mul(size_of::<T>())?.checked_add(pad)?;
        self.left = self.left.checked_sub(bytes)?;
        let start = self.at.wrapping_add(pad).cast();
        self.at = self.at.wrapping_add(bytes);
        Some(start)
    }

    /// Creates a table of `count` equal entries.
    ///
    /// # Safety
    /// The `left` bytes of memory from `at` on belong to the caller, for the rest of the program.
    unsafe fn table<T>(&mut self, count: usize, entry: fn() -> T) -> Option<&'static mut [T]> {
        let start = self.place::<T>(count)?;
        for index in 0..count {
            // SAFETY: the entry is aligned and lies inside the memory, of which `place` has checked the `left` bytes.
            unsafe { start.wrapping_add(index).write(entry()) };
        }
        // SAFETY: all entries are written, and this memory is used for nothing else.
        Some(unsafe { core::slice::from_raw_parts_mut(start, count) })
    }
}

impl RegionPages {
    /// Puts the tables into the region and manages the rest of it.
    ///
    /// # Safety
    /// The region is valid for reads and writes, and belongs to this value alone for the rest of the program.
    pub(super) unsafe fn new(start: *mut u8, bytes: usize) -> Result<Self, RegionError> {
        if bytes < MIN_BYTES || bytes > isize::MAX as usize {
            return Err(RegionError::NoRoom);
        }
        let lengths = RegionLengths::new(bytes);
        let Some(granule) = Granule::new(lengths.granule as u64) else {
            return Err(RegionError::NoRoom);
        };
        let pad = start.align_offset(lengths.granule);
        let mut cursor = TableCursor {
            at: start.wrapping_add(pad),
            left: bytes - pad,
        };
        let first = Addr::new(cursor.at.addr() as u64);
        // The index counts from the region's start, although no block lies in the tables there.
        let granules = cursor.left / lengths.granule;
        let pages = bytes / lengths.page + 2;
        // SAFETY: the memory belongs to the caller, here and below.
        let chunks =
            unsafe { cursor.table(bytes / BYTES_PER_CHUNK + LEAST_CHUNKS, || Chunk::VACANT) };
        // SAFETY: the memory belongs to the caller and follows the previous table.
        let entries = unsafe { cursor.table(granules, || AtomicU32::new(0)) };
        // SAFETY: the memory belongs to the caller and follows the previous table.
        let heads = unsafe { cursor.table(pages, || 0u8) };
        let (Some(chunks), Some(entries), Some(heads), Some(records)) =
            (chunks, entries, heads, cursor.place(pages))
        else {
            return Err(RegionError::NoRoom);
        };
        let config = RegionConfig {
            granule_bytes: granule.bytes(),
            ..RegionConfig::fixed()
        };
        let mut pool = RegionPool::new(config, chunks).map_err(|_| RegionError::NoRoom)?;
        let pad = cursor.at.align_offset(lengths.granule);
        let base = cursor.at.wrapping_add(pad);
        let left = cursor.left.saturating_sub(pad) & !(lengths.granule - 1);
        let range = AddrRange::new(Addr::new(base.addr() as u64), left as u64)
            .ok_or(RegionError::NoRoom)?;
        pool.add_region(range).map_err(|_| RegionError::NoRoom)?;
        Ok(Self {
            pool,
            index: PageIndex::new(first, granule, entries),
            region: start,
            bytes,
            table_bytes: bytes - left,
            records,
            heads,
            span_bytes: 0,
            lengths,
            classes: (0..CLASSES)
                .filter_map(SizeClass::from_index)
                .take_while(|class| class.block_bytes() <= lengths.max_block)
                .count(),
        })
    }

    /// Returns the class that serves a layout from a span, if there is one.
    #[inline]
    pub(super) fn class_of(&self, size: usize, align: usize) -> Option<SizeClass> {
        // No layout is so long that this overflows.
        let size = match size {
            0..=FINE_BYTES => size,
            _ => (size + self.lengths.spacing - 1) & !(self.lengths.spacing - 1),
        };
        SizeClass::of(size, align).filter(|class| class.index() < self.classes)
    }

    /// Returns the current byte counts. O(chunks).
    pub(super) fn numbers(&self) -> RegionNumbers {
        let report = self.pool.report();
        RegionNumbers {
            bytes: self.bytes as u64,
            table_bytes: self.table_bytes as u64,
            single_bytes: report.live_bytes - self.span_bytes,
            span_bytes: self.span_bytes,
            free_bytes: report.free_bytes,
            largest_free_bytes: report.largest_free_bytes,
        }
    }

    /// Returns whether the BFC's invariants hold.
    pub(super) fn is_sound(&self) -> bool {
        self.pool.check_invariants().is_ok()
    }

    /// Resizes a single block in place. Returns whether that was possible.
    pub(super) fn resize_block(&mut self, block: *mut u8, bytes: usize) -> bool {
        let Some(block) = self.block_at(block) else {
            return false;
        };
        // In either case the block keeps its address and handle.
        self.pool.resize(block, bytes as u64).is_ok()
    }

    /// Allocates a single block with free memory after it, for a block that will probably grow again.
    pub(super) fn alloc_before_room(&mut self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        let block = self.alloc_block(bytes.checked_mul(GROWTH_ROOM)?, align)?;
        self.resize_block(block.as_ptr(), bytes);
        Some(block)
    }

    /// Returns the length of the single block that starts here, or 0.
    pub(super) fn block_bytes(&self, block: *mut u8) -> u64 {
        self.block_at(block).map_or(0, |block| block.bytes())
    }

    /// Returns the single block that starts here.
    fn block_at(&self, block: *mut u8) -> Option<Block> {
        let found = self.index.find(Addr::new(block.addr() as u64))?;
        self.pool.block_from_raw(found).ok()
    }

    /// Returns the region's first byte.
    pub(super) const fn start(&self) -> *mut u8 {
        self.region
    }

    /// Frees a single block. Returns `false` if there is none at this address.
    pub(super) fn free_single(&mut self, block: *mut u8) -> bool {
        let block = self.block_at(block);
        block.is_some_and(|block| self.pool.free(block).is_ok())
    }

    fn pointer(&self, addr: Addr) -> *mut u8 {
        // An address from the BFC lies in the region, and so fits a usize.
        self.region.with_addr(addr.get() as usize)
    }

    fn page_of(&self, block: *mut u8) -> usize {
        let first = self.region.addr() / self.lengths.page;
        (block.addr() / self.lengths.page).wrapping_sub(first)
    }

    /// Sets the head of each page of a span to the result of `head` for the page's number within the span.
    fn set_heads(&mut self, base: *mut u8, bytes: usize, head: impl Fn(usize) -> u8) {
        let page = self.page_of(base);
        let count = bytes / self.lengths.page;
        for (below, entry) in self.heads.iter_mut().skip(page).take(count).enumerate() {
            *entry = head(below);
        }
    }
}

/// Byte counts of a region.
pub(super) struct RegionNumbers {
    pub(super) bytes: u64,
    pub(super) table_bytes: u64,
    pub(super) single_bytes: u64,
    pub(super) span_bytes: u64,
    pub(super) free_bytes: u64,
    pub(super) largest_free_bytes: u64,
}

// SAFETY: promise 1: chunks of the BFC do not overlap and lie in the region, which belongs to this value; records are
// in a table that stays. Promise 2 follows from RPAGES1.
unsafe impl Pages for RegionPages {
    fn span_bytes(&self, class: SizeClass) -> usize {
        if class.index() >= self.classes {
            return 0;
        }
        let least = self.lengths.span_blocks * class.block_bytes();
        least.next_power_of_two().max(self.lengths.page)
    }

    fn alloc_span(&mut self, class: SizeClass) -> Option<SpanMemory> {
        let bytes = self.span_bytes(class);
        let base = self.alloc_block(bytes, self.lengths.page)?.as_ptr();
        self.set_heads(base, bytes, |below| below as u8 + 1);
        self.span_bytes += bytes as u64;
        Some(SpanMemory {
            record: self.records.wrapping_add(self.page_of(base)),
            base,
            clean: false,
        })
    }

    unsafe fn free_span(&mut self, span: *mut Span) {
        // SAFETY: the span belongs to the caller and has no used blocks (SPAN5).
        let shape = *unsafe { Span::shape(span) };
        self.set_heads(shape.base, shape.bytes as usize, |_| 0);
        self.span_bytes -= u64::from(shape.bytes);
        self.free_single(shape.base);
    }

    fn span_of(&self, block: *mut u8) -> Option<NonNull<Span>> {
        let page = self.page_of(block);
        match self.heads.get(page) {
            None | Some(0) => None,
            Some(&head) => NonNull::new(self.records.wrapping_add(page + 1 - head as usize)),
        }
    }

    fn alloc_block(&mut self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        let request = Request::new(bytes.max(1) as u64).aligned(Align::new(align as u64)?);
        let block = self.pool.alloc(&request).ok()?.block;
        self.index.enter(&block);
        NonNull::new(self.pointer(block.into_raw().addr))
    }

    unsafe fn free_block(&mut self, block: *mut u8) {
        self.free_single(block);
    }
}
