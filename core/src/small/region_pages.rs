//! [`RegionPages`]: spans and single blocks from regions of memory, over a BFC.
//!
//! The tables of a region are at its front:
//!
//! ```text
//!  start                                                                          start + bytes
//!   │ chunks of all │ Region │ index, 4 B a granule │ heads and records of spans, one a page │ granules ... │
//! ```
//! A page here is the shortest span. Granules, pages and the longest span grow with the first region, so that the
//! tables remain a few hundredths of the region, and a span remains a small share of it. The chunk records move into
//! each further region; those of the region before are not used again.
//!
//! # Invariants
//! * RPAGES1 `heads[page]` is 0 if the page lies in no span, otherwise 1 + the number of pages down to the span's
//!   first one. The record of a span is that of its first page.

mod lengths;

use core::ptr::{self, NonNull};

use self::lengths::{FINE_BYTES, RegionLengths};
use super::class::{CLASSES, SizeClass};
use super::pages::Pages;
use super::span::{Span, SpanMemory};
use crate::best_fit::BestFit;
use crate::block::{Block, Request};
use crate::engine::Chunk;
use crate::error::RegionError;
use crate::page_index::PageIndex;
use crate::regions::{RegionConfig, RegionPool};
use crate::sync::AtomicU32;
use crate::units::{Addr, AddrRange, Align};

/// Length in bytes of the smallest region whose memory outweighs its tables.
pub(super) const MIN_BYTES: usize = 32 << 10;
/// Bytes of the region for each chunk record; there are [`LEAST_CHUNKS`] records in addition. Blocks shorter than a
/// page come from spans, and a free chunk may lie between any two chunks.
const BYTES_PER_CHUNK: usize = 2048;
const LEAST_CHUNKS: usize = 64;
/// A new region contains the chunk records of all regions if they take at most its length divided by this.
const MAX_RECORDS_SHARE: usize = 4;
/// A block that moves because it grows is cut from a chunk of this many times its length, which leaves room for three
/// more doublings.
const GROWTH_ROOM: usize = 8;

/// The memory below a heap.
pub(super) struct RegionPages {
    pool: RegionPool<'static>,
    /// The region that was added last.
    newest: Option<&'static mut Region>,
    /// Bytes of all regions.
    bytes: usize,
    span_bytes: u64,
    /// The lengths that follow from the first region.
    lengths: RegionLengths,
    /// Number of classes that have spans; they are the lowest ones.
    classes: usize,
}

/// A region with its tables. The value is the first of them.
struct Region {
    /// Start of the region, from which pointers into it are derived.
    start: *mut u8,
    bytes: usize,
    /// Every block, by its address.
    index: PageIndex<'static>,
    /// Records and heads of spans, by page.
    records: *mut Span,
    heads: &'static mut [u8],
    /// The region that was added before.
    older: Option<&'static mut Region>,
}

// SAFETY: the regions and everything in them belong to this value.
unsafe impl Send for RegionPages {}

impl Region {
    fn contains(&self, addr: usize) -> bool {
        addr.wrapping_sub(self.start.addr()) < self.bytes
    }

    /// Returns the number of the page in which an address lies, for pages of this many bytes.
    fn page_of(&self, block: *mut u8, page_bytes: usize) -> usize {
        let first = self.start.addr() / page_bytes;
        (block.addr() / page_bytes).wrapping_sub(first)
    }
}

/// Lays out tables one after the other.
struct TableCursor {
    at: *mut u8,
    left: usize,
}

