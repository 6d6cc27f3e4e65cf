//! A long block that grows where it cannot stay: its pages move behind the new addresses, nothing is
//! copied, and at no time is it in memory twice.
//!
//! ```text
//!   before   │ block, dirty   │ neighbour │          free, clean          │
//!   after    │ free, clean    │ neighbour │ block, same pages │ its growth │
//! ```
//! The system moves the pages of one mapping at a time, and what was moved stays a mapping of its own
//! for as long as the range has it. So the places where mappings may end, *seams*, are kept, a move goes
//! from seam to seam, and there is a bound on their number, as systems have one on mappings. A block
//! that lands on memory which is resident already is copied: moving would throw those pages away, and
//! new ones for the place it left cost more than the copy.
//!
//! # Invariants
//! * A6 a seam is marked before it comes to be, and its mark goes only with a move over both of its
//!   sides. Marks without a seam cost a call; a seam without a mark is a refusal.
//! * A7 a refusal is the last: nothing moves in this arena from then on.

use std::ops::Range;
use std::ptr::{self, NonNull};

use larder_core::Addr;
use larder_core::sync::{AtomicU8, AtomicUsize, Ordering};

use super::{Arena, GROWTH_BYTES};
use crate::marks::Marks;
use crate::os::{Moved, Os};

/// Shorter blocks are copied. Pages move in whole tables of them where both places are aligned to
/// such a stretch, and blocks of that length and more are.
pub(crate) const MOVE_LEAST_BYTES: usize = GROWTH_BYTES;

/// Most seams of an arena: an eighth of the mappings that Linux allows a process.
const MOST_SEAMS: usize = 8192;

/// A block that has grown, elsewhere.
pub(crate) struct Grown {
    pub(crate) block: NonNull<u8>,
    /// Bytes that became idle where it was.
    pub(crate) idle_bytes: usize,
}

/// Where the mappings of a range may end.
pub(crate) struct Seams {
    marks: Marks,
    count: AtomicUsize,
    /// Whether the system has refused (A7).
    refused: AtomicU8,
}

impl Seams {
    /// One mapping.
    pub(super) const fn new(marks: Marks) -> Self {
        Self {
            marks,
            count: AtomicUsize::new(0),
            refused: AtomicU8::new(0),
        }
    }

    /// Whether another move may be tried. Relaxed, as all here: each is a hint by itself.
    fn may_move(&self) -> bool {
        let count = self.count.load(Ordering::Relaxed);
        self.refused.load(Ordering::Relaxed) == 0 && count < MOST_SEAMS
    }

    fn refuse(&self) {
        self.refused.store(1, Ordering::Relaxed);
    }

    fn mark(&self, addr: usize) {
        self.count
            .fetch_add(self.marks.insert(addr), Ordering::Relaxed);
    }

    /// The mapping over a range becomes that of another one of the same length.
    fn lay(&self, from: usize, to: usize, bytes: usize) {
        let unit = self.marks.unit();
        let inner = self.marks.take(to + unit, bytes - unit);
        self.count.fetch_sub(inner, Ordering::Relaxed);
        self.mark(to);
        self.mark(to + bytes);
        for stretch in self.stretches(from, bytes) {
            self.mark(to + stretch.start);
        }
    }

