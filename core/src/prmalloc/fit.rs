//! The fit puts each stat into a block. Every other stat of the block ends before this one begins, or begins after it
//! ends.
//!
//! The bins are filled from the largest down, so that the larger bins, whose gaps a bin may use, are complete before
//! its turn. Upstream calls this best fit, but it takes the first block that suffices: first one of the bin's own, then
//! one of a larger bin, going upwards, then a new block of the bin. If a larger bin's block is taken, the bin gets a
//! virtual block.
//!
//! Sorting is O(n log n), and the search through the blocks is O(n x blocks). A block remembers where the last search
//! ended, so that its stats are walked about once for each smaller bin.

use super::error::PlanError;
use super::life::AllocStat;
use super::policy::ClassPolicy;
use super::records::{Listed, RecordLink};
use crate::units::Align;

/// The order of a fit and its rule for overlaps. First fit has anomalies, so both ways are tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FitWay {
    /// In order of beginnings, and among equal ones the longer life first. A bin then needs only as many blocks as it
    /// has overlapping lives. A life does not include the tick at which it ends, so another life may begin there. A
    /// life without a tick counts as one tick long, because it needed memory.
    Sorted,
    /// Upstream's way: in the order in which the stats arrived, which is that of the frees. Lives with a common
    /// endpoint overlap.
    AsFreed,
}

impl FitWay {
    /// Returns whether `a` is over when `b` begins.
    const fn apart(self, a: &AllocStat, b: &AllocStat) -> bool {
        match self {
            Self::Sorted if a.end == a.begin => a.end < b.begin,
            Self::Sorted => a.end <= b.begin,
            Self::AsFreed => a.end < b.begin,
        }
    }
}

impl ClassPolicy {
    /// Opens the bins of the stats.
    pub(super) fn open_bins(&mut self, stats: &[AllocStat]) -> Result<(), PlanError> {
        for stat in stats {
            if let Some(class) = self.classes().class_of(stat.bytes) {
                self.open_bin(class, stat.align)?;
            }
        }
        Ok(())
    }

    /// Fits the stats, whose bins must be open. `order` is scratch space, with a place for each stat.
    ///
    /// # Errors
    /// [`PlanError`] if a table is full. Stats that were already placed stay.
    pub(super) fn fit(
        &mut self,
        stats: &[AllocStat],
        order: &mut [u32],
        way: FitWay,
    ) -> Result<(), PlanError> {
        self.members.resize(stats.len(), RecordLink::NIL);
        for (place, number) in order.iter_mut().zip(0..) {
            *place = number;
        }
        let classes = self.classes();
        let class_of = |number: u32| classes.class_of(stats[number as usize].bytes);
        order.sort_unstable_by(|a, b| {
            let by_class = class_of(*b).cmp(&class_of(*a));
            let (x, y) = (stats[*a as usize], stats[*b as usize]);
            let by_begin = match way {
                FitWay::Sorted => x.begin.cmp(&y.begin).then(y.end.cmp(&x.end)),
                FitWay::AsFreed => core::cmp::Ordering::Equal,
            };
            by_class.then(by_begin).then(a.cmp(b))
        });
        for &number in &*order {
            // Sizes without a class come last.
            let Some(class) = class_of(number) else { break };
            let at = self.position_of(class).ok_or(PlanError::BinsFull)?;
            self.place(stats, number as usize, at, way)?;
        }
        Ok(())
    }

    fn place(
        &mut self,
        stats: &[AllocStat],
        number: usize,
        at: usize,
        way: FitWay,
    ) -> Result<(), PlanError> {
        if let Some(block) = self.first_that_takes(at, stats, number, way) {
            self.insert(block, number);
            return Ok(());
        }
        if self.classes().shares() {
            for larger in at + 1..self.bins.len() {
                if !self.suits(larger, stats[number].align) {
                    continue;
                }
                if let Some(block) = self.first_that_takes(larger, stats, number, way) {
                    self.bins[larger].align = self.bins[larger].align.max(stats[number].align);
                    self.insert(block, number);
                    if !self.borrows(at, block) {
                        self.add_virtual(at, block)?;
                    }
                    return Ok(());
                }
            }
        }
        let block = self.add_block(at)?;
        self.insert(block, number);
        Ok(())
    }

    /// Returns whether the blocks of the bin at `at` can be aligned to `align` and keep their size.
    fn suits(&self, at: usize, align: Align) -> bool {
        let chunk = self.classes().chunk_bytes(self.bins[at].class);
        align <= self.bins[at].align
            || chunk.is_some_and(|chunk| chunk.is_multiple_of(align.bytes()))
    }

    fn first_that_takes(
        &mut self,
        at: usize,
        stats: &[AllocStat],
        number: usize,
        way: FitWay,
    ) -> Option<usize> {
        let mut link = self.bins[at].blocks.first;
        while let Some(block) = link.index() {
            if self.takes(block, stats, number, way) {
                return Some(block);
            }
            link = *self.blocks[block].next();
        }
        None
    }

    /// Returns whether the block is free during the whole life of the stat. Leaves the block's cursor at the last
    /// member that does not begin later than the stat.
    fn takes(&mut self, block: usize, stats: &[AllocStat], number: usize, way: FitWay) -> bool {
        let stat = &stats[number];
        let record = &mut self.blocks[block];
        let begins_later =
            |link: RecordLink| link.index().is_some_and(|i| stats[i].begin > stat.begin);
        let mut before = record.cursor;
        if begins_later(before) {
            before = RecordLink::NIL;
        }
        let follows = |link: RecordLink| {
            let before = link.index();
            before.map_or(record.first_member, |before| self.members[before])
        };
        let mut after = follows(before);
        while after != RecordLink::NIL && !begins_later(after) {
            before = after;
            after = follows(before);
        }
        record.cursor = before;
        record.busy_until <= stat.begin
            && before.index().is_none_or(|i| way.apart(&stats[i], stat))
            && after.index().is_none_or(|i| way.apart(stat, &stats[i]))
    }

    /// Inserts the stat after the block's cursor, where `takes` left it.
    fn insert(&mut self, block: usize, number: usize) {
        let link = RecordLink::to(number);
        let record = &mut self.blocks[block];
        let after = match record.cursor.index() {
            Some(before) => core::mem::replace(&mut self.members[before], link),
            None => core::mem::replace(&mut record.first_member, link),
        };
        self.members[number] = after;
        record.cursor = link;
    }

    /// Records in each block the end of its last stat.
    pub(super) fn note_ends(&mut self, stats: &[AllocStat]) {
        for block in self.blocks.iter_mut() {
            let mut link = block.first_member;
            while let Some(number) = link.index() {
                block.busy_until = block.busy_until.max(stats[number].end);
                link = self.members[number];
            }
        }
    }
}
