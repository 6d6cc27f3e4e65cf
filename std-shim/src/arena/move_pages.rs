//! A long block that grows where it cannot stay: its pages move behind the new addresses, so nothing is
//! copied and nothing in memory twice.
//!
//! ```text
//!   before   │ block, dirty   │ neighbour │          free, clean          │
//!   after    │ free, clean    │ neighbour │ block, same pages │ its growth │
//! ```
//! The system moves the pages of one mapping at a time, and what was moved stays a mapping of its own
//! for as long as the range has it. So the places where mappings may end are kept (`seams`), a move goes
//! from seam to seam, and there is a bound on their number, as systems have one on mappings. A block
//! that lands on memory which is resident already is copied: moving would throw those pages away, and
//! new ones for the place it left cost more than the copy. So is one that the program has given
//! mappings of its own, or locked: the system is asked before each move.

use core::ops::Range;
use core::ptr::{self, NonNull};

use larder_core::Addr;

use super::{Arena, GROWTH_BYTES};
use crate::os::{Moved, Os};

/// Shorter blocks are copied, and longer ones get places at multiples of this: from their second move on
/// pages go in whole tables, and huge ones stay whole.
pub(crate) const MOVE_LEAST_BYTES: usize = GROWTH_BYTES;

/// What leaves an arena is copied in pieces of this length.
const LEAVE_BYTES: usize = 4 << 20;
/// What leaves an arena is looked at in parts of this length: the shortest page.
const PAGE_BYTES: usize = 4 << 10;

/// A block that has grown, elsewhere.
pub(crate) struct Grown {
    pub(crate) block: NonNull<u8>,
    /// Bytes that became idle where it was.
    pub(crate) idle_bytes: usize,
}

impl<O: Os> Arena<O> {
    /// A longer block with the contents of one that cannot grow in place, which is gone then. `None`
    /// if pages do not move here or there is no room: nothing has happened.
    ///
    /// # Safety
    /// The block is the caller's, `old_bytes` long, and used by nobody meanwhile.
    pub(crate) unsafe fn grow_elsewhere(
        &self,
        block: *mut u8,
        old_bytes: usize,
        new_bytes: usize,
        align: usize,
    ) -> Option<Grown> {
        let bytes = self.granted_bytes(old_bytes) as usize;
        let is_block = self.bytes_at(block)? >= bytes as u64;
        if !is_block || new_bytes < old_bytes || !self.seams.may_move() {
            return None;
        }
        let grown = self.alloc(new_bytes, align.max(MOVE_LEAST_BYTES))?;
        let to = grown.as_ptr();
        let is_warm = self.marks.count(to.addr(), bytes) > bytes / self.marks.unit() / 2;
        // SAFETY: two blocks, both committed and the caller's.
        let move_all = |_: &mut ()| unsafe { self.move_block(block, to, bytes) };
        let moved = match is_warm {
            true => Ok(0),
            false => self.growing.with(move_all),
        };
        let moved = match moved {
            Ok(moved) => moved,
            Err(LostPlace(end)) => {
                // What lies behind the lost place is as good as before.
                self.resize(to, new_bytes, end);
                return None;
            }
        };
        // SAFETY: both are as long, and two; the rest has not moved.
        unsafe { copy(block, to, moved..old_bytes.max(moved)) };
        // What has moved away left zeros.
        self.marks.clear(block.addr(), moved);
        let idle_bytes = self.free_rest(block, moved, old_bytes);
        Some(Grown {
            block: grown,
            idle_bytes,
        })
    }

    /// Copies a block of `bytes` bytes to memory outside of the arena that reads as zero, and frees it: piece by
    /// piece, so that little of it is in memory twice, and without the pages that read as zero, so that what
    /// was never touched stays so.
    ///
    /// # Safety
    /// The block is the caller's, that long, and used by nobody meanwhile; so is the place.
    pub(crate) unsafe fn leave(&self, block: *mut u8, to: *mut u8, bytes: usize) {
        let mut gone = 0;
        for at in (0..bytes).step_by(LEAVE_BYTES) {
            let end = bytes.min(at + LEAVE_BYTES);
            for page in (at..end).step_by(PAGE_BYTES) {
                let part = page..end.min(page + PAGE_BYTES);
                // SAFETY: the caller's block, which is that long.
                if !unsafe { is_zero(block, part.clone()) } {
                    // SAFETY: both are that long, and two.
                    unsafe { copy(block, to, part) };
                }
            }
            let whole = (end - at) / self.marks.unit() * self.marks.unit();
            // SAFETY: committed; its contents are elsewhere.
            if gone == at && whole > 0 && unsafe { self.os.discard(block.wrapping_add(at), whole) }
            {
                gone = at + whole;
            }
        }
        self.marks.clear(block.addr(), gone);
        self.split.clear_whole(block.addr(), gone);
        self.free_rest(block, gone, bytes);
    }

