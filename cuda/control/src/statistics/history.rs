//! Durations of the runs of each graph.
//!
//! HIST1: a history has 1 to [`KEPT`] runs, oldest first.
//! HIST2: graphs are those that ran within [`FRESH`] and the time to the next check, at most [`MAX_GRAPHS`].

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::StatusFile;

/// Maximum number of graphs remembered, which are those that ran last. Without a bound, a program that keeps
/// making graphs would fill memory, and readers would refuse its status as too large.
pub(super) const MAX_GRAPHS: usize = 4096;
// A graph's line in a status, with two numbers of 64 bits, is shorter than 64 bytes.
const _: () = assert!(MAX_GRAPHS * 64 <= StatusFile::MAX_BYTES / 2);
/// Number of runs kept of each graph. Upstream's constant is 10, but it drops a run when the list reaches
/// that.
pub(super) const KEPT: usize = 9;
/// Age of the last run at which a graph leaves the status.
pub(super) const FRESH: Duration = Duration::from_secs(100);
/// A run that differs by more than this factor from the oldest one kept is reported immediately.
pub(super) const HUGE: u32 = 10;
/// An average counts as changed if it moved by at least one part in this many.
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
    /// The average written last, in microseconds.
    written_micros: Option<u64>,
}

impl Histories {
    /// Records a run. Returns true if it is hugely longer or shorter than the oldest one kept. O(log graphs);
    /// O(graphs) for a new graph when there are [`MAX_GRAPHS`].
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

    /// Computes the averages of fresh graphs. Returns true if one moved by 1 % from the written one, or a
    /// graph is new.
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

    /// Notes that the sink has written the averages.
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

    /// Returns the averages: graph, microseconds, and whether the graph is fresh.
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
/// 0, have not moved.
fn moved(written: u64, average: u64) -> bool {
    let difference = u128::from(written.abs_diff(average));
    difference > 0 && difference * CHANGE >= u128::from(written)
}
