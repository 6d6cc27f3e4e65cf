//! [`Arena`]: one reserved range of addresses with its BFC, its span records and its map of dirty
//! memory.
//!
//! ```text
//!   tables, committed whole, touched where used            range, committed as the BFC grows
//!   │ Arena │ chunks │ index │ records │ heads │ dirty │   │ spans and large blocks ... │ free │
//! ```
//! All tables are as long as the range can ever need, so nothing here grows or moves; pages of them
//! that were never touched cost nothing.
//!
//! # Invariants
//! * A1 `heads[slice]` is 0 if the slice lies in no span, else 1 + how many slices the span's first
//!   one lies below. It changes only while no block of the span is out.
//! * A2 memory of a free granule that is not marked dirty reads as zero. Marks of a used granule
//!   say what it was when the block was given, and only its holder acts upon them: a mark is set
//!   before the granule becomes free, and cleared by whoever discards it while he holds it.
//! * A3 what the BFC holds is committed, and nothing else of the range is used.

use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

use larder_core::small::{Span, SpanMemory};
use larder_core::sync::{AtomicU8, AtomicU64, Ordering};
use larder_core::{
    Addr, AddrRange, Align, Attempt, Bfc, BfcAllocator, BfcConfig, BlockAllocator, Chunk,
    ChunkState, FixedRange, Grant, Granule, GrowRequest, Growth, Locked, PageIndex, Request,
    ResizeError, ResizeRejected, Step, SubAllocError, SubAllocator, Wait,
};

use crate::marks::Marks;
use crate::os::{Os, yield_thread};

/// Spans are multiples of this, at multiples of this.
pub(crate) const SLICE_BYTES: usize = 64 << 10;
/// Large blocks are multiples of this, or of a page where that is longer.
const GRANULE_BYTES: usize = 16 << 10;
/// The range is committed in whole steps of this, so it is a multiple of it.
pub(crate) const GROWTH_BYTES: usize = 1 << 20;
/// And of this share of what is committed, so that a growing heap makes few system calls. What is
/// committed and not touched costs nothing but address space.
const GROWTH_DIVISOR: std::num::NonZeroU32 = std::num::NonZeroU32::new(4).unwrap();

/// Waiting for a lock in a process, where its holder may have lost the processor.
pub(crate) struct Yield;

impl Wait for Yield {
    fn wait() {
        yield_thread();
    }
}

/// Commits a range piece by piece. Its caller holds `growing`, so that pieces are committed and
/// entered in the BFC in the order of their addresses, each behind the one before; and so that one
/// that is taken back is not given again before the BFC knows.
struct Committed<O: Os> {
    os: &'static O,
    range: FixedRange,
    /// The range as a pointer.
    start: *mut u8,
    marks: Marks,
}

impl<O: Os> Committed<O> {
    fn pointer(&self, range: AddrRange) -> (*mut u8, usize) {
        let start = self.start.with_addr(range.start().get() as usize);
        (start, range.bytes() as usize)
    }
}

impl<O: Os> SubAllocator for Committed<O> {
    fn grow(&self, request: GrowRequest) -> Result<AddrRange, SubAllocError> {
        let piece = self.range.grow(request)?;
        let (start, bytes) = self.pointer(piece);
        // SAFETY: a piece of the reserved range.
        if unsafe { self.os.commit(start, bytes) } {
            return Ok(piece);
        }
        self.range.release(piece)?;
        Err(SubAllocError)
    }

    fn release(&self, range: AddrRange) -> Result<(), SubAllocError> {
        self.range.release(range)?;
        let (start, bytes) = self.pointer(range);
        // SAFETY: nothing of it is used: the BFC gave it back.
        if unsafe { self.os.decommit(start, bytes) } {
            self.marks.clear(start.addr(), bytes);
            return Ok(());
        }
        // It was the end of what is out, so it is the next to be handed out again.
        let request = GrowRequest {
            bytes: range.bytes(),
            align: Align::ONE,
            at: None,
        };
        self.range.grow(request)?;
        Err(SubAllocError)
    }
}

/// A reserved range and everything that manages it. Lives for ever, at the front of its tables.
pub(crate) struct Arena<O: Os> {
    os: &'static O,
    start: *mut u8,
    bytes: usize,
    granule: Granule,
    bfc: BfcAllocator<'static, Committed<O>, PageIndex<'static>, Yield>,
    /// Whatever makes the committed range longer or shorter holds this, system calls included.
    growing: Locked<(), Yield>,
    records: *mut Span,
    heads: &'static [AtomicU8],
    marks: Marks,
}

