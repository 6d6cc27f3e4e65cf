//! Makes greedy packings and then searches, and can be stopped after any step.

use crate::pack::Lifetime;

use super::choose::Heuristic;
use super::error::PackError;
use super::greedy::{Greedy, GreedyOrder};
use super::prepare::{LifetimeFacts, prepare};
use super::restart::Restarts;
use super::search::{PackSearch, SearchOutcome};
use super::section;
use super::tables::PackTables;

/// Approximate number of buckets that [`Packer::first`] examines before it leaves the rest to [`Packer::improve`]: half
/// a second of work, or a second if most placed blocks meet.
const FIRST_WORK: u64 = 10_000_000;
/// Number of pairs of lifetimes for each bucket that a packing examines, if all lifetimes meet.
const PAIRS_PER_BUCKET: u64 = 2 * 48;
/// Number of buckets that cost as much as a step of the search.
const BUCKETS_PER_STEP: u64 = 64;
/// Number of records that cost as much as a bucket.
pub(crate) const RECORDS_PER_BUCKET: u64 = 48;
/// One run in this many aims between the best height and the lower bound; the others aim at the bound.
const RUNS_BETWEEN: u32 = 4;
/// Number of levels of caution. Each level halves the distance between the best height and the height at which such a
/// run aims.
const MAX_CAUTION: u32 = 6;

/// Finds offsets for lifetimes.
///
/// ```
/// use larder_core::pack::Lifetime;
/// use larder_core::pack::{
///     UndoRecord, Item, PackSizes, PackTables, Packer, Part, Section, Bucket, validate,
/// };
///
/// let lifetimes = [
///     Lifetime::new(0, 2, 300),
///     Lifetime::new(1, 3, 100),
///     Lifetime::new(2, 4, 300),
/// ];
/// let sizes = PackSizes::new(lifetimes.len());
/// let tables = PackTables {
///     offsets: &mut vec![0; sizes.lifetimes],
///     trial: &mut vec![0; sizes.lifetimes],
///     live: &mut vec![0; sizes.lifetimes],
///     order: &mut vec![0; sizes.lifetimes],
///     by_key: &mut vec![0; sizes.lifetimes],
///     keys: &mut vec![0.0; sizes.lifetimes],
///     parts: &mut vec![Part::VACANT; sizes.lifetimes],
///     items: &mut vec![Item::VACANT; sizes.lifetimes],
///     sections: &mut vec![Section::VACANT; sizes.lifetimes],
///     choices: &mut vec![(0, 0); sizes.lifetimes],
///     unplaced: &mut vec![0; sizes.lifetimes],
///     buckets: &mut vec![Bucket::VACANT; sizes.buckets],
///     neighbours: &mut vec![0; sizes.neighbours],
///     undo_log: &mut vec![UndoRecord::VACANT; sizes.undo_log],
/// };
/// let mut packer = Packer::new(&lifetimes, tables)?;
/// packer.first();
/// while !packer.is_done() {
///     packer.improve(1000); // and stop when time is up
/// }
/// assert!(packer.is_proven());
/// assert_eq!(packer.height(), 400);
/// assert_eq!(validate(&lifetimes, packer.offsets()), Ok(400));
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Packer<'t> {
    lifetimes: &'t [Lifetime],
    tables: PackTables<'t>,
    common: LifetimeFacts,
    enough_bytes: u64,
    /// Number of greedy orders tried.
    orders: usize,
    /// The greedy packing under way.
    greedy: Option<Greedy>,
    /// Buckets that past calls examined beyond their allowance.
    debt: u64,
    /// Buckets that the greedy packings have examined.
    looked: u64,
    /// Number of records that the search has examined, and the maximum that it may examine.
    pub(super) records: u64,
    most_records: u64,
    restarts: Restarts,
    /// The part in the tables of the search.
    loaded: Option<(usize, PackSearch)>,
    /// The run under way: its heuristic and the steps it has left.
    run: Option<(Heuristic, u64)>,
    /// Runs started for the loaded part.
    runs: u32,
    /// Number of runs since the part's last new packing that aimed above the lower bound and found no packing.
    caution: u32,
}

impl<'t> Packer<'t> {
    /// Prepares the lifetimes and packs none yet. O(n log n).
    ///
    /// # Errors
    /// An error if pins exclude each other, sizes are out of range, or tables are too short.
    pub fn new(lifetimes: &'t [Lifetime], mut tables: PackTables<'t>) -> Result<Self, PackError> {
        let common = prepare(lifetimes, &mut tables)?;
        Ok(Self {
            lifetimes,
            tables,
            common,
            enough_bytes: 0,
            orders: 0,
            greedy: None,
            debt: 0,
            looked: 0,
            records: 0,
            most_records: u64::MAX,
            restarts: Restarts::new(),
            loaded: None,
            run: None,
            runs: 0,
            caution: 0,
        })
    }

    /// Ends the search as soon as the height is at most `bytes`; 0, the default, never does.
    pub const fn stop_at(&mut self, bytes: u64) {
        self.enough_bytes = bytes;
    }

