//! [`RegionPages`]: spans and single blocks from one region of memory, over a BFC.
//!
//! All tables lie at the front of the region itself:
//!
//! ```text
//!  start                                                              start + bytes
//!   │ chunk records │ index, 4 B a granule │ map, a pointer a page │ granules ... │
//! ```
//!
//! # Invariants
//! * P1 a map entry is the record of the span that covers the page, or null. Spans are whole pages,
//!   so an entry speaks for the whole page.
//! * P2 records come in batches from the BFC and are never given back; those of no span hang in
//!   `spare`, linked as slots are (L1).

use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};

use super::class::{CLASSES, MAX_SMALL_ALIGN, SizeClass};
use super::heap::ClaimError;
use super::pages::Pages;
use super::slot::Slot;
use super::span::{Span, SpanMemory};
use crate::bfc::{Bfc, BfcConfig, Chunk, PageIndex};
use crate::block::Request;
use crate::units::{Addr, AddrRange, Align, Granule};

/// Smallest region that is worth its tables.
const MIN_BYTES: usize = 32 << 10;
/// Spans are multiples of this, at multiples of this.
const PAGE_BYTES: usize = MAX_SMALL_ALIGN;
/// One record for so many bytes: twice what spans and single blocks of the smallest size need,
/// because a free chunk may lie between any two.
const BYTES_PER_RECORD: usize = 1024;
/// A span is at most this share of the region, so that one block of each class does not take it all.
const SPAN_SHARE: usize = 32;
const MAX_SPAN_BYTES: usize = 256 << 10;
/// A span has at least this many blocks; larger blocks are served singly.
const MIN_BLOCKS: usize = 4;
/// And if it can, this many.
const GOOD_BLOCKS: usize = 8;
/// Records of spans are got so many at a time.
const RECORD_BATCH: usize = 8;
const GRANULE: Granule = Granule::DEFAULT;

/// The memory below a heap that has one region.
pub(super) struct RegionPages {
    bfc: Bfc<'static, PageIndex<'static>>,
    /// The region, for pointers into it.
    region: *mut u8,
    bytes: usize,
    /// Bytes that the tables take.
    table_bytes: usize,
    map: &'static mut [*mut Span],
    spare: *mut Slot,
    /// Bytes of the BFC's live ones that hold records.
    record_bytes: u64,
    span_bytes: u64,
    max_span: usize,
    /// Classes below this have spans.
    classes: usize,
}

// SAFETY: the region and everything in it belong to this value.
unsafe impl Send for RegionPages {}

/// Lays tables one after the other.
struct Cursor {
    at: *mut u8,
    left: usize,
}

impl Cursor {
    /// A table of `count` entries, each made by `entry`.
    ///
    /// # Safety
    /// The memory from `at` on, `left` bytes, is the caller's for ever.
    unsafe fn table<T>(&mut self, count: usize, entry: fn() -> T) -> Option<&'static mut [T]> {
        let pad = self.at.align_offset(align_of::<T>());
        let bytes = count.checked_mul(size_of::<T>())?.checked_add(pad)?;
        self.left = self.left.checked_sub(bytes)?;
        let start = self.at.wrapping_add(pad).cast::<MaybeUninit<T>>();
        self.at = self.at.wrapping_add(bytes);
        for index in 0..count {
            // SAFETY: inside the memory, which `left` has covered, and aligned.
            unsafe { start.wrapping_add(index).write(MaybeUninit::new(entry())) };
        }
        // SAFETY: all entries are written, and nobody else has this memory.
        Some(unsafe { core::slice::from_raw_parts_mut(start.cast::<T>(), count) })
    }
}

