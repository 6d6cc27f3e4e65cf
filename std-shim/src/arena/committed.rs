//! [`Committed`]: the memory source of an arena's BFC, committed from the start of the range
//! upward.

use larder_core::{Addr, AddrRange, Align, FixedRange, GrowRequest, SubAllocError, SubAllocator};

use super::GROWTH_BYTES;
use super::marks::Marks;
use super::residency::{HUGE, Residency, SHORT};
use super::seams::Seams;
use super::table_memory::TableMemory;
use crate::config::Tuning;
use crate::os::Os;

/// Commits a range piece by piece. The caller holds `growing`. So pieces are committed and entered
/// in the BFC in the order of their addresses, each directly behind the last, and a released piece
/// is not handed out again before the BFC has removed it.
pub(super) struct Committed<O: Os> {
    os: &'static O,
    tuning: &'static Tuning,
    residency: &'static Residency,
    range: FixedRange,
    /// The range as a pointer, and its length.
    start: *mut u8,
    bytes: usize,
    marks: Marks,
    split: Marks,
    seams: Seams,
    tables: TableMemory<O>,
}

impl<O: Os> Committed<O> {
    /// Creates the source of `range`, which starts at `start`, with nothing committed.
    pub(super) fn new(
        tuning: &'static Tuning,
        residency: &'static Residency,
        range: AddrRange,
        start: *mut u8,
        [marks, split]: [Marks; 2],
        seams: Seams,
        tables: TableMemory<O>,
    ) -> Self {
        Self {
            os: tables.os(),
            tuning,
            residency,
            range: FixedRange::new(range),
            start,
            bytes: range.bytes() as usize,
            marks,
            split,
            seams,
            tables,
        }
    }

    /// Requests huge pages for committed memory beyond the program's bound, up to `end`, if the
    /// arena is dense. The advice covers all of that memory each time, so that it stays one
    /// mapping. The caller holds `growing`.
    pub(super) fn advise(&self, end: Addr) {
        let Ok(above) = usize::try_from(self.tuning.huge_above()) else {
            return;
        };
        let end = end.get() as usize - self.start.addr();
        if self.residency.is_beyond(end) {
            return self.advise_short(end);
        }
        let from = above.checked_next_multiple_of(GROWTH_BYTES).unwrap_or(end);
        if from < end
            && self
                .residency
                .is_dense(end, self.tuning.config().dense_percent)
        {
            let start = self.start.wrapping_add(from);
            self.seams.mark(start.addr());
            self.seams.mark(start.addr() + end - from);
            // SAFETY: committed. If the advice is refused, the pages stay as they are.
            unsafe { self.os.advise_huge(start, end - from) };
            if self.residency.advice() != HUGE {
                self.split.clear_whole(start.addr(), end - from);
            }
            self.residency.set_advice(HUGE);
        } else if self.residency.advice() == SHORT {
            self.advise_short(end);
        }
    }

    /// Returns whether residency matters for a range of `held` bytes and the system may be asked
    /// for it.
    fn should_look(&self, held: usize) -> bool {
        let above = self.tuning.huge_above();
        above != u64::MAX
            && held as u64 > above
            && !self.residency.is_beyond(held)
            && self.os.has_huge_pages()
            && !self.os.is_filtered()
    }

    /// Withdraws the advice for huge pages if committed memory up to `end` has become holey, and
    /// renews it if that memory is dense again. The caller holds `growing`.
    pub(super) fn review(&self, end: Addr) {
        let held = end.get() as usize - self.start.addr();
        if self.residency.is_beyond(held) && self.residency.advice() != SHORT {
            return self.advise_short(held);
        }
        if !self.should_look(held) {
            return;
        }
        // SAFETY: committed up to `end`, as the caller promises.
        let is_holey = unsafe { self.residency.is_holey(self.os, self.start, held) };
        match is_holey {
            Some(true) if self.residency.advice() != SHORT => self.advise_short(held),
            Some(false) if self.residency.advice() == SHORT => {
                // SAFETY: committed up to `end`, as the caller promises.
                unsafe { self.residency.look(self.os, self.start, held, self.bytes) };
                self.advise(end);
            }
            _ => {}
        }
    }

    /// Advises against huge pages up to `end`. The advice covers all of that memory each time, so
    /// that it stays one mapping.
    fn advise_short(&self, end: usize) {
        if self.residency.advice() != SHORT {
            self.residency.look_again();
        }
        self.seams.mark(self.start.addr() + end);
        // SAFETY: committed. If the advice is refused, the pages stay as they are.
        unsafe { self.os.advise_short(self.start, end) };
        self.residency.set_advice(SHORT);
    }

    /// Returns the committed bytes of the tables, without the arena itself.
    #[cfg(test)]
    pub(super) fn table_bytes(&self) -> usize {
        self.tables.committed_bytes()
    }

    fn pointer(&self, range: AddrRange) -> (*mut u8, usize) {
        let start = self.start.with_addr(range.start().get() as usize);
        (start, range.bytes() as usize)
    }
}

impl<O: Os> SubAllocator for Committed<O> {
    fn grow(&self, request: GrowRequest) -> Result<AddrRange, SubAllocError> {
        let held = self.range.used_bytes() as usize;
        let piece = self.range.grow(request)?;
        let (start, bytes) = self.pointer(piece);
        match self.should_look(held + bytes) {
            // SAFETY: the range is committed so far.
            true => unsafe { self.residency.look(self.os, self.start, held, self.bytes) },
            false => self.residency.forget(),
        }
        let ready = self.tables.cover(held + bytes);
        // SAFETY: a piece of the reserved range.
        if ready && unsafe { self.os.commit(start, bytes) } {
            self.advise(piece.end());
            return Ok(piece);
        }
        self.range.release(piece)?;
        Err(SubAllocError)
    }

    fn release(&self, range: AddrRange) -> Result<(), SubAllocError> {
        self.range.release(range)?;
        let (start, bytes) = self.pointer(range);
        // Memory committed here again may be a different mapping from the memory before it.
        self.seams.mark(start.addr());
        // SAFETY: the BFC released the range, so nothing in it is used.
        if unsafe { self.os.decommit(start, bytes) } {
            self.marks.clear(start.addr(), bytes);
            self.split.clear_whole(start.addr(), bytes);
            self.seams.forget(start.addr(), bytes);
            return Ok(());
        }
        // The piece was the end of the committed range, so it is the next one to be handed out.
        let request = GrowRequest {
            bytes: range.bytes(),
            align: Align::ONE,
            at: None,
        };
        self.range.grow(request)?;
        Err(SubAllocError)
    }
}