    /// Ends the search once it has examined `records` records, even if [`improve`](Self::improve) allows more. A record
    /// takes a nanosecond or two.
    pub(crate) const fn stop_after(&mut self, records: u64) {
        self.most_records = records;
    }

    /// Returns the work so far, in buckets.
    pub(crate) const fn work(&self) -> u64 {
        self.looked + self.records / RECORDS_PER_BUCKET
    }

    /// Makes the first packing, in the order of sizes. It also tries other orders, as long as it stays within about
    /// half a second. With more than about 20,000 lifetimes, the first packing is in the order of time. If no packing
    /// is complete in this time, because many lifetimes live at the same time, the smallest ones are stacked on the
    /// others. `improve` then continues with the order of sizes.
    pub fn first(&mut self) {
        self.first_within(FIRST_WORK);
    }

    /// Makes the first packing, examining at most `most` buckets.
    pub(crate) fn first_within(&mut self, most: u64) {
        let mut left = most;
        let taken = self.common.taken as u64;
        // The buckets that one order examines if all lifetimes meet: for each lifetime half of the buckets, which are
        // two thirds full.
        if self.orders == 0 && self.greedy.is_none() && taken * taken / PAIRS_PER_BUCKET > most {
            left -= self.first_by_time(most / 2).min(left);
        }
        while left > 0 && self.orders < GreedyOrder::ALL.len() {
            if self.orders > 0 && self.is_done() {
                return;
            }
            left -= self.greedy(left).min(left);
        }
        if self.height() == u64::MAX
            && let Some(greedy) = &self.greedy
        {
            greedy.stack_rest(self.lifetimes, &mut self.tables);
            self.keep_lower(true);
        }
    }

    /// Packs in the order of time, and keeps the packing if at most `most` buckets were examined. Returns how many were
    /// examined.
    pub(super) fn first_by_time(&mut self, most: u64) -> u64 {
        let (count, max) = (self.common.taken, self.common.max_live_bytes);
        let tables = &mut self.tables;
        let mut greedy = Greedy::begin(self.lifetimes, tables, count, GreedyOrder::Begin, max);
        let work = greedy.go_on(self.lifetimes, tables, most);
        self.looked += work;
        if greedy.is_complete() {
            self.keep_lower(false);
        }
        work
    }

    /// Continues for about `steps` steps, or until it [is done](Self::is_done). The time of a step depends on the
    /// number of lifetimes that meet. A step never makes the packing worse. The result does not depend on how the steps
    /// are divided among calls.
    pub fn improve(&mut self, steps: u64) {
        if self.orders == 0 && self.greedy.is_none() {
            self.first();
        }
        let mut left = steps.saturating_mul(BUCKETS_PER_STEP);
        loop {
            let paid = self.debt.min(left);
            self.debt -= paid;
            left -= paid;
            if left == 0 || self.is_done() {
                return;
            }
            self.debt = if self.orders < GreedyOrder::ALL.len() {
                self.greedy(left)
            } else {
                // Only whole steps are made, so the rest of the last step becomes debt.
                let steps = left.div_ceil(BUCKETS_PER_STEP);
                self.search(steps) * BUCKETS_PER_STEP
            };
        }
    }

    /// Returns the offset of each lifetime in the best packing so far. A lifetime that takes no space is at 0, or where
    /// it is pinned.
    pub fn offsets(&self) -> &[u64] {
        &self.tables.offsets[..self.lifetimes.len()]
    }

    /// Returns the height of the best packing so far, in bytes. Before the [first](Self::first) packing this is
    /// `u64::MAX`.
    pub fn height(&self) -> u64 {
        let parts = self.tables.parts[..self.common.parts].iter();
        parts.map(|part| part.height).max().unwrap_or(0)
    }

    /// Returns a height in bytes below which there is no packing. It rises when the search proves more.
    pub fn lower_bound(&self) -> u64 {
        let parts = self.tables.parts[..self.common.parts].iter();
        parts.map(|part| part.lower).max().unwrap_or(0)
    }

    /// Returns the maximum of live bytes at any tick.
    pub const fn max_live_bytes(&self) -> u64 {
        self.common.max_live_bytes
    }

    /// Returns whether no packing is lower than the one found.
    pub fn is_proven(&self) -> bool {
        self.height() <= self.lower_bound()
    }

    /// Returns whether [`improve`](Self::improve) has no work left: the height is proven or is low enough, or the
    /// lifetimes of the remaining parts meet in too many pairs for the tables.
    pub fn is_done(&self) -> bool {
        let goal = self.goal();
        if self.orders < GreedyOrder::ALL.len() {
            return self.height() <= goal;
        }
        if self.records >= self.most_records {
            return true;
        }
        let mut parts = self.tables.parts[..self.common.parts].iter();
        !parts.any(|part| part.height > goal && !part.too_wide)
    }

    /// Returns the height to reach.
    fn goal(&self) -> u64 {
        self.lower_bound().max(self.enough_bytes)
    }

