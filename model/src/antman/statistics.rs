//! The parts of a job's status that describe its runs and its memory.

use std::collections::{BTreeMap, VecDeque};

/// The number of runs kept for each graph.
const KEPT: usize = 9;

#[derive(Clone, Debug, Default)]
struct Graph {
    runs: VecDeque<u64>,
    checked: Option<u64>,
}

/// The average run times of graphs, in microseconds. A graph is never removed.
#[derive(Clone, Debug, Default)]
pub struct Averages(BTreeMap<u64, Graph>);

impl Averages {
    /// Records a run of a graph.
    pub fn record(&mut self, graph: u64, micros: u64) {
        let runs = &mut self.0.entry(graph).or_default().runs;
        runs.push_back(micros);
        if runs.len() > KEPT {
            runs.pop_front();
        }
    }

    /// Returns true if a graph is new, or if its average has changed by at least 1 % since the last check. The last
    /// check counts even if it did not lead to a write, so an average that drifts slowly is never written.
    pub fn check(&mut self) -> bool {
        let mut has_changed = false;
        for graph in self.0.values_mut() {
            let average = graph.runs.iter().sum::<u64>() / graph.runs.len() as u64;
            has_changed |= graph.checked.is_none_or(|checked| {
                let moved = checked.abs_diff(average);
                moved > 0 && moved * 100 >= checked
            });
            graph.checked = Some(average);
        }
        has_changed
    }

    /// Returns each graph with its average at the last check.
    pub fn averages(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let checked = |(graph, history): (&u64, &Graph)| Some((*graph, history.checked?));
        self.0.iter().filter_map(checked)
    }
}

/// The reason why blocks are on the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// There are no blocks on the host.
    None,
    /// The device's memory was short.
    Oom,
    /// The device had enough memory, but not in one piece.
    Fragment,
}

/// Returns the numbers that a status has for each GPU. If a GPU has several devices, only the last device counts.
pub fn by_gpu<T: Clone>(devices: &[(&str, T)]) -> BTreeMap<String, T> {
    let named = |(gpu, numbers): &(&str, T)| ((*gpu).to_owned(), numbers.clone());
    devices.iter().map(named).collect()
}

/// Returns the reason that AntMan writes into a status. AntMan reports [`Reason::Oom`] and [`Reason::Fragment`] the
/// wrong way round, and so does this model. The peaks are those since the start of the job.
pub fn swap_reason(device_peak: u64, host_peak: u64, device_reserved: u64) -> Reason {
    if host_peak == 0 {
        return Reason::None;
    }
    let peaks = device_peak.checked_add(host_peak);
    match peaks.is_some_and(|peaks| peaks <= device_reserved) {
        true => Reason::Oom,
        false => Reason::Fragment,
    }
}
