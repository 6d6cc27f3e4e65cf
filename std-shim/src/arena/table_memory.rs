//! [`TableMemory`]: the memory of an arena's tables, committed as far as what is held of the range needs it.
//!
//! All addresses are reserved when the arena is made, so no table ever moves. Where nothing is committed
//! yet a table reads as zero, and is not written.
//!
//! # Invariants
//! * TABLE2 of each table the entries for what is held of the range are committed, and [`SPARE`] more.

use larder_core::sync::{AtomicUsize, Ordering};

use super::GROWTH_BYTES;
use crate::os::Os;

/// The tables are committed for so much of the range at once: about a megabyte for all of them.
const STEP_BYTES: usize = 256 << 20;
/// Entries beyond those for what is held: a table of chunks has a sink in front, and a mark may stand
/// right behind what is held.
const SPARE: usize = 2;

/// How many tables an arena has.
pub(super) const TABLES: usize = 10;

/// Where a table lies, and how long it is.
#[derive(Clone, Copy)]
pub(super) struct Table {
    /// In bytes behind the arena: whole pages.
    pub(super) start: usize,
    /// Entries for the whole range.
    pub(super) count: usize,
    /// Bytes of an entry.
    entry: usize,
    /// Bytes of the range that an entry is for.
    covers: usize,
}

impl Table {
    /// A table from `start` on with entries of `entry` bytes, one for each `covers` bytes of a range of `range_bytes`.
    pub(super) const fn new(start: usize, range_bytes: usize, covers: usize, entry: usize) -> Self {
        Self {
            start,
            count: range_bytes.div_ceil(covers) + SPARE,
            entry,
            covers,
        }
    }

    /// Where the entries for the first `held` bytes of the range end; `None` if no number holds it.
    pub(super) fn end(&self, held: usize) -> Option<usize> {
        let entries = (held.div_ceil(self.covers) + SPARE).min(self.count);
        entries.checked_mul(self.entry)?.checked_add(self.start)
    }
}

/// The tables' memory. Its caller holds `growing`, or has the arena alone.
pub(super) struct TableMemory<O: Os> {
    os: &'static O,
    /// Where the arena starts, in front of its tables.
    arena: *mut u8,
    tables: [Table; TABLES],
    /// Up to where each table is committed, in bytes behind the arena. Relaxed: changed under `growing`.
    ends: [AtomicUsize; TABLES],
}

impl<O: Os> TableMemory<O> {
    /// Nothing of the tables is committed yet.
    pub(super) fn new(os: &'static O, arena: *mut u8, tables: [Table; TABLES]) -> Self {
        Self {
            os,
            arena,
            tables,
            ends: tables.map(|table| AtomicUsize::new(table.start)),
        }
    }

    /// Where memory comes from.
    pub(super) const fn os(&self) -> &'static O {
        self.os
    }

    /// Where the arena starts, in front of its tables.
    pub(super) const fn arena(&self) -> *mut u8 {
        self.arena
    }

    /// Commits what the first `held` bytes of the range need; whether all of it is committed now. Up to a system call a
    /// table, once in [`STEP_BYTES`] of growth.
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

    /// Bytes that are committed.
    #[cfg(test)]
    pub(super) fn committed_bytes(&self) -> usize {
        let ends = self.tables.iter().zip(&self.ends);
        ends.map(|(table, end)| end.load(Ordering::Relaxed) - table.start)
            .sum()
    }
}

const _: () = assert!(STEP_BYTES.is_multiple_of(GROWTH_BYTES));
