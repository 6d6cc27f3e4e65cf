//! Creating an arena: reserves its range and its tables, and lays the tables out behind the arena
//! itself. `table_memory` commits them.

use core::mem::MaybeUninit;
use core::num::NonZeroU32;
use core::ptr;

use larder_core::small::Span;
use larder_core::sync::{AtomicU8, AtomicU32, AtomicU64};
use larder_core::{Addr, AddrRange, Chunk, Granule, Growth, Locked, PageIndex, RegionConfig};

use super::committed::Committed;
use super::deferred_frees::Deferred;
use super::lengths::Lengths;
use super::marks::Marks;
use super::residency::Residency;
use super::seams::{Moves, Seams};
use super::table_memory::{TABLES, TableMemory, TableRange};
use super::{Allocator, Arena, GROWTH_BYTES, SLICE_BYTES};
use crate::config::Tuning;
use crate::os::Os;

/// Granule of large blocks in bytes, unless a page is longer.
const GRANULE_BYTES: usize = 16 << 10;
/// Divisor of the committed memory that gives the minimum growth, so that a growing heap makes few
/// system calls. Memory committed and not touched costs only address space.
const GROWTH_DIVISOR: NonZeroU32 = NonZeroU32::new(16).unwrap();
/// The divisor if growth purges idle memory (see `purge`), which should happen before much memory
/// has been touched.
const FINE_GROWTH_DIVISOR: NonZeroU32 = NonZeroU32::new(64).unwrap();

/// Bytes of unusable addresses behind the tables. Most systems place a later reservation below the
/// earlier ones, so a program that writes below its first blocks faults instead of writing into the
/// tables.
const GUARD_BYTES: usize = 1 << 20;
/// The guard of a short range, which is used where addresses are scarce, is the range's length
/// divided by this.
const GUARD_PART: usize = 64;

/// Returns the offset of the arena's frequently read state, which lies behind the arena and on
/// separate pages.
const fn residency_at<O: Os>() -> usize {
    size_of::<Arena<O>>().next_multiple_of(128)
}

const fn moves_at<O: Os>() -> usize {
    (residency_at::<O>() + size_of::<Residency>()).next_multiple_of(128)
}

const fn bfc_at<O: Os>() -> usize {
    (moves_at::<O>() + size_of::<Moves>()).next_multiple_of(128)
}

/// Returns the bytes of an arena and of the state on separate pages.
pub(super) const fn front_bytes<O: Os>(page: usize) -> usize {
    (bfc_at::<O>() + size_of::<Allocator<O>>()).next_multiple_of(page)
}

/// The layout of an arena's tables behind it.
struct TableLayout {
    /// Bytes committed first, for the arena and its state.
    front_bytes: usize,
    tables: [TableRange; TABLES],
    bytes: usize,
}

impl TableLayout {
    /// Lays out the tables of a range of `bytes` bytes. Returns `None` on overflow.
    fn new<O: Os>(bytes: usize, granule: Granule, page: usize) -> Option<Self> {
        let front_bytes = front_bytes::<O>(page);
        let granule = granule.bytes() as usize;
        let mut at = front_bytes;
        let mut plan = |covers: usize, entry: usize| {
            let table = TableRange::new(at, bytes, covers, entry);
            at = table.end(bytes)?.checked_next_multiple_of(page)?;
            Some(table)
        };
        Some(Self {
            front_bytes,
            // A chunk has at least one granule.
            tables: [
                plan(granule, size_of::<Chunk>())?,
                plan(granule, size_of::<u32>())?,
                plan(SLICE_BYTES, size_of::<Span>())?,
                plan(SLICE_BYTES, size_of::<AtomicU8>())?,
                plan(SLICE_BYTES, size_of::<AtomicU8>())?,
                plan(granule, size_of::<AtomicU32>())?,
                plan(64 * granule, size_of::<AtomicU64>())?,
                plan(64 * granule, size_of::<AtomicU64>())?,
                plan(64 * granule, size_of::<AtomicU64>())?,
                plan(64 * GROWTH_BYTES, size_of::<AtomicU64>())?,
            ],
            bytes: at,
        })
    }
}

