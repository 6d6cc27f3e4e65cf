//! [`Marks`], one bit for each granule of a range. They mark memory that may not read as zero,
//! memory freed recently, or split huge pages.

use core::cell::Cell;
use core::ops::Range;

use larder_core::sync::{AtomicU64, Ordering};

/// The bits of a range, shared by threads that allocate from it and discard its memory.
///
/// All accesses are relaxed. A granule's mark is written and read only by the granule's holder, and
/// granules change hands under the BFC's lock; the mark of a huge page, which has several holders,
/// is a hint. Neighbours share words, so changes are atomic.
#[derive(Clone, Copy)]
pub(super) struct Marks {
    words: &'static [AtomicU64],
    /// First address of the range.
    start: usize,
    /// Bytes of a granule.
    unit: usize,
}

impl Marks {
    /// Creates marks in `words`: a bit for each `unit` bytes, beginning at `start`.
    pub(super) const fn new(words: &'static [AtomicU64], start: usize, unit: usize) -> Self {
        Self { words, start, unit }
    }

    /// Returns the bytes of a granule.
    pub(super) const fn unit(&self) -> usize {
        self.unit
    }

    fn granule(&self, addr: usize) -> usize {
        addr.wrapping_sub(self.start) / self.unit
    }

    fn is_set(&self, granule: usize) -> bool {
        match self.words.get(granule / 64) {
            Some(word) => word.load(Ordering::Relaxed) >> (granule % 64) & 1 == 1,
            None => true,
        }
    }

    /// Returns whether any granule of the range is marked.
    pub(super) fn any(&self, addr: usize, bytes: usize) -> bool {
        let first = self.granule(addr);
        (first..first + bytes.div_ceil(self.unit)).any(|granule| self.is_set(granule))
    }

    /// Runs `f` with the offset and the length of every marked run of a block.
    pub(super) fn each_run(&self, addr: usize, bytes: usize, f: impl Fn(usize, usize)) {
        let first = self.granule(addr);
        let mut from = 0;
        while from < bytes {
            let mut to = from;
            while to < bytes && self.is_set(first + to / self.unit) {
                to += self.unit;
            }
            if to > from {
                f(from, to.min(bytes) - from);
            }
            // The granule that ended the run is clean.
            from = to + self.unit;
        }
    }

    /// Returns the first run in a range of granules that are marked here and not in `unless`, which
    /// covers the same range. Returns at most `max_bytes` of the run, in whole granules. O(granules
    /// / 64) up to the end of the run, so that a walk piece by piece reads each granule once.
    pub(super) fn next_run(
        &self,
        unless: Option<&Self>,
        range: Range<usize>,
        max_bytes: usize,
    ) -> Option<Range<usize>> {
        let bits = |granule: usize| {
            let of = |marks: &Self| marks.words.get(granule / 64).map(load);
            let set = of(self).unwrap_or(0) & !unless.and_then(of).unwrap_or(0);
            set >> (granule % 64)
        };
        let end = self.granule(range.end);
        let mut first = self.granule(range.start);
        while first < end && bits(first) == 0 {
            first = (first / 64 + 1) * 64;
        }
        if first >= end {
            return None;
        }
        first += bits(first).trailing_zeros() as usize;
        let end = end.min(first.saturating_add(max_bytes / self.unit));
        let mut last = first;
        while last < end {
            let count = bits(last).trailing_ones() as usize;
            last += count;
            if count == 0 || !last.is_multiple_of(64) {
                break;
            }
        }
        let addr = |granule: usize| self.start + granule * self.unit;
        (first < end).then(|| addr(first)..addr(last.min(end)))
    }

