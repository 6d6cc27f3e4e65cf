//! [`Residency`]: how much of an arena's committed memory is resident, and the page sizes and
//! alignments chosen accordingly.
//!
//! Requested bytes do not show how a program uses its memory: large blocks are often touched only
//! at their start. So before each growth the system is asked how much of a bounded number of
//! windows is resident. This takes tens of microseconds, and touching the pages of the growth costs
//! many times that.
//!
//! * **Dense**, mostly resident: new memory will be touched, too, and is requested in huge pages.
//!   One fault for 2 MiB costs a fraction of 512 faults. For large blocks, which are touched one
//!   after another, it is enough if half is resident. For small blocks, half would be a heap of
//!   half-carved spans, so more is required.
//! * **Sparse**, little resident: the cost lies in each new place where a block starts. Large
//!   blocks then start at coarse multiples, so that their first pages are often pages that were
//!   touched before. The gaps cost only addresses, of which there must be plenty.
//! * Neither, or not known: blocks lie as close together as possible, on ordinary pages.
//!
//! The system is asked only if huge pages matter: beyond the program's bound, if the system has
//! huge pages, and if no filter of system calls may end the process for the question. If it is not
//! asked, an arena counts as dense if nearly all of it is spans of small blocks, since those are
//! touched one after another.

use core::ops::RangeInclusive;

use larder_core::sync::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::{GROWTH_BYTES, SLICE_BYTES};
use crate::os::Os;

/// Windows of committed memory examined before a growth.
const WINDOWS: usize = 16;
/// Bytes of a window: a huge page, which is resident as a whole or not at all.
const WINDOW_BYTES: usize = GROWTH_BYTES;

/// Minimum resident percentage of a dense arena that is not made of spans of small blocks.
const DENSE: u32 = 50;
/// An arena counts as made of spans of small blocks if they are more than one part in this many.
const SMALL_PART: usize = 8;
/// An arena that is not examined is dense if more than this percentage of it is spans of small
/// blocks.
const MOSTLY_SMALL: usize = 75;
/// An arena is sparse below this resident percentage.
const SPARSE: u32 = 25;
/// An arena with more than one part in this many of its addresses committed is never sparse.
const PLENTY: usize = 4;

/// Blocks longer than this, in bytes, start at coarse multiples in a sparse arena.
const COARSE_LEAST_BYTES: usize = 128 << 10;
/// The coarse multiples.
const SPACING: RangeInclusive<usize> = 256 << 10..=GROWTH_BYTES;

/// The state of an arena when it last grew. All zero before its first growth.
pub(super) struct Residency {
    /// 1 + the resident percentage of the examined memory, or an estimate; 0 if not known. Relaxed:
    /// a hint.
    resident: AtomicU32,
    /// Number of spans of one slice: those of small blocks. Relaxed: a hint, too.
    slices: AtomicU32,
    /// Free bytes without pages, if they were counted before this growth. A hint.
    vacant: AtomicUsize,
    /// Bytes returned to the system since the advice last changed. A hint.
    given: AtomicU64,
    /// The last advice: 0 for none, [`HUGE`] or [`SHORT`]. Changed by a holder of `growing`.
    advice: AtomicU32,
    /// Near a memory limit, the committed bytes beyond which there are no huge pages; 0 for no
    /// bound. A hint.
    huge_until: AtomicU64,
    /// [`AGAIN`] and [`SPANS_AGAIN`]. Relaxed: read by the thread that ticks, or under its locks.
    again: AtomicU8,
}

/// Advice to the system: for huge pages, or against them.
pub(super) const HUGE: u32 = 1;
pub(super) const SHORT: u32 = 2;

/// Requests to the next tick: to discard memory that is not known to be dirty, and to have spans
/// scanned again.
const AGAIN: u8 = 1;
const SPANS_AGAIN: u8 = 2;

/// The advice for huge pages is withdrawn if less than this percentage of the windows that were
/// touched at all is resident: the system makes huge pages of advised memory by itself, gaps
/// included.
const CROWDED: u32 = 75;
/// The advice is also withdrawn if this fraction of the committed memory has been discarded since:
/// the system may have filled it again in that way.
const GIVEN_PART: u64 = 4;

impl Residency {
    /// Sets the free bytes without pages, before a growth. These bytes say nothing about how blocks
    /// are used.
    pub(super) fn set_vacant(&self, bytes: usize) {
        self.vacant.store(bytes, Ordering::Relaxed);
    }

