//! Durations of the runs of each graph.
//!
//! HIST1: a history has 1 to [`KEPT`] runs, with the oldest first.
//! HIST2: the graphs kept are those that ran within [`FRESH`] plus the time to the next check, and at most
//! [`MAX_GRAPHS`].

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::StatusFile;

/// Maximum number of graphs remembered: those that ran last. Without a bound, a program that keeps making
/// graphs would fill memory, and readers would refuse its status as too large.
pub(super) const MAX_GRAPHS: usize = 4096;
// A graph's line in a status, with two numbers of 64 bits, is shorter than 64 bytes.
const _: () = assert!(MAX_GRAPHS * 64 <= StatusFile::MAX_BYTES / 2);
/// Number of runs kept of each graph. Upstream's constant is 10, but upstream drops a run when the list
/// reaches that length.
pub(super) const KEPT: usize = 9;
/// A graph leaves the status when its last run is this old.
pub(super) const FRESH: Duration = Duration::from_secs(100);
/// A run that differs by more than this factor from the oldest kept run is reported immediately.
pub(super) const HUGE: u32 = 10;
/// An average counts as changed if it differs by at least one part in this many.
const CHANGE: u128 = 100;

/// The histories of all remembered graphs.
#[derive(Debug, Default)]
pub(super) struct Histories {
    graphs: BTreeMap<u64, SampleHistory>,
}

#[derive(Debug)]
struct SampleHistory {
    runs: VecDeque<Duration>,
    last_run: Duration,
    /// The average at the last check, in microseconds.
    average_micros: Option<u64>,
    /// The last average written, in microseconds.
    written_micros: Option<u64>,
}

impl Histories {
    /// Records a run. Returns true if it is hugely longer or shorter than the oldest kept run. O(log graphs),
    /// or O(graphs) for a new graph when there are [`MAX_GRAPHS`].
    pub(super) fn record(&mut self, graph: u64, took: Duration, now: Duration) -> bool {
        if !self.graphs.contains_key(&graph) {
            self.make_room();
        }
        let history = self.graphs.entry(graph).or_insert_with(|| SampleHistory {
            runs: VecDeque::with_capacity(KEPT + 1),
            last_run: now,
            average_micros: None,
            written_micros: None,
        });
        let oldest = history.runs.front().copied();
        history.runs.push_back(took);
        if history.runs.len() > KEPT {
            history.runs.pop_front();
        }
        history.last_run = now;
        oldest.is_some_and(|oldest| took > times(oldest, HUGE) || oldest > times(took, HUGE))
    }

    /// Computes the averages of fresh graphs. Returns true if an average differs by at least 1 % from the one
    /// last written, or if a graph is new.
    pub(super) fn average(&mut self, now: Duration) -> bool {
        let mut changed = false;
        for history in self
            .graphs
            .values_mut()
            .filter(|history| history.is_fresh(now))
        {
            let average = history.average_micros();
            changed |= match history.written_micros {
                None => true,
                Some(written) => moved(written, average),
            };
            history.average_micros = Some(average);
        }
        changed
    }

    /// Records that the averages have been written.
    pub(super) fn written(&mut self) {
        for history in self.graphs.values_mut() {
            history.written_micros = history.average_micros;
        }
    }

    /// Forgets the graph that ran longest ago if there are too many.
    fn make_room(&mut self) {
        if self.graphs.len() < MAX_GRAPHS {
            return;
        }
        let oldest = self
            .graphs
            .iter()
            .min_by_key(|(_, history)| history.last_run);
        if let Some((&graph, _)) = oldest {
            self.graphs.remove(&graph);
        }
    }

    /// Forgets graphs that are not fresh. Returns true if there were any.
    pub(super) fn forget(&mut self, now: Duration) -> bool {
        let before = self.graphs.len();
        self.graphs.retain(|_, history| history.is_fresh(now));
        before != self.graphs.len()
    }

    /// Returns for each graph its number, its average in microseconds, and whether it is fresh.
    pub(super) fn averages(&self, now: Duration) -> impl Iterator<Item = (u64, u64, bool)> + '_ {
        let taken = move |(graph, history): (&u64, &SampleHistory)| {
            Some((*graph, history.average_micros?, history.is_fresh(now)))
        };
        self.graphs.iter().filter_map(taken)
    }

    /// Returns the number of graphs remembered.
    pub(super) fn len(&self) -> usize {
        self.graphs.len()
    }
}

impl SampleHistory {
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

/// Returns whether the average differs from the written one by at least 1 % of it. Equal averages, including
/// 0, do not differ.
fn moved(written: u64, average: u64) -> bool {
    let difference = u128::from(written.abs_diff(average));
    difference > 0 && difference * CHANGE >= u128::from(written)
}