impl TableCursor {
    /// Begins at the first granule of a region.
    fn new(start: *mut u8, bytes: usize, lengths: RegionLengths) -> Option<Self> {
        let pad = start.align_offset(lengths.granule);
        Some(Self {
            at: start.wrapping_add(pad),
            left: bytes.checked_sub(pad)?,
        })
    }

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

/// Returns the number of chunk records for regions of this many bytes.
const fn chunk_records(bytes: usize) -> usize {
    bytes / BYTES_PER_CHUNK + LEAST_CHUNKS
}

impl RegionPages {
    /// Writes to `at` a value that has its tables in the region and manages the rest of it. O(bytes of the tables).
    ///
    /// # Safety
    /// `at` is aligned and valid for writes, and all its bytes are 0. The region is valid for reads and writes, and
    /// belongs to this value alone for the rest of the program.
    pub(super) unsafe fn place(
        at: *mut Self,
        start: *mut u8,
        bytes: usize,
    ) -> Result<(), RegionError> {
        if bytes < MIN_BYTES || bytes > isize::MAX as usize {
            return Err(RegionError::NoRoom);
        }
        let lengths = RegionLengths::new(bytes);
        let mut cursor = TableCursor::new(start, bytes, lengths).ok_or(RegionError::NoRoom)?;
        // SAFETY: the memory belongs to the caller.
        let chunks = unsafe { cursor.table(chunk_records(bytes), || Chunk::VACANT) };
        let chunks = chunks.ok_or(RegionError::NoRoom)?;
        let config = RegionConfig {
            granule_bytes: lengths.granule as u64,
            ..RegionConfig::fixed()
        };
        // SAFETY: `at` is valid for writes and all zero, and so are its parts. The parts that are not written are
        // numbers, which are 0 in a new value.
        let pages = unsafe {
            let placed = RegionPool::place(&raw mut (*at).pool, config, chunks);
            placed.map_err(|_| RegionError::NoRoom)?;
            (&raw mut (*at).newest).write(None);
            (&raw mut (*at).lengths).write(lengths);
            &mut *at
        };
        pages.classes = (0..CLASSES)
            .filter_map(SizeClass::from_index)
            .take_while(|class| class.block_bytes() <= lengths.max_block)
            .count();
        // SAFETY: the region belongs to the caller, and the cursor is behind its first table.
        unsafe { pages.manage(start, bytes, cursor) }
    }

    /// Manages another region, too. The chunk records move into it, and there are more of them, unless they would take
    /// a large part of it. O(bytes of the tables and chunks).
    ///
    /// # Safety
    /// The region is valid for reads and writes, and belongs to this value alone for the rest of the program.
    pub(super) unsafe fn add(&mut self, start: *mut u8, bytes: usize) -> Result<(), RegionError> {
        let end = start
            .addr()
            .checked_add(bytes)
            .ok_or(RegionError::TooLarge)?;
        let overlaps = |region: &Region| {
            start.addr() < region.start.addr() + region.bytes && region.start.addr() < end
        };
        if self.regions().any(overlaps) {
            return Err(RegionError::Overlap);
        }
        let cursor = TableCursor::new(start, bytes, self.lengths);
        let mut cursor = cursor.ok_or(RegionError::NoRoom)?;
        let records = chunk_records(self.bytes + bytes);
        let chunks = match records * size_of::<Chunk>() <= bytes / MAX_RECORDS_SHARE {
            // SAFETY: the memory belongs to the caller.
            true => unsafe { cursor.table(records, || Chunk::VACANT) },
            false => None,
        };
        // SAFETY: the region belongs to the caller, and the cursor is behind its first table.
        unsafe { self.manage(start, bytes, cursor) }?;
        if let Some(chunks) = chunks {
            self.pool.move_table(chunks);
        }
        Ok(())
    }

    /// Puts the other tables at the cursor, and adds the rest of the region to the pool.
    ///
    /// # Safety
    /// The region is valid for reads and writes, and belongs to this value alone for the rest of the program. The cursor
    /// is inside the region, and the memory behind it is unused.
    unsafe fn manage(
        &mut self,
        start: *mut u8,
        bytes: usize,
        mut cursor: TableCursor,
    ) -> Result<(), RegionError> {
        let lengths = self.lengths;
        let granule = self.pool.chunks().granule();
        let region = cursor.place::<Region>(1);
        // No block lies before this address.
        let pad = cursor.at.align_offset(lengths.granule);
        let first = Addr::new(cursor.at.addr() as u64 + pad as u64);
        let granules = cursor.left.saturating_sub(pad) / lengths.granule;
        let pages = bytes / lengths.page + 2;
        // SAFETY: the memory belongs to the caller and follows the previous table.
        let entries = unsafe { cursor.table(granules, || AtomicU32::new(0)) };
        // SAFETY: the memory belongs to the caller and follows the previous table.
        let heads = unsafe { cursor.table(pages, || 0u8) };
        let (Some(region), Some(entries), Some(heads), Some(records)) =
            (region, entries, heads, cursor.place(pages))
        else {
            return Err(RegionError::NoRoom);
        };
        let pad = cursor.at.align_offset(lengths.granule);
        let base = cursor.at.wrapping_add(pad);
        let left = cursor.left.saturating_sub(pad) & !(lengths.granule - 1);
        let range = AddrRange::new(Addr::new(base.addr() as u64), left as u64)
            .ok_or(RegionError::NoRoom)?;
        let added = self.pool.add_region(range);
        added.map_err(|rejected| rejected.error)?;
        let value = Region {
            start,
            bytes,
            index: PageIndex::new(first, granule, entries),
            records,
            heads,
            older: self.newest.take(),
        };
        // SAFETY: the place is aligned, lies inside the region, and is used for nothing else.
        self.newest = Some(unsafe {
            region.write(value);
            &mut *region
        });
        self.bytes += bytes;
        Ok(())
    }