// SAFETY: the range is divided by the BFC behind its lock; records belong to the spans' owners;
// the other tables are atomic.
unsafe impl<O: Os> Sync for Arena<O> {}

/// Where the tables of an arena lie, in bytes from their start.
struct Plan {
    chunks: (usize, usize),
    index: (usize, usize),
    records: (usize, usize),
    heads: (usize, usize),
    dirty: (usize, usize),
    bytes: usize,
}

impl Plan {
    fn new<O: Os>(bytes: usize, granule: Granule) -> Option<Self> {
        let granules = bytes / granule.bytes() as usize;
        let slices = bytes / SLICE_BYTES;
        let mut at = size_of::<Arena<O>>();
        let mut table = |count: usize, entry: usize| {
            let start = at.next_multiple_of(128);
            at = start.checked_add(count.checked_mul(entry)?)?;
            Some((start, count))
        };
        Some(Self {
            // A chunk is a granule at least; the sink takes one more, and a region ends.
            chunks: table(granules.min(u32::MAX as usize - 4) + 2, size_of::<Chunk>())?,
            index: table(granules, size_of::<u32>())?,
            records: table(slices, size_of::<Span>())?,
            heads: table(slices, size_of::<AtomicU8>())?,
            dirty: table(granules.div_ceil(64), size_of::<AtomicU64>())?,
            bytes: at,
        })
    }
}

impl<O: Os> Arena<O> {
    /// Reserves `bytes` bytes, a multiple of [`GROWTH_BYTES`], with tables for them. `None` if the
    /// system refuses any of it; then nothing is held.
    pub(crate) fn reserve(os: &'static O, bytes: usize) -> Option<&'static Self> {
        let page = os.page_bytes();
        let granule = Granule::new(GRANULE_BYTES.max(page) as u64)?;
        let align = SLICE_BYTES.max(page);
        let plan = Plan::new::<O>(bytes, granule)?;
        let table_bytes = plan.bytes.checked_next_multiple_of(page)?;
        let start = os.reserve(bytes, align)?.as_ptr();
        let Some(tables) = os.reserve(table_bytes, page) else {
            // SAFETY: ours and not used.
            unsafe { os.release(start, bytes) };
            return None;
        };
        let tables = tables.as_ptr();
        // SAFETY: reserved just now.
        let ready = unsafe { os.commit(tables, table_bytes) };
        // SAFETY: committed memory, ours, reading as zero.
        let arena = ready.then(|| unsafe { Self::lay(os, start, bytes, granule, tables, &plan) });
        if let Some(Some(arena)) = arena {
            return Some(arena);
        }
        // SAFETY: ours and not used.
        unsafe { os.release(start, bytes) };
        // SAFETY: the same.
        unsafe { os.release(tables, table_bytes) };
        None
    }

    /// Lays the tables out.
    ///
    /// # Safety
    /// `tables` is committed as long as the plan says and reads as zero; the range is reserved.
    unsafe fn lay(
        os: &'static O,
        start: *mut u8,
        bytes: usize,
        granule: Granule,
        tables: *mut u8,
        plan: &Plan,
    ) -> Option<&'static Self> {
        // SAFETY: inside the tables; all zero is a vacant record, which VACANT is checked to be.
        let chunks = unsafe { table::<Chunk>(tables, plan.chunks) };
        // SAFETY: inside the tables; 0 is a number.
        let index = unsafe { table::<u32>(tables, plan.index) };
        // SAFETY: inside the tables; 0 is a number.
        let heads = unsafe { table::<AtomicU8>(tables, plan.heads) };
        // SAFETY: inside the tables; 0 is a number.
        let dirty = unsafe { table::<AtomicU64>(tables, plan.dirty) };
        let marks = Marks::new(dirty, start.addr(), granule.bytes() as usize);
        let first = Addr::new(start.addr() as u64);
        let range = AddrRange::new(first, bytes as u64)?;
        let config = BfcConfig {
            granule_bytes: granule.bytes(),
            growth: Growth::Range {
                unit_bytes: (GROWTH_BYTES as u64).max(granule.bytes()),
                ahead_divisor: Some(GROWTH_DIVISOR),
            },
            ..BfcConfig::default()
        };
        let bfc = Bfc::with_index(config, chunks, PageIndex::zeroed(first, granule, index)).ok()?;
        let source = Committed {
            os,
            range: FixedRange::new(range),
            start,
            marks,
        };
        let arena = tables.cast::<Self>();
        // SAFETY: the front of the tables is kept for it.
        unsafe {
            arena.write(Self {
                os,
                start,
                bytes,
                granule,
                bfc: BfcAllocator::with_wait(bfc, source),
                growing: Locked::new(()),
                records: tables.wrapping_add(plan.records.0).cast(),
                heads,
                marks,
            });
        }
        // SAFETY: written above, and never released.
        Some(unsafe { &*arena })
    }