    /// Takes a block back of which the first `moved` bytes are clean; how many of the rest became idle.
    fn free_rest(&self, block: *mut u8, moved: usize, bytes: usize) -> usize {
        let rest_bytes = bytes.saturating_sub(moved);
        self.mark_freed(block.addr() + moved, rest_bytes);
        self.free_in_bfc(block);
        rest_bytes
    }

    /// Moves the pages of a block, from its start as far as the system does; how far that is. The caller
    /// holds `growing`.
    ///
    /// # Safety
    /// The caller holds both, at least that long, and uses neither.
    unsafe fn move_block(
        &self,
        from: *mut u8,
        to: *mut u8,
        bytes: usize,
    ) -> Result<usize, LostPlace> {
        // The system is asked about what lies behind, so that must be ours.
        let ends_range = from.addr() + bytes == self.start.addr() + self.bytes;
        if ends_range || !self.seams.may_move() {
            return Ok(0);
        }
        self.seams.expect(from.addr(), to.addr(), bytes);
        for run in self.seams.runs(from.addr(), bytes) {
            let (at, length) = (run.start, run.len());
            let (source, place) = (from.wrapping_add(at), to.wrapping_add(at));
            // SAFETY: blocks are committed, and these are the caller's.
            let done = unsafe { self.os.move_pages(source, place, length) };
            match done {
                Moved::Whole => {
                    self.seams.laid(place.addr(), length);
                    // Huge pages move as such.
                    for moved in [source, place] {
                        self.split.clear_whole(moved.addr(), length);
                    }
                }
                Moved::Unfit => return Ok(at),
                Moved::Refused => {
                    self.seams.refuse();
                    return Ok(at);
                }
                Moved::Lost => {
                    self.seams.refuse();
                    // SAFETY: what has moved is there, and its old place usable.
                    unsafe { copy(to, from, 0..at) };
                    if at > 0 {
                        // SAFETY: up to there the place is ours, and never used again.
                        unsafe { self.os.discard(to, at) };
                    }
                    return Err(LostPlace(run.end));
                }
            }
        }
        // Pages keep the advice of the place that they come from.
        let end = self.start.addr() as u64 + self.numbers().1;
        self.bfc.source().advise(Addr::new(end));
        Ok(bytes)
    }

    /// Before a growth where pages have moved: counts the free bytes that have none. O(chunks).
    pub(super) fn count_vacant(&self) {
        if self.seams.have_moved() && self.room() > 0 {
            let (live, committed) = self.numbers();
            let vacant = committed.saturating_sub(live + self.idle_bytes());
            self.residency.set_vacant(vacant as usize);
        }
    }

    /// In the child of a fork: what is committed from now on is another mapping than what was.
    pub(crate) fn in_child(&self) {
        let committed = self.numbers().1 as usize;
        self.seams.mark(self.start.addr() + committed);
    }

    /// Where its mappings may end.
    #[cfg(test)]
    pub(crate) fn seams(&self) -> usize {
        self.seams.count()
    }
}

/// The place that a block was to move to is not the heap's any more, up to this offset: it stays
/// allocated for ever. The block is as it was.
struct LostPlace(usize);

/// Whether a part of a block reads as zero. Where it was never touched the system shows a page that all share.
///
/// # Safety
/// A block of the caller's, at least as long.
unsafe fn is_zero(block: *mut u8, part: Range<usize>) -> bool {
    let start = block.wrapping_add(part.start);
    // SAFETY: the part lies in the caller's block; memory of the heap has contents.
    let bytes = unsafe { core::slice::from_raw_parts(start, part.len()) };
    // The first is, and each is as the one before.
    match bytes {
        [first, rest @ ..] => *first == 0 && *rest == bytes[..rest.len()],
        [] => true,
    }
}

/// Copies a part of one block to the same part of another.
///
/// # Safety
/// Two blocks of the caller's, at least as long.
unsafe fn copy(from: *mut u8, to: *mut u8, part: Range<usize>) {
    let (source, place) = (from.wrapping_add(part.start), to.wrapping_add(part.start));
    // SAFETY: the part lies in both of the caller's blocks, which are two.
    unsafe { ptr::copy_nonoverlapping(source, place, part.len()) };
}