    /// Returns the regions, the newest first.
    fn regions(&self) -> impl Iterator<Item = &Region> {
        let newest = self.newest.as_deref();
        core::iter::successors(newest, |region| region.older.as_deref())
    }

    /// Returns the region that contains an address. O(regions).
    fn region_of(&self, addr: usize) -> Option<&Region> {
        self.regions().find(|region| region.contains(addr))
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
            table_bytes: self.bytes as u64 - report.reserved_bytes,
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
        let region = self.region_of(block.addr())?;
        let found = region.index.find(Addr::new(block.addr() as u64))?;
        self.pool.block_from_raw(found).ok()
    }

    /// Returns whether the tables of the newest region are among these bytes. Does not read them.
    pub(super) fn are_within(&self, start: *mut u8, bytes: usize) -> bool {
        let place = self
            .newest
            .as_deref()
            .map(|region| ptr::from_ref(region).addr());
        place.is_some_and(|place| place.wrapping_sub(start.addr()) < bytes)
    }

    /// Frees a single block. Returns `false` if there is none at this address.
    pub(super) fn free_single(&mut self, block: *mut u8) -> bool {
        let block = self.block_at(block);
        block.is_some_and(|block| self.pool.free(block).is_ok())
    }

    /// Sets the head of each page of a span to the result of `head` for the page's number within the span. Returns the
    /// record of the span.
    fn set_heads(&mut self, base: *mut u8, bytes: usize, head: impl Fn(usize) -> u8) -> *mut Span {
        let page_bytes = self.lengths.page;
        let mut next = self.newest.as_deref_mut();
        while let Some(region) = next {
            if region.contains(base.addr()) {
                let page = region.page_of(base, page_bytes);
                let count = bytes / page_bytes;
                for (below, entry) in region.heads.iter_mut().skip(page).take(count).enumerate() {
                    *entry = head(below);
                }
                return region.records.wrapping_add(page);
            }
            next = region.older.as_deref_mut();
        }
        ptr::null_mut()
    }
}

/// Lists the fields that [`RegionPages::place`] writes and those that it leaves zero. This does not compile if a field is
/// missing.
const _: fn(RegionPages) = |pages| {
    let RegionPages {
        bytes: _,
        span_bytes: _,
        // Written:
        pool: _,
        newest: _,
        lengths: _,
        classes: _,
    } = pages;
};

/// Byte counts of all regions.
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
        let record = self.set_heads(base, bytes, |below| below as u8 + 1);
        self.span_bytes += bytes as u64;
        Some(SpanMemory {
            record,
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
        let region = self.region_of(block.addr())?;
        let page = region.page_of(block, self.lengths.page);
        match region.heads.get(page) {
            None | Some(0) => None,
            Some(&head) => NonNull::new(region.records.wrapping_add(page + 1 - head as usize)),
        }
    }

    fn alloc_block(&mut self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        let request = Request::new(bytes.max(1) as u64).aligned(Align::new(align as u64)?);
        let block = self.pool.alloc(&request).ok()?.block;
        // An address from the BFC lies in a region, and so fits a usize.
        let addr = block.addr().get() as usize;
        let region = self.region_of(addr)?;
        region.index.enter(&block);
        NonNull::new(region.start.with_addr(addr))
    }

    unsafe fn free_block(&mut self, block: *mut u8) {
        self.free_single(block);
    }
}
