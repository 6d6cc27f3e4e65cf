//! [`Residency`]: how much of what an arena holds is really in memory, and what follows from it.
//!
//! Requested bytes do not tell how a program uses its memory: large blocks are often touched at their
//! start only. So before each growth the system is asked how much of a bounded number of windows is
//! resident: tens of microseconds for a step whose pages cost many times that to touch.
//!
//! * **Dense**, most of it: what is added will be touched too, and is asked for in huge pages. One
//!   fault for 2 MiB costs a fraction of 512. Half is most where large blocks are, which are touched one
//!   after another. Where small ones are, that is a heap whose spans stay half carved, and more is asked.
//! * **Sparse**, little of it: what costs is each new place where a block starts. Large blocks then
//!   start at coarse multiples, so that their first pages are often pages that were touched before;
//!   what lies between costs addresses only, so there must be plenty.
//! * Neither, or not known: blocks lie as close as they can, on pages as they come.
//!
//! It is asked only where huge pages count: beyond the program's bound, where the system has them, and where no filter
//! of system calls may end the process for the question. There an arena counts as dense that is made of spans of
//! small blocks nearly as a whole, since those are touched one after another.

use core::ops::RangeInclusive;

use larder_core::sync::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::{GROWTH_BYTES, SLICE_BYTES};
use crate::os::Os;

/// How many places of what is held are looked at before a growth.
const WINDOWS: usize = 16;
/// Bytes of each: a huge page, which is resident as a whole or not at all.
const WINDOW_BYTES: usize = GROWTH_BYTES;

/// From how many resident percent on an arena is dense, if it is not made of spans of small blocks.
const DENSE: u32 = 50;
/// It is made of such spans from this part of it on.
const SMALL_PART: usize = 8;
/// An arena that is not looked at is dense from so many percent of such spans on.
const MOSTLY_SMALL: usize = 75;
/// Below how many it is sparse.
const SPARSE: u32 = 25;
/// An arena that holds more than this part of its addresses is never called sparse.
const PLENTY: usize = 4;

/// Blocks from here on have coarse places in a sparse arena.
const COARSE_LEAST_BYTES: usize = 128 << 10;
/// Distances between such places.
const SPACING: RangeInclusive<usize> = 256 << 10..=GROWTH_BYTES;

/// What was seen of an arena when it grew last. All zero before.
pub(super) struct Residency {
    /// 1 + percent of what was looked at that were resident, or what stands for it; 0 if not known. Relaxed: a hint.
    resident: AtomicU32,
    /// Spans of a slice, which are those of small blocks. Relaxed: a hint too.
    slices: AtomicU32,
    /// Free bytes that have no pages, if that was counted before this growth. A hint.
    vacant: AtomicUsize,
    /// Bytes given back to the system since huge pages were wished for last. A hint.
    given: AtomicU64,
    /// What was wished for last: 0 for nothing, [`HUGE`] or [`SHORT`]. Changed by who holds `growing`.
    advice: AtomicU32,
    /// No huge pages where more bytes are held, as the process may have so much only; 0 for no such bound. A hint.
    huge_until: AtomicU64,
    /// [`AGAIN`] and [`SPANS_AGAIN`]. Relaxed: read by the thread that ticks, or under its locks.
    again: AtomicU8,
}

/// The system was told that huge pages are wished for, or that they are not.
pub(super) const HUGE: u32 = 1;
pub(super) const SHORT: u32 = 2;

/// The next tick is to discard what is not known to be dirty, and to have spans scanned again.
const AGAIN: u8 = 1;
const SPANS_AGAIN: u8 = 2;

/// The wish for huge pages is taken back where less than so many percent of what is touched at all is resident:
/// the system makes huge pages of what carries the wish by itself, gaps included.
const CROWDED: u32 = 75;
/// The wish is also taken back where this part of what is held went back since: what went may have come
/// again by the same way.
const GIVEN_PART: u64 = 4;

impl Residency {
    /// Before a growth: so many free bytes have no pages. They say nothing about how blocks are used.
    pub(super) fn set_vacant(&self, bytes: usize) {
        self.vacant.store(bytes, Ordering::Relaxed);
    }

    /// Looks at the first `held` bytes of an arena of `bytes` bytes. Up to [`WINDOWS`] system calls.
    ///
    /// # Safety
    /// The first `held` bytes are committed.
    pub(super) unsafe fn look<O: Os>(&self, os: &O, start: *mut u8, held: usize, bytes: usize) {
        let windows = held / WINDOW_BYTES;
        let step = windows.div_ceil(WINDOWS).max(1);
        let is_scarce = held > bytes / PLENTY;
        let (mut seen, mut resident) = (0, 0);
        for window in (0..windows).step_by(step) {
            let at = start.wrapping_add(window * WINDOW_BYTES);
            // SAFETY: committed, the caller says.
            let Some(bytes) = (unsafe { os.resident_bytes(at, WINDOW_BYTES) }) else {
                return self.resident.store(0, Ordering::Relaxed);
            };
            (seen, resident) = (seen + WINDOW_BYTES, resident + bytes);
        }
        let vacant = self.vacant.load(Ordering::Relaxed);
        let rest = held.saturating_sub(vacant).max(1);
        if let Some(of_all) = (resident * 100).checked_div(seen) {
            let percent = (of_all as u64 * held as u64 / rest as u64).min(100) as u32;
            let least = if is_scarce { SPARSE } else { 0 };
            self.resident
                .store(1 + least.max(percent), Ordering::Relaxed);
        }
    }