    /// Examines the first `held` bytes of an arena of `bytes` bytes. Makes up to [`WINDOWS`] system
    /// calls.
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
            // SAFETY: committed, as the caller promises.
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

    /// Resets the percentage, because the system was not asked.
    pub(super) fn forget(&self) {
        self.resident.store(0, Ordering::Relaxed);
    }

    /// Returns the last advice to the system.
    pub(super) fn advice(&self) -> u32 {
        self.advice.load(Ordering::Relaxed)
    }

    /// Sets the advice that the system was given.
    pub(super) fn set_advice(&self, advice: u32) {
        self.given.store(0, Ordering::Relaxed);
        self.advice.store(advice, Ordering::Relaxed);
    }

    /// Sets the committed bytes beyond which there are no huge pages; with such a bound, huge pages
    /// are split when they are discarded in part. `None` removes the bound.
    pub(super) fn set_huge_until(&self, bytes: Option<u64>) {
        self.huge_until.store(bytes.unwrap_or(0), Ordering::Relaxed);
    }

    /// Returns whether huge pages are bounded.
    pub(super) fn is_bounded(&self) -> bool {
        self.huge_until.load(Ordering::Relaxed) > 0
    }

    /// Returns whether `held` bytes are beyond the bound for huge pages. The system keeps all of a
    /// partly used huge page in memory until it splits the page, which may be too late for a limit.
    pub(super) fn is_beyond(&self, held: usize) -> bool {
        self.is_bounded() && held as u64 > self.huge_until.load(Ordering::Relaxed)
    }

    /// Makes the next tick also discard memory that is not known to be dirty, and have spans
    /// scanned again: the system may have put pages there.
    pub(super) fn look_again(&self) {
        self.again.store(AGAIN | SPANS_AGAIN, Ordering::Relaxed);
    }

    /// Returns whether the next tick also discards memory that is not known to be dirty.
    pub(super) fn looks_again(&self) -> bool {
        self.again.load(Ordering::Relaxed) & AGAIN != 0
    }

    /// Takes the request to discard memory that is not known to be dirty. Returns whether there was
    /// one.
    pub(super) fn take_again(&self) -> bool {
        self.again.fetch_and(!AGAIN, Ordering::Relaxed) & AGAIN != 0
    }

    /// Takes the request to scan spans again. Returns whether there was one.
    pub(super) fn take_spans_again(&self) -> bool {
        self.again.fetch_and(!SPANS_AGAIN, Ordering::Relaxed) & SPANS_AGAIN != 0
    }

    /// Returns whether the advice may have to change.
    pub(super) fn is_due(&self) -> bool {
        self.advice() == SHORT || self.given.load(Ordering::Relaxed) > 0
    }

    /// Counts bytes returned to the system.
    pub(super) fn count_given(&self, bytes: u64) {
        self.given.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns whether no huge pages should be made of the first `held` bytes of an arena, because
    /// too little of their touched windows is resident or too much of them was discarded; `None` if
    /// the system does not report it. Makes up to [`WINDOWS`] system calls.
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
            // SAFETY: committed, as the caller promises.
            let bytes = unsafe { os.resident_bytes(at, WINDOW_BYTES) }?;
            // No huge page is made of a window without a page.
            if bytes > 0 {
                (seen, resident) = (seen + WINDOW_BYTES, resident + bytes);
            }
        }
        let percent = (resident * 100).checked_div(seen)?;
        Some((percent as u32) < CROWDED)
    }

    /// Counts a new span of `bytes` bytes, if it is one slice.
    pub(super) fn span_made(&self, bytes: usize) {
        if bytes == SLICE_BYTES {
            self.slices.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Uncounts a freed span of `bytes` bytes, if it is one slice.
    pub(super) fn span_gone(&self, bytes: usize) {
        if bytes == SLICE_BYTES {
            self.slices.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Returns whether an arena with `held` committed bytes is dense. At least `of_small` percent
    /// must be resident if an eighth of the arena is spans of small blocks.
    pub(super) fn is_dense(&self, held: usize, of_small: u32) -> bool {
        let small = self.slices.load(Ordering::Relaxed) as usize * SLICE_BYTES;
        let least = if small > held / SMALL_PART {
            of_small
        } else {
            DENSE
        };
        match self.percent() {
            Some(percent) => percent >= least,
            // Above 100 percent means never: small blocks then have no huge pages.
            None => of_small <= 100 && small / MOSTLY_SMALL > held / 100,
        }
    }

    /// Returns the power of two at whose multiples a block of `bytes` bytes should start.
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
