//! Greedy packings, then the search, as one machine that can be stopped after any step.

use crate::lifetime::Lifetime;

use super::choose::Heuristic;
use super::error::PackError;
use super::greedy::{self, Order};
use super::prepare::{Common, prepare};
use super::restart::Restarts;
use super::search::{Outcome, Search};
use super::section;
use super::tables::PackTables;

/// Buckets that [`Packer::first`] looks at, about, before it leaves further orders to
/// [`Packer::improve`]: half a second's work, about.
const FIRST_WORK: u64 = 10_000_000;
/// Buckets that cost as much as a step of the search.
const BUCKETS_PER_STEP: u64 = 64;
/// Of so many runs one aims between the best height and the lower bound, the others at the bound.
const RUNS_BETWEEN: u32 = 4;
/// How close to the best height such a run may aim, as a power of two of what lies between.
const MAX_CAUTION: u32 = 6;

/// Finds offsets for lifetimes.
///
/// ```
/// use larder_core::lifetime::Lifetime;
/// use larder_core::lifetime::pack::{
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
    common: Common,
    enough_bytes: u64,
    /// Greedy orders tried.
    orders: usize,
    /// Steps that past calls did beyond what they were allowed.
    debt: u64,
    restarts: Restarts,
    /// The part in the tables of the search.
    loaded: Option<(usize, Search)>,
    /// The run under way: its heuristic and the steps it has left.
    run: Option<(Heuristic, u64)>,
    /// Runs started for the loaded part.
    runs: u32,
    /// Grows with each run between that found nothing.
    caution: u32,
}

impl<'t> Packer<'t> {
    /// Looks at the lifetimes and packs nothing yet. O(n log n).
    ///
    /// # Errors
    /// Pins that exclude each other, sizes out of range, tables that are too short.
    pub fn new(lifetimes: &'t [Lifetime], mut tables: PackTables<'t>) -> Result<Self, PackError> {
        let common = prepare(lifetimes, &mut tables)?;
        Ok(Self {
            lifetimes,
            tables,
            common,
            enough_bytes: 0,
            orders: 0,
            debt: 0,
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

    /// The first packing: by size, and if there is time in about half a second, by other orders as well.
    pub fn first(&mut self) {
        let mut work = 0;
        while self.orders < Order::ALL.len() && (self.orders == 0 || work < FIRST_WORK) {
            if self.orders > 0 && self.is_done() {
                return;
            }
            work += self.greedy();
        }
    }

    /// Goes on for about so many steps, until it [is done](Self::is_done). A step takes time in
    /// the number of lifetimes that meet, and never makes the packing worse. How the steps are
    /// divided among calls makes no difference.
    pub fn improve(&mut self, steps: u64) {
        if self.orders == 0 {
            self.first();
        }
        let mut left = steps;
        loop {
            let paid = self.debt.min(left);
            self.debt -= paid;
            left -= paid;
            if left == 0 || self.is_done() {
                return;
            }
            self.debt = if self.orders < Order::ALL.len() {
                self.greedy() / BUCKETS_PER_STEP + 1
            } else {
                self.search(&mut left)
            };
        }
    }

    /// The offset of each lifetime in the best packing so far. One that takes no space is at 0, or
    /// where it is pinned.
    pub fn offsets(&self) -> &[u64] {
        &self.tables.offsets[..self.lifetimes.len()]
    }

    /// The height of that packing in bytes; the largest `u64` before the [first](Self::first) one.
    pub fn height(&self) -> u64 {
        let parts = self.tables.parts[..self.common.parts].iter();
        parts.map(|part| part.height).max().unwrap_or(0)
    }

    /// No packing is lower than this, in bytes. It rises when the search proves more.
    pub fn lower_bound(&self) -> u64 {
        let parts = self.tables.parts[..self.common.parts].iter();
        parts.map(|part| part.lower).max().unwrap_or(0)
    }

    /// The most bytes that live at one tick.
    pub const fn max_live_bytes(&self) -> u64 {
        self.common.max_live_bytes
    }

    /// Whether no packing is lower than the one found.
    pub fn is_proven(&self) -> bool {
        self.height() <= self.lower_bound()
    }

    /// Whether [`improve`](Self::improve) has nothing more to do: the height is proven, or it is
    /// enough, or the parts in question meet in too many pairs for the tables.
    pub fn is_done(&self) -> bool {
        let goal = self.goal();
        if self.orders < Order::ALL.len() {
            return self.height() <= goal;
        }
        let mut parts = self.tables.parts[..self.common.parts].iter();
        !parts.any(|part| part.height > goal && !part.too_wide)
    }

    /// What is aimed at.
    fn goal(&self) -> u64 {
        self.lower_bound().max(self.enough_bytes)
    }

    /// One greedy packing; each part keeps the better one. Gives the buckets looked at.
    fn greedy(&mut self) -> u64 {
        let order = Order::ALL[self.orders];
        self.orders += 1;
        let tables = &mut self.tables;
        let max = self.common.max_live_bytes;
        let work = greedy::pack(self.lifetimes, tables, self.common.taken, order, max);
        for part in &mut tables.parts[..self.common.parts] {
            let ids = &tables.order[part.start as usize..part.end as usize];
            let top = |&id: &u32| tables.trial[id as usize] + self.lifetimes[id as usize].bytes;
            let height = ids.iter().map(top).max().unwrap_or(0);
            if height < part.height {
                part.height = height;
                for &id in ids {
                    tables.offsets[id as usize] = tables.trial[id as usize];
                }
            }
        }
        work
    }

    /// Searches for at most `left` steps, and less if something came of it; gives the debt.
    fn search(&mut self, left: &mut u64) -> u64 {
        let Some((index, mut search)) = self.load() else {
            return 1;
        };
        let (heuristic, mut steps) = match self.run.take() {
            Some(run) => run,
            None => self.start(index, &mut search),
        };
        let mut outcome = Outcome::Open;
        while *left > 0 && steps > 0 && outcome == Outcome::Open {
            outcome = search.step(&mut self.tables, &heuristic);
            *left -= 1;
            steps -= 1;
        }
        if outcome == Outcome::Open && steps > 0 {
            self.run = Some((heuristic, steps));
        }
        self.settle(index, &search, outcome);
        self.loaded = Some((index, search));
        0
    }

    /// The highest part that the search can hold, in its tables.
    fn load(&mut self) -> Option<(usize, Search)> {
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
            self.tables.parts[index].too_wide = true;
            return None;
        };
        Some((index, Search::new(items, sections, &self.common)))
    }

    /// Begins one more run.
    fn start(&mut self, index: usize, search: &mut Search) -> (Heuristic, u64) {
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

    /// Keeps what a run found.
    fn settle(&mut self, index: usize, search: &Search, outcome: Outcome) {
        let between = search.height > self.goal();
        let unit = self.common.unit_bytes;
        match outcome {
            Outcome::Packed => {
                search.each_offset(&mut self.tables);
                self.tables.parts[index].height = search.top(&self.tables);
                self.caution = 0;
            }
            Outcome::Impossible => {
                let part = &mut self.tables.parts[index];
                let next = (search.height / unit + 1).saturating_mul(unit);
                part.lower = part.lower.max(next.min(part.height));
            }
            Outcome::Open | Outcome::NoRoom => {
                if between && self.run.is_none() {
                    self.caution += 1;
                }
            }
        }
    }
}