    /// Returns the first run of a range in which no granule is marked, but at most `max_bytes` of
    /// it. If there are no marks, the run begins at the start of the range. O(granules).
    pub(super) fn next_gap(
        marks: Option<&Self>,
        range: Range<usize>,
        max_bytes: usize,
        unit: usize,
    ) -> Option<Range<usize>> {
        let is_free = |addr: &usize| marks.is_none_or(|marks| !marks.is_set(marks.granule(*addr)));
        let start = range.clone().step_by(unit).find(is_free)?;
        let end = range.end.min(start.saturating_add(max_bytes));
        let end = (start..end)
            .step_by(unit)
            .find(|addr| !is_free(addr))
            .unwrap_or(end);
        Some(start..end)
    }

    /// Unmarks a range. Returns how many of its granules were marked. O(granules / 64).
    pub(super) fn take(&self, addr: usize, bytes: usize) -> usize {
        let count = Cell::new(0);
        self.each_word(addr, bytes, |word, bits| {
            if load(word) & bits != 0 {
                let before = word.fetch_and(!bits, Ordering::Relaxed);
                count.set(count.get() + (before & bits).count_ones() as usize);
            }
        });
        count.get()
    }

    /// Returns how many granules of a range are marked. O(granules / 64).
    pub(super) fn count(&self, addr: usize, bytes: usize) -> usize {
        let count = Cell::new(0);
        self.each_word(addr, bytes, |word, bits| {
            count.set(count.get() + (load(word) & bits).count_ones() as usize);
        });
        count.get()
    }

    /// Marks the granule that starts there. Returns the number of marks added, 0 or 1.
    pub(super) fn insert(&self, addr: usize) -> usize {
        let added = Cell::new(0);
        self.each_word(addr, 1, |word, bit| {
            let before = word.fetch_or(bit, Ordering::Relaxed);
            added.set(usize::from(before & bit == 0));
        });
        added.get()
    }

    /// Marks the granules of a range.
    pub(super) fn set(&self, addr: usize, bytes: usize) {
        self.each_word(addr, bytes, |word, bits| {
            // Most granules are marked already.
            if word.load(Ordering::Relaxed) & bits != bits {
                word.fetch_or(bits, Ordering::Relaxed);
            }
        });
    }

    /// Unmarks the granules that lie entirely in a range.
    pub(super) fn clear_whole(&self, addr: usize, bytes: usize) {
        let first = addr.next_multiple_of(self.unit);
        let end = (addr + bytes) / self.unit * self.unit;
        self.clear(first, end.saturating_sub(first));
    }

    /// Unmarks the granules of a range: they read as zero.
    pub(super) fn clear(&self, addr: usize, bytes: usize) {
        self.each_word(addr, bytes, |word, bits| {
            word.fetch_and(!bits, Ordering::Relaxed);
        });
    }

    /// Runs `f` for every word of a range, with those bits of the word that belong to the range.
    fn each_word(&self, addr: usize, bytes: usize, f: impl Fn(&AtomicU64, u64)) {
        let mut granule = self.granule(addr);
        let end = granule.saturating_add(bytes.div_ceil(self.unit));
        while granule < end {
            let Some(word) = self.words.get(granule / 64) else {
                return;
            };
            let low = granule % 64;
            let count = (end - granule).min(64 - low);
            f(word, u64::MAX >> (64 - count) << low);
            granule += count;
        }
    }
}