    /// Continues the greedy packing under way or begins the next one, until `most` buckets are examined. Returns how
    /// many were examined. When a packing is complete, each part keeps the better offsets.
    pub(super) fn greedy(&mut self, most: u64) -> u64 {
        let tables = &mut self.tables;
        let (order, max) = (GreedyOrder::ALL[self.orders], self.common.max_live_bytes);
        let begin = || Greedy::begin(self.lifetimes, tables, self.common.taken, order, max);
        let mut greedy = self.greedy.take().unwrap_or_else(begin);
        let work = greedy.go_on(self.lifetimes, &mut self.tables, most);
        self.looked += work;
        if greedy.is_complete() {
            self.orders += 1;
            self.keep_lower(false);
        } else {
            self.greedy = Some(greedy);
        }
        work
    }

    /// Updates the heights of the parts: from `offsets` if `stacked`, otherwise from `trial`, whose offsets are kept
    /// for the parts that became lower.
    fn keep_lower(&mut self, stacked: bool) {
        let tables = &mut self.tables;
        for part in &mut tables.parts[..self.common.parts] {
            let ids = &tables.order[part.start as usize..part.end as usize];
            let new: &[u64] = if stacked {
                tables.offsets
            } else {
                tables.trial
            };
            let top = |&id: &u32| new[id as usize] + self.lifetimes[id as usize].bytes;
            let height = ids.iter().map(top).max().unwrap_or(0);
            if height < part.height {
                part.height = height;
                if !stacked {
                    for &id in ids {
                        tables.offsets[id as usize] = tables.trial[id as usize];
                    }
                }
            }
        }
    }

    /// Searches for at most `most` steps, and fewer if the run ends. Returns how many it took.
    fn search(&mut self, most: u64) -> u64 {
        let Some((index, mut search)) = self.load() else {
            return 1;
        };
        let (heuristic, mut steps) = match self.run.take() {
            Some(run) => run,
            None => self.start(index, &mut search),
        };
        let mut outcome = SearchOutcome::Open;
        let mut taken = 0;
        while taken < most
            && steps > 0
            && outcome == SearchOutcome::Open
            && self.records < self.most_records
        {
            outcome = search.step(&mut self.tables, &heuristic);
            self.records += core::mem::take(&mut search.records);
            taken += 1;
            steps -= 1;
        }
        if outcome == SearchOutcome::Open && steps > 0 {
            self.run = Some((heuristic, steps));
        }
        self.settle(index, &search, outcome);
        self.loaded = Some((index, search));
        taken
    }

    /// Loads the highest part that the search can hold into its tables.
    fn load(&mut self) -> Option<(usize, PackSearch)> {
        if self.run.is_some() {
            return self.loaded;
        }
        let goal = self.goal();
        let parts = self.tables.parts[..self.common.parts].iter().enumerate();
        let (index, &part) = parts
            .filter(|(_, part)| part.height > goal && !part.too_wide)
            .max_by_key(|(_, part)| part.height)?;
        if let Some((loaded, search)) = self.loaded
            && loaded == index
        {
            return Some((index, search));
        }
        self.runs = 0;
        self.caution = 0;
        self.loaded = None;
        let sizes = section::load(self.lifetimes, &mut self.tables, part, self.common.align);
        let Some((items, sections)) = sizes else {
            self.records += self.tables.neighbours.len() as u64;
            self.tables.parts[index].too_wide = true;
            return None;
        };
        let last = self.tables.items[..items].last();
        self.records += last.map_or(0, |item| item.range().end as u64);
        Some((index, PackSearch::new(items, sections, &self.common)))
    }

    /// Begins one more run.
    fn start(&mut self, index: usize, search: &mut PackSearch) -> (Heuristic, u64) {
        let part = self.tables.parts[index];
        let run = self
            .restarts
            .next(&mut self.tables, part.end as usize - part.start as usize);
        let (goal, unit) = (self.goal(), self.common.unit_bytes);
        let between = (part.height - goal) >> (1 + self.caution % MAX_CAUTION);
        let height = if self.runs.is_multiple_of(RUNS_BETWEEN) && between > unit {
            part.height - between
        } else {
            goal
        };
        self.runs = self.runs.wrapping_add(1);
        let lifetimes = self.lifetimes;
        let pins = |id: u32| lifetimes[id as usize].pinned.unwrap_or(0);
        search.start(&mut self.tables, &pins, height);
        run
    }

    /// Records the outcome of a run.
    fn settle(&mut self, index: usize, search: &PackSearch, outcome: SearchOutcome) {
        let between = search.height > self.goal();
        let unit = self.common.unit_bytes;
        match outcome {
            SearchOutcome::Packed => {
                search.each_offset(&mut self.tables);
                self.tables.parts[index].height = search.top(&self.tables);
                self.caution = 0;
            }
            SearchOutcome::Impossible => {
                let part = &mut self.tables.parts[index];
                let next = (search.height / unit + 1).saturating_mul(unit);
                part.lower = part.lower.max(next.min(part.height));
            }
            SearchOutcome::Open | SearchOutcome::NoRoom => {
                if between && self.run.is_none() {
                    self.caution += 1;
                }
            }
        }
    }
}