    /// Offsets of the stretches of a range between seams.
    fn stretches(&self, addr: usize, bytes: usize) -> impl Iterator<Item = Range<usize>> {
        let unit = self.marks.unit();
        let mut at = 0;
        std::iter::from_fn(move || {
            let rest = addr + at + unit..addr + bytes;
            let seam = (at < bytes).then(|| self.marks.next_stretch(None, rest, unit))?;
            let start = at;
            at = seam.map_or(bytes, |seam| seam.start - addr);
            Some(start..at)
        })
    }
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
        let moved = match is_warm {
            true => 0,
            // SAFETY: two blocks, both committed and the caller's.
            false => unsafe { self.move_block(block, to, bytes) }?,
        };
        // SAFETY: both are as long, and two; the rest has not moved.
        unsafe { copy(block, to, moved..old_bytes.max(moved)) };
        self.uses.vacated(moved);
        // What has moved away left zeros.
        self.marks.clear(block.addr(), moved);
        let idle_bytes = old_bytes.saturating_sub(moved);
        let rest = block.wrapping_add(moved);
        if moved == 0 {
            self.free(block, old_bytes);
        } else {
            self.mark_freed(rest.addr(), idle_bytes);
            self.bfc.free_addr(Addr::new(block.addr() as u64)).ok();
        }
        Some(Grown {
            block: grown,
            idle_bytes,
        })
    }

    /// Moves the pages of a block, from its start as far as the system does; how far that is. `None`
    /// if the other block is lost: it stays allocated for ever, and this one is as it was.
    ///
    /// # Safety
    /// The caller holds both, at least that long, and uses neither.
    unsafe fn move_block(&self, from: *mut u8, to: *mut u8, bytes: usize) -> Option<usize> {
        self.seams.lay(from.addr(), to.addr(), bytes);
        for stretch in self.seams.stretches(from.addr(), bytes) {
            let (at, length) = (stretch.start, stretch.len());
            // SAFETY: blocks are committed, and these are the caller's.
            let done =
                unsafe { (self.os).move_pages(from.wrapping_add(at), to.wrapping_add(at), length) };
            match done {
                Moved::Whole => {}
                Moved::Nothing => {
                    self.seams.refuse();
                    return Some(at);
                }
                Moved::Lost => {
                    self.seams.refuse();
                    // SAFETY: what has moved is there, and its old place usable.
                    unsafe { copy(to, from, 0..at) };
                    return None;
                }
            }
        }
        Some(bytes)
    }
}

/// Copies a part of one block to the same part of another.
///
/// # Safety
/// Two blocks of the caller's, at least as long.
unsafe fn copy(from: *mut u8, to: *mut u8, part: Range<usize>) {
    let (source, place) = (from.wrapping_add(part.start), to.wrapping_add(part.start));
    // SAFETY: the caller's promise.
    unsafe { ptr::copy_nonoverlapping(source, place, part.len()) };
}

#[cfg(test)]
mod tests {
    use larder_core::sync::AtomicU64;

    use super::*;
    use crate::tests::random::Random;

    #[test]
    fn seams_are_known_wherever_mappings_end() {
        const UNIT: usize = 16 << 10;
        const GRANULES: usize = 512;
        const START: usize = 1 << 30;
        let words = (0..GRANULES / 64).map(|_| AtomicU64::new(0));
        let seams = Seams::new(Marks::new(Box::leak(words.collect()), START, UNIT));
        // Where each granule's page was at first: a seam is where two neighbours' were none.
        let mut origin: Vec<usize> = (0..GRANULES).collect();
        let mut random = Random(3);
        let mut random = |below| random.next(below);
        for _ in 0..2000 {
            let count = random(60) + 1;
            let from = random(GRANULES - count + 1);
            let to = random(GRANULES - count + 1);
            if from.abs_diff(to) < count {
                continue;
            }
            let addr = |granule: usize| START + granule * UNIT;
            seams.lay(addr(from), addr(to), count * UNIT);
            origin.copy_within(from..from + count, to);
            let mut at = 0;
            let mut marked = [false; GRANULES];
            for stretch in seams.stretches(START, GRANULES * UNIT) {
                assert_eq!(stretch.start, at, "stretches follow each other");
                at = stretch.end;
                marked[stretch.start / UNIT] = true;
            }
            assert_eq!(at, GRANULES * UNIT);
            for granule in 1..GRANULES {
                let is_seam = origin[granule] != origin[granule - 1] + 1;
                assert!(!is_seam || marked[granule], "{granule}");
            }
            // The first stretch starts with the range, marked or not.
            let inside = marked[1..].iter().filter(|is| **is).count();
            let count = seams.count.load(Ordering::Relaxed);
            assert!((inside..=inside + 1).contains(&count), "{count}");
        }
    }
}
