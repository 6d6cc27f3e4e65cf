//! [`Arena`]: one reserved range of addresses with its BFC, its span records and its map of dirty
//! memory.
//!
//! ```text
//!   tables, committed whole, touched where used            range, committed as the BFC grows
//!   │ Arena │ chunks │ index │ records │ heads │ dirty, young, seams │   │ spans and large blocks ... │ free │
//! ```
//! All tables are as long as the range can ever need, so nothing here grows or moves; pages of them
//! that were never touched cost nothing.
//!
//! # Invariants
//! * A1 `heads[slice]` is 0 if the slice lies in no span, else 1 + how many slices the span's first
//!   one lies below. It changes only while no block of the span is out.
//! * A2 memory of a free granule that is not marked dirty reads as zero. Marks of a used granule
//!   say what it was when the block was given, and only its holder acts upon them: a mark is set
//!   before the granule becomes free, and cleared by whoever discards the granule while holding it.
//! * A3 what the BFC holds is committed, and nothing else of the range is used.
//! * A4 and A5 are in `idle`, which gives free memory back, A6 and A7 in `moving`, where long blocks grow,
//!   A8 in `deferred`, where frees wait that could not have the lock.

mod deferred;
mod idle;
mod moving;
mod spans;

use std::ptr::NonNull;

use larder_core::small::Span;
use larder_core::sync::{AtomicU8, AtomicU64};
use larder_core::{
    Addr, AddrRange, Align, Attempt, Bfc, BfcAllocator, BfcConfig, BlockAllocator, Chunk,
    ChunkState, Grant, Granule, Growth, Locked, PageIndex, Request, ResizeError, ResizeRejected,
    Step,
};

use crate::arena_tables::{Plan, table};
use crate::committed::Committed;
use crate::config::Tuning;
use crate::marks::Marks;
use crate::os::Os;
use crate::uses::Use;
use crate::waiting::Sleep;

use deferred::Deferred;
pub(crate) use idle::PAUSE_NS;
pub(crate) use moving::{Grown, MOVE_LEAST_BYTES, Moves, Seams};

/// Spans are multiples of this, at multiples of this.
pub(crate) const SLICE_BYTES: usize = 64 << 10;
/// Large blocks are multiples of this, or of a page where that is longer.
const GRANULE_BYTES: usize = 16 << 10;
/// The range is committed in whole steps of this and starts at a multiple of it: a huge page, so
/// that what is committed ends where one does.
pub(crate) const GROWTH_BYTES: usize = 2 << 20;
/// Each growth commits at least this share of what is committed, so that a growing heap makes few
/// system calls. What is committed and not touched costs nothing but address space.
const GROWTH_DIVISOR: std::num::NonZeroU32 = std::num::NonZeroU32::new(16).unwrap();

/// How much is looked at under a lock for a number.
pub(crate) const PIECE_BYTES: usize = 64 << 20;

/// Shorter runs are cleared without a look at what of them is in memory, longer ones looked at in windows
/// of this length.
const LOOK_LEAST_BYTES: usize = 1 << 20;
const WINDOW_BYTES: usize = 2 << 20;
/// Runs from here on are discarded without a look.
const MUCH_BYTES: usize = 32 << 20;

/// Where freed memory is not kept, shorter blocks keep theirs all the same: a call would cost more.
const DISCARD_LEAST_BYTES: usize = 64 << 10;

type ArenaBfc = Bfc<'static, PageIndex<'static>>;

/// What came of looking for memory without growth and without sleep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Held<T> {
    Found(T),
    /// There is none.
    Full,
    /// The lock could not be had.
    Busy,
}

/// A reserved range and everything that manages it. Lives for ever, at the front of its tables.
pub(crate) struct Arena<O: Os> {
    os: &'static O,
    tuning: &'static Tuning,
    start: *mut u8,
    bytes: usize,
    granule: Granule,
    bfc: BfcAllocator<'static, Committed<O>, PageIndex<'static>, Sleep>,
    /// Blocks that were freed while the BFC's lock could not be had (A8).
    deferred: Deferred,
    /// Whatever makes the committed range longer or shorter holds this, system calls included.
    growing: Locked<(), Sleep>,
    uses: &'static Use,
    /// Whoever takes free memory to discard it holds this (A4).
    discarding: Locked<(), Sleep>,
    records: *mut Span,
    heads: &'static [AtomicU8],
    marks: Marks,
    /// What was freed lately, in the same form; see `idle`.
    young: Marks,
    /// Whether the last tick found young memory, which the next one may discard.
    expires: AtomicU8,
    /// Whether the next tick discards what is not known to be dirty, too.
    again: AtomicU8,
    seams: Seams,
}

// SAFETY: the range is divided by the BFC behind its lock; records belong to the spans' owners;
// the other tables are atomic.
unsafe impl<O: Os> Sync for Arena<O> {}