impl RegionPages {
    /// Lays the tables into the region and takes the rest as memory.
    ///
    /// # Safety
    /// The region is valid for reads and writes and nobody else's, for ever.
    pub(super) unsafe fn new(start: *mut u8, bytes: usize) -> Result<Self, ClaimError> {
        if bytes < MIN_BYTES || bytes > isize::MAX as usize {
            return Err(ClaimError::TooSmall);
        }
        let unit = GRANULE.bytes() as usize;
        let pad = start.align_offset(unit);
        let mut cursor = Cursor {
            at: start.wrapping_add(pad),
            left: bytes - pad,
        };
        let first = Addr::new(cursor.at.addr() as u64);
        let pages = (bytes / PAGE_BYTES) + 2;
        let records = bytes / BYTES_PER_RECORD;
        // The index counts from the region's start, although the tables there are no blocks.
        let granules = cursor.left / unit;
        // SAFETY: the caller's memory, here and below.
        let chunks = unsafe { cursor.table(records, || Chunk::VACANT) };
        // SAFETY: the same.
        let entries = unsafe { cursor.table(granules, || 0u32) };
        // SAFETY: the same.
        let map = unsafe { cursor.table(pages, ptr::null_mut::<Span>) };
        let (Some(records), Some(entries), Some(map)) = (chunks, entries, map) else {
            return Err(ClaimError::TooSmall);
        };
        let index = PageIndex::new(first, GRANULE, entries);
        let mut bfc = Bfc::with_index(BfcConfig::fixed(), records, index)
            .map_err(|_| ClaimError::TooSmall)?;
        let pad = cursor.at.align_offset(unit);
        let base = cursor.at.wrapping_add(pad);
        let left = cursor.left.saturating_sub(pad) & !(unit - 1);
        let range = AddrRange::new(Addr::new(base.addr() as u64), left as u64)
            .ok_or(ClaimError::TooSmall)?;
        bfc.add_region(range).map_err(|_| ClaimError::TooSmall)?;
        let max_span = (1 << (left / SPAN_SHARE).max(1).ilog2()).clamp(PAGE_BYTES, MAX_SPAN_BYTES);
        Ok(Self {
            bfc,
            region: start,
            bytes,
            table_bytes: bytes - left,
            map,
            spare: ptr::null_mut(),
            record_bytes: 0,
            span_bytes: 0,
            max_span,
            classes: (0..CLASSES)
                .filter_map(SizeClass::from_index)
                .take_while(|class| MIN_BLOCKS * class.block_bytes() <= max_span)
                .count(),
        })
    }

    /// The class that serves a layout from a span, if one does.
    #[inline]
    pub(super) fn class_of(&self, size: usize, align: usize) -> Option<SizeClass> {
        SizeClass::of(size, align).filter(|class| class.index() < self.classes)
    }

    /// Numbers of the region: (bytes, of them tables, live single bytes, in spans, free, largest
    /// free).
    pub(super) fn numbers(&self) -> RegionNumbers {
        let report = self.bfc.report();
        RegionNumbers {
            bytes: self.bytes as u64,
            table_bytes: self.table_bytes as u64 + self.record_bytes,
            single_bytes: report.live_bytes - self.span_bytes - self.record_bytes,
            span_bytes: self.span_bytes,
            free_bytes: report.free_bytes,
            largest_free_bytes: report.largest_free_bytes,
        }
    }

    /// Whether the BFC's invariants hold.
    pub(super) fn is_sound(&self) -> bool {
        self.bfc.check_invariants().is_ok()
    }

    /// Changes the length of a single block in place; whether that was possible.
    pub(super) fn resize_block(&mut self, block: *mut u8, bytes: usize) -> bool {
        let addr = Addr::new(block.addr() as u64);
        let Ok(block) = self.bfc.block_from_addr(addr) else {
            return false;
        };
        // Either way the block stays in the table under its address.
        self.bfc.resize(block, bytes as u64).is_ok()
    }

    /// Length of the single block that starts here, or 0.
    pub(super) fn block_bytes(&self, block: *mut u8) -> u64 {
        let addr = Addr::new(block.addr() as u64);
        self.bfc.bytes_at(addr).unwrap_or(0)
    }

    /// The region's first byte.
    pub(super) const fn start(&self) -> *mut u8 {
        self.region
    }

    /// Takes a single block back; `false` if there is none at this address.
    pub(super) fn free_single(&mut self, block: *mut u8) -> bool {
        self.bfc.free_addr(Addr::new(block.addr() as u64)).is_ok()
    }

