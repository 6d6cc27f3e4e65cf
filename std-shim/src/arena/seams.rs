//! [`Seams`]: the places where the system's mappings of a range may end, and whether its pages can
//! move.
//!
//! # Invariants
//! * SEAM1 wherever the heap makes a mapping end, it has set a mark before: at the ends of moves
//!   and of advice, and in the child of a fork at the end of committed memory. A mark is removed by
//!   a move over both of its sides, or when both are decommitted. A mark without a seam costs a
//!   call; a seam without a mark, which only the program makes, costs a copy.
//! * SEAM2 a refusal is final: a thread that sees it under `growing`, which is held for moves and
//!   advice, moves nothing in this arena.

use core::ops::Range;

use larder_core::sync::{AtomicU8, AtomicUsize, Ordering};

use super::marks::Marks;

/// Maximum number of seams of an arena: an eighth of the mappings that Linux allows a process.
const MAX_SEAMS: usize = 8192;

/// The state of the moves in an arena. All zero before the first move.
pub(super) struct Moves {
    /// Number of marked seams.
    seams: AtomicUsize,
    /// Whether anything has moved, and whether the system has refused (SEAM2).
    any: AtomicU8,
    refused: AtomicU8,
}

/// The places where the mappings of a range may end. All accesses are relaxed: a mark is set and
/// removed by a thread that holds one of its sides or `growing`; the rest are hints.
#[derive(Clone, Copy)]
pub(super) struct Seams {
    marks: Marks,
    moves: &'static Moves,
}

impl Seams {
    /// Creates the seams of a range that is one mapping. The `marks` are clear.
    pub(super) const fn new(marks: Marks, moves: &'static Moves) -> Self {
        Self { marks, moves }
    }

    /// Returns whether another move may be tried.
    pub(super) fn may_move(&self) -> bool {
        let count = self.moves.seams.load(Ordering::Relaxed);
        self.moves.refused.load(Ordering::Relaxed) == 0 && count < MAX_SEAMS
    }

    pub(super) fn refuse(&self) {
        self.moves.refused.store(1, Ordering::Relaxed);
    }

    /// Returns whether anything has moved.
    pub(super) fn have_moved(&self) -> bool {
        self.moves.any.load(Ordering::Relaxed) != 0
    }

    /// Marks a place where a mapping may end from now on.
    pub(super) fn mark(&self, addr: usize) {
        let added = self.marks.insert(addr);
        self.moves.seams.fetch_add(added, Ordering::Relaxed);
    }

    /// Removes the marks inside a range that is one mapping again. The mapping before it may still
    /// end at its start.
    pub(super) fn forget(&self, addr: usize, bytes: usize) {
        let unit = self.marks.unit();
        let inner = self.marks.take(addr + unit, bytes - unit);
        self.moves.seams.fetch_sub(inner, Ordering::Relaxed);
    }

    /// Marks the seams that moving a range of `bytes` bytes may make, before the move.
    pub(super) fn expect(&self, from: usize, to: usize, bytes: usize) {
        self.mark(to);
        self.mark(to + bytes);
        for run in self.runs(from, bytes) {
            self.mark(to + run.start);
        }
    }

    /// Records that a run of one mapping was moved there, in place of the previous memory.
    pub(super) fn laid(&self, addr: usize, bytes: usize) {
        self.moves.any.store(1, Ordering::Relaxed);
        self.forget(addr, bytes);
    }

    /// Returns the number of marks.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.moves.seams.load(Ordering::Relaxed)
    }

    /// Returns the offsets of the runs of a range between seams.
    pub(super) fn runs(&self, addr: usize, bytes: usize) -> impl Iterator<Item = Range<usize>> {
        let unit = self.marks.unit();
        let mut at = 0;
        core::iter::from_fn(move || {
            let rest = addr + at + unit..addr + bytes;
            let seam = (at < bytes).then(|| self.marks.next_run(None, rest, unit))?;
            let start = at;
            at = seam.map_or(bytes, |seam| seam.start - addr);
            Some(start..at)
        })
    }
}

#[cfg(test)]
mod tests {
    use larder_core::sync::AtomicU64;

    use super::*;
    use crate::tests::random::Random;

    const UNIT: usize = 16 << 10;
    const GRANULES: usize = 512;
    const START: usize = 1 << 30;

    fn seams() -> Seams {
        let words = (0..GRANULES / 64).map(|_| AtomicU64::new(0));
        let moves = Box::leak(Box::new(Moves {
            seams: AtomicUsize::new(0),
            any: AtomicU8::new(0),
            refused: AtomicU8::new(0),
        }));
        Seams::new(Marks::new(Box::leak(words.collect()), START, UNIT), moves)
    }

    /// Returns where the runs of the whole range begin, in granules.
    fn starts(seams: &Seams) -> Vec<usize> {
        let runs = seams.runs(START, GRANULES * UNIT);
        runs.map(|run| run.start / UNIT).collect()
    }

    #[test]
    fn marks_go_with_what_was_laid_and_not_with_what_was_only_expected() {
        let seams = seams();
        let addr = |granule: usize| START + granule * UNIT;
        for granule in [5, 104, 107, 109, 112] {
            seams.mark(addr(granule));
        }
        seams.expect(addr(0), addr(102), 10 * UNIT);
        assert_eq!(starts(&seams), [0, 5, 102, 104, 107, 109, 112]);
        assert!(!seams.have_moved());
        // The first mapping of the source moved, the second did not.
        seams.laid(addr(102), 5 * UNIT);
        assert_eq!(starts(&seams), [0, 5, 102, 107, 109, 112]);
        assert!(seams.have_moved());
        seams.forget(addr(102), 10 * UNIT);
        assert_eq!(starts(&seams), [0, 5, 102, 112]);
        assert_eq!(seams.count(), 3);
    }

    #[test]
    fn seams_are_known_wherever_mappings_end() {
        let seams = seams();
        // Where each granule's page was at first: a seam is where neighbours were not.
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
            seams.expect(addr(from), addr(to), count * UNIT);
            let runs: Vec<_> = seams.runs(addr(from), count * UNIT).collect();
            for run in runs {
                seams.laid(addr(to) + run.start, run.len());
            }
            origin.copy_within(from..from + count, to);
            let mut at = 0;
            let mut marked = [false; GRANULES];
            for run in seams.runs(START, GRANULES * UNIT) {
                assert_eq!(run.start, at, "runs follow each other");
                at = run.end;
                marked[run.start / UNIT] = true;
            }
            assert_eq!(at, GRANULES * UNIT);
            for granule in 1..GRANULES {
                let is_seam = origin[granule] != origin[granule - 1] + 1;
                assert!(!is_seam || marked[granule], "{granule}");
            }
            // The first run starts with the range, marked or not.
            let inside = marked[1..].iter().filter(|is| **is).count();
            let count = seams.count();
            assert!((inside..=inside + 1).contains(&count), "{count}");
        }
    }
}