    /// Whether the address lies in the range.
    #[inline]
    pub(crate) fn contains(&self, block: *mut u8) -> bool {
        block.addr().wrapping_sub(self.start.addr()) < self.bytes
    }

    /// Length of the range.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of the range that were never committed, or were decommitted.
    pub(crate) fn room(&self) -> u64 {
        self.bytes as u64 - self.bfc.stats().reserved_bytes
    }

    /// A block of `bytes` bytes.
    pub(crate) fn alloc(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        let align = Align::new(align as u64)?;
        let request = Request::new(bytes.max(1) as u64).aligned(align);
        let grant = match self.bfc.with(|bfc| held_memory(bfc, &request)) {
            Some(grant) => grant,
            None => self.growing.with(|()| self.bfc.alloc(&request)).ok()?,
        };
        NonNull::new(self.pointer(grant.block.into_raw().addr))
    }

    fn pointer(&self, addr: Addr) -> *mut u8 {
        self.start.with_addr(addr.get() as usize)
    }

    /// Takes a block back, at most `bytes` of which may have been written; `false` if none starts
    /// there.
    pub(crate) fn free(&self, block: *mut u8, bytes: usize) -> bool {
        self.marks.set(block.addr(), bytes);
        self.bfc.free_addr(Addr::new(block.addr() as u64)).is_ok()
    }

    /// Length that a request of `bytes` bytes is granted.
    pub(crate) fn granted_bytes(&self, bytes: usize) -> u64 {
        (bytes.max(1) as u64).next_multiple_of(self.granule.bytes())
    }

    /// Granted length of the block that starts there.
    pub(crate) fn bytes_at(&self, block: *mut u8) -> Option<u64> {
        let addr = Addr::new(block.addr() as u64);
        self.bfc.with(|bfc| bfc.bytes_at(addr))
    }

    /// Changes a block's length in place; whether that was possible.
    pub(crate) fn resize(&self, block: *mut u8, old_bytes: usize, new_bytes: usize) -> bool {
        let addr = Addr::new(block.addr() as u64);
        let Ok(held) = self.bfc.with(|bfc| bfc.block_from_addr(addr)) else {
            return false;
        };
        if new_bytes < old_bytes {
            // What is cut off becomes free.
            self.marks.set(block.addr(), old_bytes);
        }
        // Either way the block stays under its address.
        let to = new_bytes as u64;
        match self.bfc.with(|bfc| bfc.resize(held, to)) {
            Ok(_) => true,
            Err(ResizeRejected {
                block,
                error: ResizeError::NoRoom,
            }) => self.growing.with(|()| self.bfc.resize(block, to)).is_ok(),
            Err(_) => false,
        }
    }

    /// Zeroes what is not known to be zero of a block given just now.
    ///
    /// # Safety
    /// The block is the caller's and that long.
    pub(crate) unsafe fn zero(&self, block: *mut u8, bytes: usize) {
        self.marks.each_stretch(block.addr(), bytes, |at, length| {
            // SAFETY: inside the block.
            unsafe { block.wrapping_add(at).write_bytes(0, length) };
        });
    }

    /// Memory and a record for a span.
    pub(crate) fn alloc_span(&self, bytes: usize) -> Option<SpanMemory> {
        let base = self.alloc(bytes, SLICE_BYTES)?.as_ptr();
        let slice = self.slice_of(base);
        self.set_heads(slice, bytes, |below| below as u8 + 1);
        Some(SpanMemory {
            record: self.records.wrapping_add(slice),
            base,
            clean: !self.marks.any(base.addr(), bytes),
        })
    }

    /// Takes a span's memory back.
    ///
    /// # Safety
    /// The record is that of a span of this arena without used blocks.
    pub(crate) unsafe fn free_span(&self, span: *mut Span) {
        // SAFETY: the caller's promise.
        let shape = *unsafe { Span::shape(span) };
        let bytes = shape.bytes as usize;
        self.set_heads(self.slice_of(shape.base), bytes, |_| 0);
        self.free(shape.base, bytes);
    }

    /// The span that contains a block of this arena.
    #[inline]
    pub(crate) fn span_of(&self, block: *mut u8) -> Option<NonNull<Span>> {
        let slice = self.slice_of(block);
        // Relaxed: whoever holds a block got it from somebody who knew its span (A1).
        let head = self.heads.get(slice)?.load(Ordering::Relaxed);
        if head == 0 {
            return None;
        }
        NonNull::new(self.records.wrapping_add(slice + 1 - head as usize))
    }

