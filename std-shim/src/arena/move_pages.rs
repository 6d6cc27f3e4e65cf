//! Growing a long block at another address by moving its pages there, so that nothing is copied and
//! nothing is resident twice.
//!
//! ```text
//!   before   │ block, dirty   │ neighbour │          free, clean          │
//!   after    │ free, clean    │ neighbour │ block, same pages │ its growth │
//! ```
//! The system moves the pages of one mapping at a time, and moved pages remain a separate mapping
//! for as long as they stay in the range. So the places where mappings may end are recorded
//! (`seams`), a move goes from seam to seam, and the number of seams is bounded, because systems
//! bound the number of mappings. A block whose new place is already resident is copied: moving
//! would throw those pages away, and faulting in new pages at the old place costs more than the
//! copy. A block is also copied if the program has locked it or split its mapping: the system is
//! asked before each move.

use core::ops::Range;
use core::ptr::{self, NonNull};

use larder_core::Addr;

use super::{Arena, GROWTH_BYTES};
use crate::os::{Moved, Os};

/// Minimum length in bytes of a block whose pages move; shorter blocks are copied. The new place of
/// a block is a multiple of this length, so that from the second move of a block, whole page tables
/// move and huge pages stay whole.
pub(crate) const MOVE_LEAST_BYTES: usize = GROWTH_BYTES;

/// Length in bytes of the pieces in which a block that leaves an arena is copied.
const LEAVE_BYTES: usize = 4 << 20;
/// Length in bytes of the parts in which a block that leaves an arena is tested for zeros: that of
/// the shortest page.
const PAGE_BYTES: usize = 4 << 10;

/// A block that has grown at another address.
pub(crate) struct Grown {
    pub(crate) block: NonNull<u8>,
    /// Bytes that became idle at its old address.
    pub(crate) idle_bytes: usize,
}

impl<O: Os> Arena<O> {
    /// Grows a block that cannot grow in place, by moving it. Returns `None`, and changes nothing,
    /// if pages cannot be moved here or there is no room.
    ///
    /// # Safety
    /// The block is the caller's, `old_bytes` long, and not used during the call.
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
                // The memory behind the lost part is not affected.
                self.resize(to, end);
                return None;
            }
        };
        // SAFETY: two blocks, both at least that long; the rest has not moved.
        unsafe { copy(block, to, moved..old_bytes.max(moved)) };
        // Memory whose pages moved away reads as zero.
        self.marks.clear(block.addr(), moved);
        let idle_bytes = self.free_rest(block, moved);
        Some(Grown {
            block: grown,
            idle_bytes,
        })
    }

    /// Copies a block of `bytes` bytes to memory outside of the arena that reads as zero, and frees
    /// the block. Works piece by piece, so that little of the block is resident twice, and skips
    /// pages that read as zero, so that untouched pages stay untouched.
    ///
    /// # Safety
    /// The block is the caller's, `bytes` long, and not used during the call; likewise `to`.
    pub(crate) unsafe fn leave(&self, block: *mut u8, to: *mut u8, bytes: usize) {
        let mut gone = 0;
        for at in (0..bytes).step_by(LEAVE_BYTES) {
            let end = bytes.min(at + LEAVE_BYTES);
            for page in (at..end).step_by(PAGE_BYTES) {
                let part = page..end.min(page + PAGE_BYTES);
                // SAFETY: the part lies in the caller's block.
                if !unsafe { is_zero(block, part.clone()) } {
                    // SAFETY: the part lies in both blocks, which are distinct.
                    unsafe { copy(block, to, part) };
                }
            }
            let whole = (end - at) / self.marks.unit() * self.marks.unit();
            // SAFETY: committed; its contents are already copied.
            if gone == at && whole > 0 && unsafe { self.os.discard(block.wrapping_add(at), whole) }
            {
                gone = at + whole;
            }
        }
        self.marks.clear(block.addr(), gone);
        self.split.clear_whole(block.addr(), gone);
        self.free_rest(block, gone);
    }

    /// Frees a block of which the first `moved` bytes are clean. Returns how many of the rest
    /// became idle.
    fn free_rest(&self, block: *mut u8, moved: usize) -> usize {
        let bytes = self.bytes_at(block).unwrap_or(0) as usize;
        let rest_bytes = bytes.saturating_sub(moved);
        self.mark_freed(block.addr() + moved, rest_bytes);
        self.free_in_bfc(block);
        rest_bytes
    }

    /// Moves the pages of a block, beginning at its start, as far as the system allows. Returns the
    /// length moved. The caller holds `growing`.
    ///
    /// # Safety
    /// The caller holds both blocks, each at least `bytes` long, and uses neither.
    unsafe fn move_block(
        &self,
        from: *mut u8,
        to: *mut u8,
        bytes: usize,
    ) -> Result<usize, LostPlace> {
        // A move requires that the memory behind the block is ours.
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
                    // Huge pages move whole.
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
                    // SAFETY: the pages before `at` have moved to `to`, and their old place is
                    // usable.
                    unsafe { copy(to, from, 0..at) };
                    if at > 0 {
                        // SAFETY: up to `at` the place is ours, and is never used again.
                        unsafe { self.os.discard(to, at) };
                    }
                    return Err(LostPlace(run.end));
                }
            }
        }
        // Pages keep the advice of the place from which they come.
        let end = self.start.addr() as u64 + self.numbers().1;
        self.pool.source().advise(Addr::new(end));
        Ok(bytes)
    }

    /// Counts the free bytes without pages, before growth in an arena whose pages have moved.
    /// O(chunks).
    pub(super) fn count_vacant(&self) {
        if self.seams.have_moved() && self.room() > 0 {
            let (live, committed) = self.numbers();
            let vacant = committed.saturating_sub(live + self.idle_bytes());
            self.residency.set_vacant(vacant as usize);
        }
    }

    /// Marks the end of committed memory as a seam in the child of a fork: memory committed later
    /// is another mapping.
    pub(crate) fn in_child(&self) {
        let committed = self.numbers().1 as usize;
        self.seams.mark(self.start.addr() + committed);
    }

    /// Returns the number of marked seams.
    #[cfg(test)]
    pub(crate) fn seams(&self) -> usize {
        self.seams.count()
    }
}

/// The target of a move, which the heap has lost up to this offset: that part stays allocated for
/// the life of the process. The block is unchanged.
struct LostPlace(usize);

/// Returns whether a part of a block reads as zero. Reading untouched memory shows a zero page that
/// all processes share.
///
/// # Safety
/// The block is the caller's and contains the part.
unsafe fn is_zero(block: *mut u8, part: Range<usize>) -> bool {
    let start = block.wrapping_add(part.start);
    // SAFETY: the part lies in the caller's block; memory of the heap is initialized.
    let bytes = unsafe { core::slice::from_raw_parts(start, part.len()) };
    // The first byte is zero, and each equals the one before.
    match bytes {
        [first, rest @ ..] => *first == 0 && *rest == bytes[..rest.len()],
        [] => true,
    }
}

/// Copies a part of one block to the same part of another.
///
/// # Safety
/// Both blocks are the caller's, distinct, and contain the part.
unsafe fn copy(from: *mut u8, to: *mut u8, part: Range<usize>) {
    let (source, place) = (from.wrapping_add(part.start), to.wrapping_add(part.start));
    // SAFETY: the part lies in both of the caller's blocks, which are distinct.
    unsafe { ptr::copy_nonoverlapping(source, place, part.len()) };
}
