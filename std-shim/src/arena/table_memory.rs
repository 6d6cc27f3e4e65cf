//! [`TableMemory`]: the memory of an arena's tables. As much of it is committed as the arena's
//! committed range needs.
//!
//! All addresses are reserved when the arena is created, so no table ever moves. The uncommitted
//! part of a table reads as zero, and is not written.
//!
//! # Invariants
//! * TABLE2 in each table, the entries for the committed range and [`SPARE`] more are committed.

use larder_core::sync::{AtomicUsize, Ordering};

use super::GROWTH_BYTES;
use crate::os::Os;

/// Bytes of the range for which tables are committed in one step: about a megabyte of tables.
const STEP_BYTES: usize = 256 << 20;
/// Entries beyond those for the committed range, because a table of chunks has a sink in front, and
/// there may be a mark directly behind the range.
const SPARE: usize = 2;

/// Number of tables of an arena.
pub(super) const TABLES: usize = 10;

/// The place of a table, and its length.
#[derive(Clone, Copy)]
pub(super) struct TableRange {
    /// Offset from the arena in bytes: whole pages.
    pub(super) start: usize,
    /// Entries for the whole range.
    pub(super) count: usize,
    /// Bytes of an entry.
    entry: usize,
    /// Bytes of the range per entry.
    covers: usize,
}

impl TableRange {
    /// Describes a table that begins at `start` and has an entry of `entry` bytes for each `covers`
    /// bytes of a range of `range_bytes`.
    pub(super) const fn new(start: usize, range_bytes: usize, covers: usize, entry: usize) -> Self {
        Self {
            start,
            count: range_bytes.div_ceil(covers) + SPARE,
            entry,
            covers,
        }
    }

    /// Returns the end of the entries for the first `held` bytes of the range; `None` if it
    /// overflows.
    pub(super) fn end(&self, held: usize) -> Option<usize> {
        let entries = (held.div_ceil(self.covers) + SPARE).min(self.count);
        entries.checked_mul(self.entry)?.checked_add(self.start)
    }
}

/// The tables' memory. The caller holds `growing`, or owns the arena alone.
pub(super) struct TableMemory<O: Os> {
    os: &'static O,
    /// Start of the arena, in front of its tables.
    arena: *mut u8,
    tables: [TableRange; TABLES],
    /// End of the committed part of each table, as an offset from the arena. Relaxed: changed under
    /// `growing`.
    ends: [AtomicUsize; TABLES],
}

impl<O: Os> TableMemory<O> {
    /// Describes tables of which nothing is committed.
    pub(super) fn new(os: &'static O, arena: *mut u8, tables: [TableRange; TABLES]) -> Self {
        Self {
            os,
            arena,
            tables,
            ends: tables.map(|table| AtomicUsize::new(table.start)),
        }
    }

    /// Returns the source of memory.
    pub(super) const fn os(&self) -> &'static O {
        self.os
    }

    /// Returns the start of the arena, in front of its tables.
    pub(super) const fn arena(&self) -> *mut u8 {
        self.arena
    }

    /// Commits the entries for the first `held` bytes of the range. Returns whether all of them are
    /// committed now. Up to one system call per table, once in [`STEP_BYTES`] of growth.
    pub(super) fn cover(&self, held: usize) -> bool {
        let page = self.os.page_bytes();
        let held = held.next_multiple_of(STEP_BYTES);
        self.tables.iter().zip(&self.ends).all(|(table, end)| {
            let from = end.load(Ordering::Relaxed);
            let Some(to) = table.end(held).map(|to| to.next_multiple_of(page)) else {
                return false;
            };
            if from >= to {
                return true;
            }
            // SAFETY: a piece of the reserved tables, which is not committed.
            let committed = unsafe { self.os.commit(self.arena.wrapping_add(from), to - from) };
            if committed {
                end.store(to, Ordering::Relaxed);
            }
            committed
        })
    }

    /// Returns the bytes that are committed.
    #[cfg(test)]
    pub(super) fn committed_bytes(&self) -> usize {
        let ends = self.tables.iter().zip(&self.ends);
        ends.map(|(table, end)| end.load(Ordering::Relaxed) - table.start)
            .sum()
    }
}

const _: () = assert!(STEP_BYTES.is_multiple_of(GROWTH_BYTES));