    #[inline]
    fn slice_of(&self, block: *mut u8) -> usize {
        block.addr().wrapping_sub(self.start.addr()) / SLICE_BYTES
    }

    fn set_heads(&self, slice: usize, bytes: usize, head: impl Fn(usize) -> u8) {
        for below in 0..bytes / SLICE_BYTES {
            if let Some(entry) = self.heads.get(slice + below) {
                entry.store(head(below), Ordering::Relaxed);
            }
        }
    }

    /// Gives the memory of everything free back to the system: the end of the range as a whole, what
    /// lies between blocks by discarding its pages. Returns the bytes.
    pub(crate) fn trim(&self) -> u64 {
        let given = self.growing.with(|()| self.bfc.trim());
        given + self.discard_idle()
    }

    /// Discards the dirty memory of free chunks, a few at a time: they are taken, discarded without
    /// the lock, and freed.
    fn discard_idle(&self) -> u64 {
        const BATCH: usize = 32;
        let mut discarded = 0;
        let mut from = Addr::new(0);
        loop {
            let mut batch = [const { None }; BATCH];
            let mut count = 0;
            self.bfc.with(|bfc| {
                let mut ranges = [None; BATCH];
                bfc.for_each_chunk(|chunk| {
                    let range = chunk.range;
                    let free = matches!(chunk.state, ChunkState::Free { .. });
                    let (start, bytes) = (range.start().get() as usize, range.bytes() as usize);
                    if free
                        && count < BATCH
                        && range.start() >= from
                        && self.marks.any(start, bytes)
                    {
                        ranges[count] = Some(range);
                        count += 1;
                    }
                });
                for (held, range) in batch.iter_mut().zip(ranges.iter().flatten()) {
                    *held = bfc.alloc_at(*range).ok();
                }
            });
            for block in batch.into_iter().flatten() {
                let (start, bytes) = (self.pointer(block.addr()), block.bytes() as usize);
                from = block.range().end();
                // SAFETY: committed, and ours alone while we hold the block.
                if unsafe { self.os.discard(start, bytes) } {
                    self.marks.clear(start.addr(), bytes);
                    discarded += bytes as u64;
                }
                self.bfc.free(block).ok();
            }
            if count < BATCH {
                return discarded;
            }
        }
    }

    /// Takes the arena's locks, for a fork.
    ///
    /// # Safety
    /// The calling thread holds neither, and calls nothing of this arena before
    /// [`unlock_across_fork`](Self::unlock_across_fork).
    pub(crate) unsafe fn lock_across_fork(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.growing.lock_across_fork() };
        // SAFETY: the caller's promise.
        unsafe { self.bfc.lock().lock_across_fork() };
    }

    /// Ends what [`lock_across_fork`](Self::lock_across_fork) began.
    ///
    /// # Safety
    /// Both locks are the calling thread's by `lock_across_fork`.
    pub(crate) unsafe fn unlock_across_fork(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.bfc.lock().unlock_across_fork() };
        // SAFETY: the caller's promise.
        unsafe { self.growing.unlock_across_fork() };
    }

    /// Bytes in blocks and spans, and bytes committed.
    pub(crate) fn numbers(&self) -> (u64, u64) {
        let stats = self.bfc.stats();
        (stats.live_bytes, stats.reserved_bytes)
    }

    /// Whether the BFC's invariants hold.
    #[cfg(test)]
    pub(crate) fn is_sound(&self) -> bool {
        self.bfc.with(|bfc| bfc.check_invariants()).is_ok()
    }
}

/// A block from what is committed already.
fn held_memory(bfc: &mut Bfc<'static, PageIndex<'static>>, request: &Request) -> Option<Grant> {
    match bfc.step(&mut Attempt::new(*request)) {
        Step::Ready(grant) => return Some(grant),
        Step::Grow(ticket) => bfc.abort(ticket),
        Step::Release(ticket) => bfc.release_refused(ticket),
        Step::Failed(_) => {}
    }
    None
}

const _: () = assert!(GROWTH_BYTES.is_multiple_of(SLICE_BYTES));

/// A table that lies inside zeroed memory.
///
/// # Safety
/// `count` entries from `offset` on lie in memory that is ours for ever; all zero is a value of `T`;
/// nobody else makes this table.
unsafe fn table<T>(tables: *mut u8, (offset, count): (usize, usize)) -> &'static mut [T] {
    let start = tables.wrapping_add(offset).cast::<MaybeUninit<T>>();
    debug_assert!(start.is_aligned());
    // SAFETY: the caller's promise.
    unsafe { &mut *ptr::slice_from_raw_parts_mut(start.cast::<T>(), count) }
}
