//! The last accesses of each byte of memory, to find races: conflicting accesses without an order.

use std::collections::{BTreeMap, BTreeSet};

use super::Access;
use crate::clock::{Moment, VectorClock};

/// Bytes with the same history.
#[derive(Clone, Debug, Default)]
struct ShadowCell {
    end: u64,
    write: Option<ShadowUse>,
    /// Reads since the last write, at most one for each stream.
    reads: Vec<ShadowUse>,
}

/// One access.
#[derive(Clone, Debug)]
struct ShadowUse {
    moment: Moment,
    what: String,
}

/// The history of one piece of memory, by offset.
#[derive(Debug, Default)]
pub(crate) struct Shadow {
    cells: BTreeMap<u64, ShadowCell>,
}

impl Shadow {
    /// Records an access. Returns the access that it races with, if any.
    pub(crate) fn note(
        &mut self,
        from: u64,
        bytes: u64,
        access: Access,
        clock: &VectorClock,
        moment: Moment,
        what: &str,
    ) -> Option<String> {
        let to = from + bytes;
        self.split(from);
        self.split(to);
        let race = self.race(from, to, access, clock);
        let this = ShadowUse {
            moment,
            what: what.to_owned(),
        };
        if access == Access::Write {
            // A write replaces all cells of its range with one, which keeps the table short.
            let old: Vec<u64> = self
                .cells
                .range(from..to)
                .map(|(start, _)| *start)
                .collect();
            for start in old {
                self.cells.remove(&start);
            }
            let cell = ShadowCell {
                end: to,
                write: Some(this),
                reads: Vec::new(),
            };
            self.cells.insert(from, cell);
            return race;
        }
        self.fill(from, to);
        for cell in self.cells.range_mut(from..to).map(|(_, cell)| cell) {
            cell.reads
                .retain(|read| read.moment.stream != moment.stream);
            cell.reads.push(this.clone());
        }
        race
    }

    /// Drops accesses that are ordered before all later operations.
    pub(crate) fn forget(&mut self, known: &VectorClock) {
        self.cells.retain(|_, cell| {
            cell.write.take_if(|write| known.knows(write.moment));
            cell.reads.retain(|read| !known.knows(read.moment));
            cell.write.is_some() || !cell.reads.is_empty()
        });
    }

    /// Adds the streams whose accesses the history holds.
    pub(crate) fn name_streams(&self, named: &mut BTreeSet<usize>) {
        for cell in self.cells.values() {
            let uses = cell.write.iter().chain(&cell.reads);
            named.extend(uses.map(|one| one.moment.stream));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// Returns an earlier use of the bytes that conflicts with this access and that the clock does
    /// not include.
    fn race(&self, from: u64, to: u64, access: Access, clock: &VectorClock) -> Option<String> {
        self.cells.range(from..to).find_map(|(_, cell)| {
            let writes = access == Access::Write;
            let reads: &[ShadowUse] = if writes { &cell.reads } else { &[] };
            let mut uses = cell.write.iter().chain(reads);
            let other = uses.find(|other| !clock.knows(other.moment))?;
            Some(other.what.clone())
        })
    }

    /// Splits the cell that spans `at`, if there is one.
    fn split(&mut self, at: u64) {
        let Some((_, cell)) = self.cells.range_mut(..at).next_back() else {
            return;
        };
        if cell.end > at {
            let upper = cell.clone();
            cell.end = at;
            self.cells.insert(at, upper);
        }
    }

    /// Adds cells where the range has none.
    fn fill(&mut self, from: u64, to: u64) {
        let mut next = from;
        let mut gaps = Vec::new();
        for (start, cell) in self.cells.range(from..to) {
            if next < *start {
                gaps.push((next, *start));
            }
            next = cell.end;
        }
        if next < to {
            gaps.push((next, to));
        }
        for (start, end) in gaps {
            let cell = ShadowCell {
                end,
                ..ShadowCell::default()
            };
            self.cells.insert(start, cell);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(
        shadow: &mut Shadow,
        from: u64,
        to: u64,
        access: Access,
        clock: &mut VectorClock,
    ) -> bool {
        let moment = clock.tick(7);
        shadow
            .note(from, to - from, access, clock, moment, "it")
            .is_some()
    }

    #[test]
    fn only_unordered_writes_race() {
        let mut shadow = Shadow::default();
        let (mut a, mut b) = (VectorClock::default(), VectorClock::default());
        let first = a.tick(1);
        assert!(shadow.note(0, 100, Access::Write, &a, first, "a").is_none());
        let read = b.tick(2);
        let race = shadow.note(99, 10, Access::Read, &b, read, "b");
        assert_eq!(race.as_deref(), Some("a"));
        b.join(&a);
        let read = b.tick(2);
        assert!(shadow.note(0, 10, Access::Read, &b, read, "b").is_none());
        let write = a.tick(1);
        let race = shadow.note(5, 1, Access::Write, &a, write, "a");
        assert_eq!(race.as_deref(), Some("b"));
        let write = a.tick(1);
        assert!(shadow.note(50, 9, Access::Write, &a, write, "a").is_none());
    }

    #[test]
    fn two_readers_do_not_race() {
        let mut shadow = Shadow::default();
        let (mut a, mut b) = (VectorClock::default(), VectorClock::default());
        assert!(!note(&mut shadow, 0, 10, Access::Read, &mut a));
        assert!(!note(&mut shadow, 0, 10, Access::Read, &mut b));
    }
}
