//! Free addresses of a range.

use std::collections::BTreeMap;

/// Free ranges, searched from the end of the last range taken (next fit), so that freed addresses
/// stay unused as long as possible and late accesses are detected.
#[derive(Debug)]
pub(crate) struct FreeRanges {
    /// End of each free range by its start.
    free: BTreeMap<u64, u64>,
    cursor: u64,
}

impl FreeRanges {
    pub(crate) fn new(start: u64, end: u64) -> Self {
        Self {
            free: BTreeMap::from([(start, end)]),
            cursor: start,
        }
    }

    /// Takes `bytes` at a multiple of `align`, a power of two.
    pub(crate) fn take(&mut self, bytes: u64, align: u64) -> Option<u64> {
        let at = self
            .fit_at_cursor(bytes, align)
            .or_else(|| self.fit(self.cursor.., bytes, align))
            .or_else(|| self.fit(..=self.cursor, bytes, align))?;
        self.cursor = at + bytes;
        self.take_at(at, bytes).then_some(at)
    }

    /// Takes `bytes` at the lowest multiple of `align`, a power of two, that fits, even if it was just freed.
    pub(crate) fn take_lowest(&mut self, bytes: u64, align: u64) -> Option<u64> {
        let at = self.fit(.., bytes, align)?;
        self.take_at(at, bytes).then_some(at)
    }

    /// Finds a fit after the cursor in the free range that spans it. The part before the cursor
    /// holds addresses that were just freed.
    fn fit_at_cursor(&self, bytes: u64, align: u64) -> Option<u64> {
        let (_, end) = self.free.range(..self.cursor).next_back()?;
        let at = self.cursor.checked_next_multiple_of(align)?;
        (at.checked_add(bytes)? <= *end).then_some(at)
    }

    fn fit(&self, from: impl std::ops::RangeBounds<u64>, bytes: u64, align: u64) -> Option<u64> {
        self.free.range(from).find_map(|(start, end)| {
            let at = start.checked_next_multiple_of(align)?;
            (at.checked_add(bytes)? <= *end).then_some(at)
        })
    }

    /// Takes exactly this range, if it is free.
    pub(crate) fn take_at(&mut self, at: u64, bytes: u64) -> bool {
        let Some((start, end)) = self.free.range(..=at).next_back().map(|(s, e)| (*s, *e)) else {
            return false;
        };
        let Some(behind) = at.checked_add(bytes).filter(|behind| *behind <= end) else {
            return false;
        };
        self.free.remove(&start);
        if start < at {
            self.free.insert(start, at);
        }
        if behind < end {
            self.free.insert(behind, end);
        }
        true
    }

    /// Frees a range.
    pub(crate) fn give(&mut self, at: u64, bytes: u64) {
        let (mut start, mut end) = (at, at + bytes);
        if let Some((before, before_end)) = self.free.range(..at).next_back().map(|(s, e)| (*s, *e))
            && before_end == at
        {
            self.free.remove(&before);
            start = before;
        }
        if let Some(behind_end) = self.free.remove(&end) {
            end = behind_end;
        }
        self.free.insert(start, end);
    }
}

#[cfg(test)]
mod tests {
    use super::FreeRanges;

    #[test]
    fn freed_addresses_come_last() {
        let mut holes = FreeRanges::new(0, 1000);
        let first = holes.take(100, 1).unwrap();
        let second = holes.take(100, 1).unwrap();
        holes.give(first, 100);
        let third = holes.take(100, 1).unwrap();
        assert!(third > second);
        assert_eq!(holes.take(700, 1), Some(300));
        assert_eq!(holes.take(100, 1), Some(first));
        assert_eq!(holes.take(1, 1), None);
    }

    #[test]
    fn the_addresses_freed_last_are_not_the_next_ones() {
        let mut holes = FreeRanges::new(0, 300);
        for at in [0, 100, 200, 0, 100] {
            assert_eq!(holes.take(100, 1), Some(at));
            holes.give(at, 100);
        }
    }

    #[test]
    fn neighbours_join_again() {
        let mut holes = FreeRanges::new(0, 300);
        for at in [0, 100, 200] {
            assert!(holes.take_at(at, 100));
        }
        for at in [0, 200, 100] {
            holes.give(at, 100);
        }
        assert_eq!(holes.take(300, 1), Some(0));
    }

    #[test]
    fn a_taken_place_is_not_given() {
        let mut holes = FreeRanges::new(0, 300);
        assert!(holes.take_at(100, 100));
        assert!(!holes.take_at(150, 100));
        assert!(!holes.take_at(250, 100));
        assert_eq!(holes.take(128, 128), None);
    }
}
