//! An arena is made: its range and its tables are reserved, and the tables laid out behind the arena itself.

use core::mem::MaybeUninit;
use core::num::NonZeroU32;
use core::ptr;

use larder_core::small::Span;
use larder_core::sync::{AtomicU8, AtomicU32, AtomicU64};
use larder_core::{
    Addr, AddrRange, Bfc, BfcAllocator, BfcConfig, Chunk, Granule, Growth, Locked, PageIndex,
};

use super::committed::Committed;
use super::deferred_frees::Deferred;
use super::lengths::Lengths;
use super::marks::Marks;
use super::residency::Residency;
use super::seams::{Moves, Seams};
use super::{Arena, GROWTH_BYTES, SLICE_BYTES};
use crate::config::Tuning;
use crate::os::Os;

/// Large blocks are multiples of this, or of a page where that is longer.
const GRANULE_BYTES: usize = 16 << 10;
/// Each growth commits at least this share of what is committed, so that a growing heap makes few
/// system calls. What is committed and not touched costs nothing but address space.
const GROWTH_DIVISOR: NonZeroU32 = NonZeroU32::new(16).unwrap();
/// The share where idle memory goes back for growth (see `purge`): it should do so before much was touched.
const FINE_GROWTH_DIVISOR: NonZeroU32 = NonZeroU32::new(64).unwrap();

/// Addresses behind the tables that nobody can use: most systems put what is reserved later below what came before, so
/// a program that writes below its first blocks faults, and does not write into the tables.
pub(crate) const GUARD_BYTES: usize = 1 << 20;

/// Where the tables of an arena lie, in bytes from their start.
struct Plan {
    residency: (usize, usize),
    moves: (usize, usize),
    chunks: (usize, usize),
    index: (usize, usize),
    records: (usize, usize),
    heads: (usize, usize),
    classes: (usize, usize),
    lengths: (usize, usize),
    dirty: (usize, usize),
    young: (usize, usize),
    seams: (usize, usize),
    bytes: usize,
}

impl Plan {
    /// For a range of so many bytes; `None` if no number holds it.
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
            // On the arena's own pages, all of which are touched.
            residency: table(1, size_of::<Residency>())?,
            moves: table(1, size_of::<Moves>())?,
            // A chunk is a granule at least; the sink takes one more, and a region ends.
            chunks: table(granules.min(u32::MAX as usize - 4) + 2, size_of::<Chunk>())?,
            index: table(granules, size_of::<u32>())?,
            records: table(slices, size_of::<Span>())?,
            heads: table(slices, size_of::<AtomicU8>())?,
            classes: table(slices, size_of::<AtomicU8>())?,
            lengths: table(granules, size_of::<AtomicU32>())?,
            dirty: table(granules.div_ceil(64), size_of::<AtomicU64>())?,
            young: table(granules.div_ceil(64), size_of::<AtomicU64>())?,
            seams: table(granules.div_ceil(64), size_of::<AtomicU64>())?,
            bytes: at,
        })
    }
}

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
        let reserved_bytes = table_bytes.checked_add(GUARD_BYTES)?;
        let start = os.reserve(bytes, align)?.as_ptr();
        let Some(tables) = os.reserve(reserved_bytes, page) else {
            // SAFETY: ours and not used.
            unsafe { os.release(start, bytes) };
            return None;
        };
        let tables = tables.as_ptr();
        // Tables are touched here and there: a huge page would be mostly empty.
        // SAFETY: reserved just now, here and below.
        unsafe { os.advise_short(tables, table_bytes) };
        if tuning.begins_short() {
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
        unsafe { os.release(tables, reserved_bytes) };
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
        let classes = unsafe { table::<AtomicU8>(tables, plan.classes) };
        // SAFETY: inside the tables; 0 is a number.
        let lengths = unsafe { table::<AtomicU32>(tables, plan.lengths) };
        let lengths = Lengths::new(lengths, start.addr(), granule.bytes() as usize);
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
                ahead_divisor: Some(match tuning.makes_up() {
                    true => FINE_GROWTH_DIVISOR,
                    false => GROWTH_DIVISOR,
                }),
            },
            ..BfcConfig::default()
        };
        let bfc = Bfc::with_index(config, chunks, PageIndex::zeroed(first, granule, index)).ok()?;
        // SAFETY: inside the tables; all zero is an arena nobody has looked at.
        let [residency] = (unsafe { table::<Residency>(tables, plan.residency) }) else {
            return None;
        };
        let residency = &*residency;
        let source = Committed::new(os, tuning, residency, range, start, marks, seams);
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
                residency,
                discarding: Locked::new(()),
                records: tables.wrapping_add(plan.records.0).cast(),
                heads,
                classes,
                lengths,
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
}

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