fn load(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use core::cell::RefCell;

    use super::*;
    use crate::tests::random::Random;

    const UNIT: usize = 1 << 14;
    const START: usize = 5 << 20;

    fn marks(granules: usize) -> Marks {
        let words = (0..granules.div_ceil(64)).map(|_| AtomicU64::new(0));
        Marks::new(Box::leak(words.collect()), START, UNIT)
    }

    fn runs(marks: &Marks, from: usize, bytes: usize) -> Vec<(usize, usize)> {
        let found = RefCell::new(Vec::new());
        marks.each_run(START + from, bytes, |at, length| {
            found.borrow_mut().push((at, length));
        });
        found.into_inner()
    }

    #[test]
    fn marks_agree_with_a_plain_list_of_flags() {
        let marks = marks(256);
        let mut flags = [false; 256];
        let mut random = Random(1);
        let mut random = |below| random.next(below);
        for _ in 0..5000 {
            let first = random(256);
            let count = random(257 - first);
            let value = random(2) == 0;
            let bytes = (count * UNIT).saturating_sub(random(2) * (UNIT - 1));
            let change = if value { Marks::set } else { Marks::clear };
            change(&marks, START + first * UNIT, bytes);
            flags[first..first + count].fill(value);
            let at = random(256);
            let length = random(257 - at);
            let any = flags[at..at + length].contains(&true);
            assert_eq!(marks.any(START + at * UNIT, length * UNIT), any);
            let mut seen = vec![false; length];
            for (from, bytes) in runs(&marks, at * UNIT, length * UNIT) {
                assert!(bytes > 0 && from % UNIT == 0 && bytes % UNIT == 0);
                seen[from / UNIT..(from + bytes) / UNIT].fill(true);
            }
            assert_eq!(seen, flags[at..at + length]);
        }
    }

    #[test]
    fn runs_of_one_map_outside_of_another_agree_with_flags() {
        let (all, some) = (marks(256), marks(256));
        let mut flags = [[false; 2]; 256];
        let mut random = Random(7);
        let mut random = |below| random.next(below);
        for round in 0..3000 {
            let which = random(2);
            let first = random(256);
            let count = random((257 - first).min(1 + round % 200)) + 1;
            let count = count.min(256 - first);
            let value = random(2) == 0;
            let change = if value { Marks::set } else { Marks::clear };
            change([&all, &some][which], START + first * UNIT, count * UNIT);
            for flag in &mut flags[first..first + count] {
                flag[which] = value;
            }
            let end = random(257);
            let mut at = random(end + 1);
            let wanted = |granule: usize| flags[granule][0] && !flags[granule][1];
            let mut expected: Vec<usize> = (at..end).filter(|&granule| wanted(granule)).collect();
            expected.reverse();
            let max = [3, 64, 100, 1000][random(4)];
            while let Some(found) = all.next_run(
                Some(&some),
                START + at * UNIT..START + end * UNIT,
                max * UNIT,
            ) {
                let (from, to) = ((found.start - START) / UNIT, (found.end - START) / UNIT);
                assert!(at <= from && from < to && to <= end);
                for granule in from..to {
                    assert_eq!(expected.pop(), Some(granule));
                }
                at = to;
                assert!(to - from <= max);
                assert!(
                    at == end || !wanted(at) || to - from == max,
                    "a run is as long as it can be"
                );
            }
            assert!(expected.is_empty(), "{expected:?}");
        }
        let set = flags.iter().filter(|flag| flag[0]).count();
        assert_eq!(all.count(START, 256 * UNIT), set);
        assert_eq!(
            (all.take(START, 256 * UNIT), all.take(START, 256 * UNIT)),
            (set, 0)
        );
        assert_eq!(
            all.next_run(None, START..START + 256 * UNIT, usize::MAX),
            None
        );
    }

    #[test]
    fn a_run_ends_with_the_block_and_not_with_the_granule() {
        let marks = marks(64);
        marks.set(START, 3 * UNIT);
        assert_eq!(runs(&marks, 0, 2 * UNIT + 5), [(0, 2 * UNIT + 5)]);
        assert_eq!(runs(&marks, 2 * UNIT, 4 * UNIT), [(0, UNIT)]);
        assert_eq!(runs(&marks, 3 * UNIT, 1), []);
    }

    #[test]
    fn what_lies_behind_the_range_counts_as_marked_and_cannot_be_changed() {
        let marks = marks(64);
        marks.set(START + 63 * UNIT, 5 * UNIT);
        marks.clear(START + 60 * UNIT, 50 * UNIT);
        assert!(!marks.any(START, 64 * UNIT));
        assert!(marks.any(START + 64 * UNIT, 1));
    }
}