impl<O: Os> Arena<O> {
    /// Reserves `bytes` bytes, a multiple of [`GROWTH_BYTES`], with tables for them. `None` if the
    /// system refuses any of it; then nothing is held.
    pub(crate) fn reserve(
        os: &'static O,
        tuning: &'static Tuning,
        bytes: usize,
    ) -> Option<&'static Self> {
        let page = os.page_bytes();
        let granule = Granule::new(GRANULE_BYTES.max(page) as u64)?;
        let align = GROWTH_BYTES.max(page);
        let plan = Plan::new::<O>(bytes, granule)?;
        let table_bytes = plan.bytes.checked_next_multiple_of(page)?;
        let start = os.reserve(bytes, align)?.as_ptr();
        let Some(tables) = os.reserve(table_bytes, page) else {
            // SAFETY: ours and not used.
            unsafe { os.release(start, bytes) };
            return None;
        };
        let tables = tables.as_ptr();
        // Tables are touched here and there: a huge page would be mostly empty.
        // SAFETY: reserved just now, here and below.
        unsafe { os.advise_short(tables, table_bytes) };
        if tuning.huge_above() == u64::MAX {
            // SAFETY: reserved just now.
            unsafe { os.advise_short(start, bytes) };
        }
        // SAFETY: reserved just now.
        let ready = unsafe { os.commit(tables, table_bytes) };
        // SAFETY: committed memory, ours, reading as zero.
        let arena =
            ready.then(|| unsafe { Self::lay(os, tuning, start, bytes, granule, tables, &plan) });
        if let Some(Some(arena)) = arena {
            return Some(arena);
        }
        // SAFETY: ours and not used.
        unsafe { os.release(start, bytes) };
        // SAFETY: reserved just now, and no arena was made of it.
        unsafe { os.release(tables, table_bytes) };
        None
    }

    /// Lays the tables out.
    ///
    /// # Safety
    /// `tables` is committed as long as the plan says and reads as zero; the range is reserved.
    unsafe fn lay(
        os: &'static O,
        tuning: &'static Tuning,
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
        // SAFETY: inside the tables; 0 is a number.
        let young = unsafe { table::<AtomicU64>(tables, plan.young) };
        let young = Marks::new(young, start.addr(), granule.bytes() as usize);
        // SAFETY: inside the tables; 0 is a number.
        let seams = unsafe { table::<AtomicU64>(tables, plan.seams) };
        let seams = Marks::new(seams, start.addr(), granule.bytes() as usize);
        // SAFETY: inside the tables; all zero is an arena in which nothing has moved.
        let [moves] = (unsafe { table::<Moves>(tables, plan.moves) }) else {
            return None;
        };
        let seams = Seams::new(seams, moves);
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
        // SAFETY: inside the tables; all zero is an arena nobody has looked at.
        let [uses] = (unsafe { table::<Use>(tables, plan.uses) }) else {
            return None;
        };
        let uses = &*uses;
        let source = Committed::new(os, tuning, uses, range, start, marks, seams);
        let arena = tables.cast::<Self>();
        // SAFETY: the front of the tables is kept for it.
        unsafe {
            arena.write(Self {
                os,
                tuning,
                start,
                bytes,
                granule,
                bfc: BfcAllocator::with_wait(bfc, source),
                deferred: Deferred::new(),
                growing: Locked::new(()),
                uses,
                discarding: Locked::new(()),
                records: tables.wrapping_add(plan.records.0).cast(),
                heads,
                marks,
                young,
                expires: AtomicU8::new(0),
                again: AtomicU8::new(0),
                seams,
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

    /// A block from memory that is held already, if the lock can be had without sleeping.
    pub(crate) fn alloc_held(&self, bytes: usize, align: usize) -> Held<NonNull<u8>> {
        let Some((_, request)) = self.requests(bytes, align) else {
            return Held::Full;
        };
        match self.with_bfc_soon(|bfc| held_memory(bfc, &request)) {
            None => Held::Busy,
            Some(None) => Held::Full,
            Some(Some(grant)) => match NonNull::new(self.pointer(grant.block.into_raw().addr)) {
                Some(block) => Held::Found(block),
                None => Held::Full,
            },
        }
    }

    /// A block of `bytes` bytes, for which the arena grows if it must.
    pub(crate) fn alloc(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        let (exact, request) = self.requests(bytes, align)?;
        let grant = match self.with_bfc(|bfc| held_memory(bfc, &request)) {
            Some(grant) => grant,
            None => self.growing.with(|()| {
                self.count_vacant();
                let grown = self.bfc.alloc(&request);
                grown.or_else(|_| self.bfc.alloc(&exact)).ok()
            })?,
        };
        NonNull::new(self.pointer(grant.block.into_raw().addr))
    }

    /// What a block must be, and what it should be.
    fn requests(&self, bytes: usize, align: usize) -> Option<(Request, Request)> {
        let exact = Request::new(bytes.max(1) as u64).aligned(Align::new(align as u64)?);
        let request = exact.aligned(Align::new(align.max(self.uses.spacing(bytes)) as u64)?);
        Some((exact, request))
    }

    /// Runs `f` with the BFC, after the frees that wait for it.
    fn with_bfc<R>(&self, f: impl FnOnce(&mut ArenaBfc) -> R) -> R {
        self.bfc.with(|bfc| {
            self.deferred.free_all(bfc);
            f(bfc)
        })
    }

    /// Runs `f` with the BFC, after the frees that wait for it; `None` if that could not be without
    /// sleeping.
    fn with_bfc_soon<R>(&self, f: impl FnOnce(&mut ArenaBfc) -> R) -> Option<R> {
        self.bfc.lock().try_with(|bfc| {
            self.deferred.free_all(bfc);
            f(bfc)
        })
    }

    fn pointer(&self, addr: Addr) -> *mut u8 {
        self.start.with_addr(addr.get() as usize)
    }

    /// Takes a block back, at most `bytes` of which may have been written; `false` if none starts
    /// there. The lock is held once; where freed memory is not kept, twice, and between the two a
    /// longer block's memory goes back to the system. Who cannot have the lock without sleeping leaves the
    /// block to the next holder, and `true` is the answer.
    pub(crate) fn free(&self, block: *mut u8, bytes: usize) -> bool {
        let keeps = bytes < DISCARD_LEAST_BYTES || self.tuning.purge_ms() > 0;
        if keeps || !self.discard_held(block) {
            self.mark_freed(block.addr(), bytes);
        }
        self.free_in_bfc(block)
    }

    /// Takes a block out of the BFC, whose memory is marked; `false` if none starts there.
    fn free_in_bfc(&self, block: *mut u8) -> bool {
        let addr = Addr::new(block.addr() as u64);
        match self.with_bfc_soon(|bfc| bfc.free_addr(addr).is_ok()) {
            Some(freed) => freed,
            None => {
                // Its first words hold a link until then.
                self.mark_freed(block.addr(), 1);
                // SAFETY: a block of this arena, committed, and given up by the caller.
                unsafe { self.deferred.push(block) };
                true
            }
        }
    }

    /// Takes the memory of a block away that nobody uses any more; whether that went well.
    fn discard_held(&self, block: *mut u8) -> bool {
        let bytes = self.bytes_at(block).unwrap_or(0) as usize;
        // SAFETY: a block is committed, and this one the caller's, who gives it up.
        let done = bytes > 0 && unsafe { self.os.discard(block, bytes) };
        if done {
            self.marks.clear(block.addr(), bytes);
        }
        done
    }

    /// Length that a request of `bytes` bytes is granted.
    pub(crate) fn granted_bytes(&self, bytes: usize) -> u64 {
        (bytes.max(1) as u64).next_multiple_of(self.granule.bytes())
    }

    /// Granted length of the block that starts there.
    pub(crate) fn bytes_at(&self, block: *mut u8) -> Option<u64> {
        let addr = Addr::new(block.addr() as u64);
        self.with_bfc(|bfc| bfc.bytes_at(addr))
    }

    /// Changes a block's length in place; whether that was possible.
    pub(crate) fn resize(&self, block: *mut u8, old_bytes: usize, new_bytes: usize) -> bool {
        if new_bytes < old_bytes {
            // What is cut off becomes free.
            self.mark_freed(block.addr(), old_bytes);
        }
        // Either way the block stays under its address.
        let (addr, to) = (Addr::new(block.addr() as u64), new_bytes as u64);
        let resized = self.with_bfc(|bfc| {
            let held = bfc.block_from_addr(addr).ok()?;
            Some(bfc.resize(held, to))
        });
        match resized {
            Some(Ok(_)) => true,
            Some(Err(ResizeRejected {
                block,
                error: ResizeError::NoRoom,
            })) => {
                let grown = self.growing.with(|()| {
                    if self.is_last(block.addr()) {
                        self.count_vacant();
                    }
                    self.bfc.resize(block, to)
                });
                grown.is_ok()
            }
            _ => false,
        }
    }

    /// Whether nothing used lies behind a block, so that it grows where memory is committed.
    fn is_last(&self, addr: Addr) -> bool {
        self.with_bfc(|bfc| {
            let Ok(held) = bfc.block_from_addr(addr) else {
                return false;
            };
            let mut is_last = true;
            bfc.chunks_from(held.range().end(), Some(held.handle()), |chunk| {
                is_last &= matches!(chunk.state, ChunkState::Free { .. });
                is_last
            });
            is_last
        })
    }

    /// Zeroes what is not known to be zero of a block given just now.
    ///
    /// # Safety
    /// The block is the caller's and that long.
    pub(crate) unsafe fn zero(&self, block: *mut u8, bytes: usize) {
        self.marks.each_run(block.addr(), bytes, |at, length| {
            let mut done = 0;
            while done < length {
                let part = match length {
                    ..LOOK_LEAST_BYTES | MUCH_BYTES.. => length,
                    _ => WINDOW_BYTES.min(length - done),
                };
                // SAFETY: inside the block, here and below; a run starts with a granule.
                unsafe { self.zero_part(block.wrapping_add(at + done), part) };
                done += part;
            }
        });
    }

    /// Zeroes a part of a block by discarding it where little of it is in memory, or where it is very long:
    /// else all of it would be, for a program that perhaps touches little.
    ///
    /// # Safety
    /// The part is the caller's and starts with a granule.
    unsafe fn zero_part(&self, start: *mut u8, bytes: usize) {
        let whole = bytes / self.marks.unit() * self.marks.unit();
        let is_sparse = || {
            // SAFETY: the block is committed.
            let resident = unsafe { self.os.resident_bytes(start, whole) };
            resident.is_some_and(|resident| resident < whole / 2)
        };
        let discards = bytes >= MUCH_BYTES || bytes >= LOOK_LEAST_BYTES && is_sparse();
        // SAFETY: committed, the caller's, and not used yet.
        let gone = match discards && unsafe { self.os.discard(start, whole) } {
            true => whole,
            false => 0,
        };
        // SAFETY: inside the block.
        unsafe { start.wrapping_add(gone).write_bytes(0, bytes - gone) };
    }

    /// Takes the arena's locks, for a fork.
    ///
    /// # Safety
    /// The calling thread holds none of them, and calls nothing of this arena before
    /// [`unlock_across_fork`](Self::unlock_across_fork).
    pub(crate) unsafe fn lock_across_fork(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.discarding.lock_across_fork() };
        // SAFETY: the caller's promise.
        unsafe { self.growing.lock_across_fork() };
        // SAFETY: the caller's promise.
        unsafe { self.bfc.lock().lock_across_fork() };
    }

    /// Ends what [`lock_across_fork`](Self::lock_across_fork) began.
    ///
    /// # Safety
    /// The locks are the calling thread's by `lock_across_fork`.
    pub(crate) unsafe fn unlock_across_fork(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.bfc.lock().unlock_across_fork() };
        // SAFETY: the caller's promise.
        unsafe { self.growing.unlock_across_fork() };
        // SAFETY: the caller's promise.
        unsafe { self.discarding.unlock_across_fork() };
    }

    /// Bytes that are in memory, if the system says.
    pub(crate) fn resident_bytes(&self) -> Option<u64> {
        let (mut at, mut resident) = (0, 0);
        loop {
            // A piece at a time, so that nobody waits long to grow. Nothing is decommitted meanwhile.
            let piece = self.growing.with(|()| {
                let bytes = (self.numbers().1 as usize)
                    .saturating_sub(at)
                    .min(PIECE_BYTES);
                let start = self.start.wrapping_add(at);
                // SAFETY: the range is committed so far.
                (bytes > 0).then(|| unsafe { self.os.resident_bytes(start, bytes) })
            });
            match piece {
                None => return Some(resident),
                Some(bytes) => resident += bytes? as u64,
            }
            at += PIECE_BYTES;
        }
    }

    /// Bytes in blocks and spans, and bytes committed.
    pub(crate) fn numbers(&self) -> (u64, u64) {
        self.with_bfc(|bfc| (bfc.stats().live_bytes, bfc.stats().reserved_bytes))
    }

    /// Runs `f` while the BFC's lock is taken.
    #[cfg(test)]
    pub(crate) fn while_locked(&self, f: impl FnOnce()) {
        self.bfc.with(|_| f());
    }

    /// Whether frees wait for the lock.
    #[cfg(test)]
    pub(crate) fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Whether the BFC's invariants hold.
    #[cfg(test)]
    pub(crate) fn is_sound(&self) -> bool {
        self.bfc.with(|bfc| bfc.check_invariants()).is_ok()
    }
}

/// A block from what is committed already.
fn held_memory(bfc: &mut ArenaBfc, request: &Request) -> Option<Grant> {
    match bfc.step(&mut Attempt::new(*request)) {
        Step::Ready(grant) => return Some(grant),
        Step::Grow(ticket) => bfc.abort(ticket),
        Step::Release(ticket) => bfc.release_refused(ticket),
        Step::Failed(_) => {}
    }
    None
}

const _: () = assert!(GROWTH_BYTES.is_multiple_of(SLICE_BYTES));
