//! [`Plan`]: where the tables of an arena lie, behind the arena itself.

use std::mem::MaybeUninit;
use std::ptr;

use larder_core::small::Span;
use larder_core::sync::{AtomicU8, AtomicU64};
use larder_core::{Chunk, Granule};

use crate::arena::{Arena, Moves, SLICE_BYTES};
use crate::os::Os;
use crate::uses::Use;

/// Where the tables of an arena lie, in bytes from their start.
pub(crate) struct Plan {
    pub(crate) chunks: (usize, usize),
    pub(crate) index: (usize, usize),
    pub(crate) records: (usize, usize),
    pub(crate) heads: (usize, usize),
    pub(crate) uses: (usize, usize),
    pub(crate) dirty: (usize, usize),
    pub(crate) young: (usize, usize),
    pub(crate) seams: (usize, usize),
    pub(crate) moves: (usize, usize),
    pub(crate) bytes: usize,
}

impl Plan {
    /// For a range of so many bytes; `None` if no number holds it.
    pub(crate) fn new<O: Os>(bytes: usize, granule: Granule) -> Option<Self> {
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
            uses: table(1, size_of::<Use>())?,
            dirty: table(granules.div_ceil(64), size_of::<AtomicU64>())?,
            young: table(granules.div_ceil(64), size_of::<AtomicU64>())?,
            seams: table(granules.div_ceil(64), size_of::<AtomicU64>())?,
            moves: table(1, size_of::<Moves>())?,
            bytes: at,
        })
    }
}

/// A table that lies inside zeroed memory.
///
/// # Safety
/// `count` entries from `offset` on lie in memory that is ours for ever; all zero is a value of `T`;
/// nobody else makes this table.
pub(crate) unsafe fn table<T>(
    tables: *mut u8,
    (offset, count): (usize, usize),
) -> &'static mut [T] {
    let start = tables.wrapping_add(offset).cast::<MaybeUninit<T>>();
    debug_assert!(start.is_aligned());
    // SAFETY: the caller's promise.
    unsafe { &mut *ptr::slice_from_raw_parts_mut(start.cast::<T>(), count) }
}
