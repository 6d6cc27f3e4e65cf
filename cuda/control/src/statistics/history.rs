//! How long the runs of each graph took.
//!
//! H1: a history has 1 to [`KEPT`] runs, oldest first.
//! H2: its size is O(graphs that ran within [`FRESH`] and the time to the next check).

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Runs kept of each graph. Upstream's constant is 10, and drops a run when the list reaches it.
pub(super) const KEPT: usize = 9;
/// A graph whose last run is as old as this is not spoken of any more.
pub(super) const FRESH: Duration = Duration::from_secs(100);
/// A run that differs by more than this factor from the oldest kept is told at once.
pub(super) const HUGE: u32 = 10;
/// An average that moved by one in so many is a change.
const CHANGE: u128 = 100;

/// All graphs.
#[derive(Debug, Default)]
pub(super) struct Histories {
    graphs: BTreeMap<u64, History>,
}

#[derive(Debug)]
struct History {
    runs: VecDeque<Duration>,
    last_run: Duration,
    /// The average that was told last, in microseconds.
    told_micros: Option<u64>,
}

impl Histories {
    /// Takes a run; true if it is hugely longer or shorter than the oldest one kept.
    pub(super) fn record(&mut self, graph: u64, took: Duration, now: Duration) -> bool {
        let history = self.graphs.entry(graph).or_insert_with(|| History {
            runs: VecDeque::with_capacity(KEPT + 1),
            last_run: now,
            told_micros: None,
        });
        let oldest = history.runs.front().copied();
        history.runs.push_back(took);
        if history.runs.len() > KEPT {
            history.runs.pop_front();
        }
        history.last_run = now;
        oldest.is_some_and(|oldest| took > times(oldest, HUGE) || oldest > times(took, HUGE))
    }

    /// Takes the averages of fresh graphs; true if one moved by 1 %, or a graph came.
    pub(super) fn average(&mut self, now: Duration) -> bool {
        let mut changed = false;
        for history in self
            .graphs
            .values_mut()
            .filter(|history| history.is_fresh(now))
        {
            let average = history.average_micros();
            changed |= match history.told_micros {
                None => true,
                Some(told) => moved(told, average),
            };
            history.told_micros = Some(average);
        }
        changed
    }

    /// Forgets graphs that are not fresh; true if there were any.
    pub(super) fn forget(&mut self, now: Duration) -> bool {
        let before = self.graphs.len();
        self.graphs.retain(|_, history| history.is_fresh(now));
        before != self.graphs.len()
    }

    /// The averages that were taken: graph, microseconds, whether it is fresh.
    pub(super) fn averages(&self, now: Duration) -> impl Iterator<Item = (u64, u64, bool)> + '_ {
        let told = move |(graph, history): (&u64, &History)| {
            Some((*graph, history.told_micros?, history.is_fresh(now)))
        };
        self.graphs.iter().filter_map(told)
    }

    /// Graphs that are remembered.
    pub(super) fn len(&self) -> usize {
        self.graphs.len()
    }
}

impl History {
    fn is_fresh(&self, now: Duration) -> bool {
        now.saturating_sub(self.last_run) < FRESH
    }

    fn average_micros(&self) -> u64 {
        let sum: u128 = self.runs.iter().map(Duration::as_micros).sum();
        u64::try_from(sum / self.runs.len().max(1) as u128).unwrap_or(u64::MAX)
    }
}

fn times(time: Duration, factor: u32) -> Duration {
    time.checked_mul(factor).unwrap_or(Duration::MAX)
}

/// By 1 % of what was told, or more. What stays the same has not moved, 0 neither.
fn moved(told: u64, average: u64) -> bool {
    let difference = u128::from(told.abs_diff(average));
    difference > 0 && difference * CHANGE >= u128::from(told)
}