    fn pointer(&self, addr: Addr) -> *mut u8 {
        // An address from the BFC lies in the region, and so fits a usize.
        self.region.with_addr(addr.get() as usize)
    }

    fn page_of(&self, block: *mut u8) -> usize {
        let first = self.region.addr() / PAGE_BYTES;
        (block.addr() / PAGE_BYTES).wrapping_sub(first)
    }

    /// Enters `span`, or null, for the pages of a span.
    fn map_span(&mut self, base: *mut u8, bytes: usize, span: *mut Span) {
        let page = self.page_of(base);
        for entry in self.map.iter_mut().skip(page).take(bytes / PAGE_BYTES) {
            *entry = span;
        }
    }

    /// A place for a record.
    fn take_record(&mut self) -> Option<*mut Span> {
        if self.spare.is_null() {
            let bytes = RECORD_BATCH * size_of::<Span>();
            let batch = self.alloc_block(bytes, align_of::<Span>())?.as_ptr();
            self.record_bytes += GRANULE.bytes_of(GRANULE.count_up(bytes as u64)?);
            for number in 0..RECORD_BATCH {
                // SAFETY: inside the batch, which is ours.
                unsafe { self.give_record(batch.wrapping_add(number * size_of::<Span>()).cast()) };
            }
        }
        let record = self.spare;
        // SAFETY: P2.
        self.spare = unsafe { Slot::next(record) };
        Some(record.cast())
    }

    /// # Safety
    /// The place is one of a batch and describes no span.
    unsafe fn give_record(&mut self, record: *mut Span) {
        let slot = record.cast::<Slot>();
        // SAFETY: the caller's promise.
        unsafe { Slot::set_next(slot, self.spare) };
        self.spare = slot;
    }
}

/// Numbers of a region, in bytes.
pub(super) struct RegionNumbers {
    pub(super) bytes: u64,
    pub(super) table_bytes: u64,
    pub(super) single_bytes: u64,
    pub(super) span_bytes: u64,
    pub(super) free_bytes: u64,
    pub(super) largest_free_bytes: u64,
}

// SAFETY: promise 1: chunks of the BFC do not overlap and lie in the region, which is ours; records
// lie in batches that stay. Promise 2: P1.
unsafe impl Pages for RegionPages {
    fn span_bytes(&self, class: SizeClass) -> usize {
        if class.index() >= self.classes {
            return 0;
        }
        let good = GOOD_BLOCKS * class.block_bytes();
        good.next_power_of_two().clamp(PAGE_BYTES, self.max_span)
    }

    fn alloc_span(&mut self, bytes: usize) -> Option<SpanMemory> {
        let record = self.take_record()?;
        let Some(base) = self.alloc_block(bytes, PAGE_BYTES) else {
            // SAFETY: taken just now.
            unsafe { self.give_record(record) };
            return None;
        };
        let base = base.as_ptr();
        self.map_span(base, bytes, record);
        self.span_bytes += bytes as u64;
        Some(SpanMemory {
            record,
            base,
            clean: false,
        })
    }

    unsafe fn free_span(&mut self, span: *mut Span) {
        // SAFETY: the record of a span without used blocks, given up to us.
        let shape = *unsafe { Span::shape(span) };
        self.map_span(shape.base, shape.bytes as usize, ptr::null_mut());
        self.span_bytes -= u64::from(shape.bytes);
        self.free_single(shape.base);
        // SAFETY: it describes no span any more.
        unsafe { self.give_record(span) };
    }

    fn span_of(&self, block: *mut u8) -> Option<NonNull<Span>> {
        self.map
            .get(self.page_of(block))
            .copied()
            .and_then(NonNull::new)
    }

    fn alloc_block(&mut self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        let request = Request::new(bytes.max(1) as u64).aligned(Align::new(align as u64)?);
        let grant = self.bfc.alloc(&request).ok()?;
        NonNull::new(self.pointer(grant.block.into_raw().addr))
    }

    unsafe fn free_block(&mut self, block: *mut u8) {
        self.free_single(block);
    }
}