    /// The system was not asked.
    pub(super) fn forget(&self) {
        self.resident.store(0, Ordering::Relaxed);
    }

    /// What the system was told last.
    pub(super) fn advice(&self) -> u32 {
        self.advice.load(Ordering::Relaxed)
    }

    /// The system was told something else.
    pub(super) fn set_advice(&self, advice: u32) {
        self.given.store(0, Ordering::Relaxed);
        self.advice.store(advice, Ordering::Relaxed);
    }

    /// Has no huge pages wished for where more is held, and those split of which a part goes back; or neither.
    pub(super) fn set_huge_until(&self, bytes: Option<u64>) {
        self.huge_until.store(bytes.unwrap_or(0), Ordering::Relaxed);
    }

    /// Whether there is a bound on what is held with huge pages.
    pub(super) fn is_bounded(&self) -> bool {
        self.huge_until.load(Ordering::Relaxed) > 0
    }

    /// Whether so much is held that there are to be no huge pages: of one that is used in part the system has all in
    /// memory, until it splits it, which is not as soon as a limit may need it.
    pub(super) fn is_beyond(&self, held: usize) -> bool {
        self.is_bounded() && held as u64 > self.huge_until.load(Ordering::Relaxed)
    }

    /// Has the next tick discard what is not known to be dirty, too, and spans scanned again: the system may have put pages
    /// there.
    pub(super) fn look_again(&self) {
        self.again.store(AGAIN | SPANS_AGAIN, Ordering::Relaxed);
    }

    /// Whether the next tick is to.
    pub(super) fn looks_again(&self) -> bool {
        self.again.load(Ordering::Relaxed) & AGAIN != 0
    }

    /// Whether this tick is to.
    pub(super) fn take_again(&self) -> bool {
        self.again.fetch_and(!AGAIN, Ordering::Relaxed) & AGAIN != 0
    }

    /// Whether spans are to be scanned again.
    pub(super) fn take_spans_again(&self) -> bool {
        self.again.fetch_and(!SPANS_AGAIN, Ordering::Relaxed) & SPANS_AGAIN != 0
    }

    /// Whether the advice may have to change.
    pub(super) fn is_due(&self) -> bool {
        self.advice() == SHORT || self.given.load(Ordering::Relaxed) > 0
    }

    /// So many bytes went back to the system.
    pub(super) fn count_given(&self, bytes: u64) {
        self.given.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Whether of the first `held` bytes of an arena so little is resident, among what is resident at all, or
    /// so much went back, that huge pages are not to be made of them. `None` if the system does not say.
    /// Up to [`WINDOWS`] system calls.
    ///
    /// # Safety
    /// The first `held` bytes are committed.
    pub(super) unsafe fn is_holey<O: Os>(
        &self,
        os: &O,
        start: *mut u8,
        held: usize,
    ) -> Option<bool> {
        if self.given.load(Ordering::Relaxed) > held as u64 / GIVEN_PART {
            return Some(true);
        }
        let windows = held / WINDOW_BYTES;
        let (mut seen, mut resident) = (0, 0);
        for window in (0..windows).step_by(windows.div_ceil(WINDOWS).max(1)) {
            let at = start.wrapping_add(window * WINDOW_BYTES);
            // SAFETY: committed, the caller says.
            let bytes = unsafe { os.resident_bytes(at, WINDOW_BYTES) }?;
            // Of a window without a page none is made.
            if bytes > 0 {
                (seen, resident) = (seen + WINDOW_BYTES, resident + bytes);
            }
        }
        let percent = (resident * 100).checked_div(seen)?;
        Some((percent as u32) < CROWDED)
    }

    /// Counts a span of this length that is made.
    pub(super) fn span_made(&self, bytes: usize) {
        if bytes == SLICE_BYTES {
            self.slices.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a span of this length that is gone.
    pub(super) fn span_gone(&self, bytes: usize) {
        if bytes == SLICE_BYTES {
            self.slices.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether an arena that holds so many bytes is dense, for which so many percent must be resident
    /// if an eighth of it is spans of small blocks.
    pub(super) fn is_dense(&self, held: usize, of_small: u32) -> bool {
        let small = self.slices.load(Ordering::Relaxed) as usize * SLICE_BYTES;
        let least = if small > held / SMALL_PART {
            of_small
        } else {
            DENSE
        };
        match self.percent() {
            Some(percent) => percent >= least,
            // More than all is never: there small blocks have no huge pages.
            None => of_small <= 100 && small / MOSTLY_SMALL > held / 100,
        }
    }

    /// A power of two at whose multiples a block of so many bytes should start.
    pub(super) fn spacing(&self, bytes: usize) -> usize {
        let is_sparse = self.percent().is_some_and(|percent| percent < SPARSE);
        if bytes <= COARSE_LEAST_BYTES || !is_sparse {
            return 1;
        }
        (1 << bytes.ilog2()).clamp(*SPACING.start(), *SPACING.end())
    }

    fn percent(&self) -> Option<u32> {
        self.resident.load(Ordering::Relaxed).checked_sub(1)
    }
}