impl<O: Os> Arena<O> {
    /// Reserves `bytes` bytes, a multiple of [`GROWTH_BYTES`], with tables for them. Returns
    /// `None`, and keeps nothing, if the system refuses any of it.
    pub(crate) fn reserve(
        os: &'static O,
        tuning: &'static Tuning,
        bytes: usize,
    ) -> Option<&'static Self> {
        let page = os.page_bytes();
        let granule = Granule::new(GRANULE_BYTES.max(page) as u64)?;
        let align = GROWTH_BYTES.max(page);
        let plan = TableLayout::new::<O>(bytes, granule, page)?;
        let table_bytes = plan.bytes;
        let guard = (bytes / GUARD_PART).min(GUARD_BYTES).next_multiple_of(page);
        let reserved_bytes = table_bytes.checked_add(guard)?;
        let start = os.reserve(bytes, align)?.as_ptr();
        let Some(tables) = os.reserve_zeros(reserved_bytes, page) else {
            // SAFETY: ours and not used.
            unsafe { os.release(start, bytes) };
            return None;
        };
        let tables = tables.as_ptr();
        // Tables are touched sparsely: a huge page would be mostly empty.
        // SAFETY: reserved just now.
        unsafe { os.advise_short(tables, table_bytes) };
        if tuning.begins_short() {
            // SAFETY: reserved just now.
            unsafe { os.advise_short(start, bytes) };
        }
        let memory = TableMemory::new(os, tables, plan.tables);
        // SAFETY: reserved just now.
        let ready = unsafe { os.commit(tables, plan.front_bytes) } && memory.cover(0);
        // SAFETY: ours, reading as zero, and its front is committed.
        let arena =
            ready.then(|| unsafe { Self::lay(os, tuning, start, bytes, granule, memory, &plan) });
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
    /// The tables have as much room as the plan says, they read as zero, and their front is
    /// committed. The range is reserved.
    unsafe fn lay(
        os: &'static O,
        tuning: &'static Tuning,
        start: *mut u8,
        bytes: usize,
        granule: Granule,
        memory: TableMemory<O>,
        plan: &TableLayout,
    ) -> Option<&'static Self> {
        let tables = memory.arena();
        let [chunks, index, records, heads, classes, lengths, marks @ ..] = plan.tables;
        // SAFETY: inside the tables; all zeros are `Chunk::VACANT`, which is checked elsewhere.
        let chunks = unsafe { table::<Chunk>(tables, chunks.start, chunks.count) };
        // SAFETY: inside the tables; 0 is a number.
        let index = unsafe { table::<AtomicU32>(tables, index.start, index.count) };
        // SAFETY: inside the tables; 0 is a number.
        let heads = unsafe { table::<AtomicU8>(tables, heads.start, heads.count) };
        // SAFETY: inside the tables; 0 is a number.
        let classes = unsafe { table::<AtomicU8>(tables, classes.start, classes.count) };
        // SAFETY: inside the tables; 0 is a number.
        let lengths = unsafe { table::<AtomicU32>(tables, lengths.start, lengths.count) };
        let granule_bytes = granule.bytes() as usize;
        let lengths = Lengths::new(lengths, start.addr(), granule_bytes);
        let marks_in = |words: TableRange, unit| {
            // SAFETY: inside the tables; 0 is a number.
            let words = unsafe { table::<AtomicU64>(tables, words.start, words.count) };
            Marks::new(words, start.addr(), unit)
        };
        let [dirty, young, seams, split] = marks;
        let (marks, young) = (
            marks_in(dirty, granule_bytes),
            marks_in(young, granule_bytes),
        );
        let (seams, split) = (
            marks_in(seams, granule_bytes),
            marks_in(split, GROWTH_BYTES),
        );
        // SAFETY: inside the tables; all zero is an arena in which nothing has moved.
        let [moves] = (unsafe { table::<Moves>(tables, moves_at::<O>(), 1) }) else {
            return None;
        };
        let seams = Seams::new(seams, moves);
        let range = AddrRange::new(Addr::new(start.addr() as u64), bytes as u64)?;
        let config = config(tuning, granule);
        // SAFETY: inside the tables; all zero is an arena that was never examined.
        let [residency] = (unsafe { table::<Residency>(tables, residency_at::<O>(), 1) }) else {
            return None;
        };
        let residency = &*residency;
        let source = Committed::new(
            tuning,
            residency,
            range,
            start,
            [marks, split],
            seams,
            memory,
        );
        let pool = tables.wrapping_add(bfc_at::<O>()).cast::<Allocator<O>>();
        // SAFETY: on the arena's pages, which read as zero and are used for nothing else.
        unsafe { Allocator::place(pool, config, chunks, source) }.ok()?;
        // SAFETY: made just now, and never released.
        let pool = unsafe { &*pool };
        let arena = tables.cast::<Self>();
        // SAFETY: the front of the tables is reserved for it.
        unsafe {
            arena.write(Self {
                os,
                tuning,
                start,
                bytes,
                granule,
                pool,
                index: PageIndex::new(range.start(), granule, index),
                deferred: Deferred::new(),
                growing: Locked::new(()),
                residency,
                discarding: Locked::new(()),
                records: tables.wrapping_add(records.start).cast(),
                heads,
                classes,
                lengths,
                marks,
                young,
                expires: AtomicU8::new(0),
                seams,
                split,
            });
        }
        // SAFETY: written above, and never released.
        Some(unsafe { &*arena })
    }
}

fn config(tuning: &Tuning, granule: Granule) -> RegionConfig {
    RegionConfig {
        granule_bytes: granule.bytes(),
        growth: Growth::Range {
            unit_bytes: (GROWTH_BYTES as u64).max(granule.bytes()),
            ahead_divisor: Some(match tuning.makes_up() {
                true => FINE_GROWTH_DIVISOR,
                false => GROWTH_DIVISOR,
            }),
        },
        ..RegionConfig::default()
    }
}

/// Returns a table inside zeroed memory.
///
/// # Safety
/// The `count` entries at `offset` lie in addresses that are never released; all zeros are a value
/// of `T`; the table is made only once; and its uncommitted part is not written (TABLE2).
unsafe fn table<T>(tables: *mut u8, offset: usize, count: usize) -> &'static mut [T] {
    let start = tables.wrapping_add(offset).cast::<MaybeUninit<T>>();
    debug_assert!(start.is_aligned());
    // SAFETY: addresses that are never released and this table's alone; zeros, which they hold, are
    // values of `T`.
    unsafe { &mut *ptr::slice_from_raw_parts_mut(start.cast::<T>(), count) }
}
