//! Compares each of our configurations with the best of its peers, workload by workload.
//!
//! The peers are all allocators except ours, including the system's. Our configurations are never compared with each
//! other. Workloads with steps are omitted, since no peer has steps.

use super::allocators::{self, CONFIGURATIONS};
use super::summary::VersusRow;
use super::workloads;
use crate::numbers::mebibytes;
use crate::numbers::{geometric_mean, in_order};
use crate::report::{Table, decimals};

/// The figure that is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Measure {
    /// Nanoseconds of one operation.
    Time,
    /// Peak resident bytes.
    Peak,
}

/// The comparison for one measure and one profile.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Contest {
    pub(crate) profile: &'static str,
    pub(crate) measure: Measure,
    /// The workloads for which a peer has a figure, in the order of the rows.
    pub(crate) lines: Vec<ContestLine>,
    /// Our measured configurations.
    pub(crate) scores: Vec<Score>,
}

/// One workload in a contest.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ContestLine {
    pub(crate) workload: &'static str,
    /// The best peer, and its figure in the unit of the measure.
    pub(crate) peer: &'static str,
    pub(crate) best: f64,
    /// The ratios of our configurations' figures to `best`, in the order of the scores; `None` for a configuration that
    /// failed.
    pub(crate) ratios: Vec<Option<f64>>,
}

/// One of our configurations over all workloads.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Score {
    pub(crate) allocator: &'static str,
    /// Geometric mean of the configuration's ratios.
    pub(crate) mean: Option<f64>,
    /// The number of workloads in the mean.
    pub(crate) workloads: usize,
    /// The workloads with a ratio above [`BEHIND`], worst first.
    pub(crate) behind: Vec<(&'static str, f64)>,
}

/// The ratio above which a configuration counts as behind on a workload. Ratios closer to 1 are above it in one run and
/// below it in the next.
pub(crate) const BEHIND: f64 = 1.05;

impl Measure {
    /// Both measures, in the order of the tables.
    pub(crate) const ALL: [Self; 2] = [Self::Time, Self::Peak];

    fn figure(self, row: &VersusRow) -> Option<f64> {
        let figure = match self {
            Self::Time => row.ns_per_operation,
            Self::Peak => row.peak_rss_bytes.map(|bytes| bytes as f64),
        };
        figure.filter(|figure| *figure > 0.0)
    }

    /// Formats a figure of this measure.
    pub(crate) fn show(self, figure: f64) -> String {
        match self {
            Self::Time => format!("{figure:.1}"),
            Self::Peak => format!("{:.1}", mebibytes(figure as u64)),
        }
    }
}

/// Compares our configurations with the peers, in the rows of one profile.
pub(crate) fn contest(rows: &[VersusRow], profile: &'static str, measure: Measure) -> Contest {
    let entered: Vec<&VersusRow> = rows
        .iter()
        .filter(|row| row.profile == profile && enters(row.workload))
        .collect();
    let has_rows = |name: &&str| entered.iter().any(|row| row.allocator == *name);
    let ours: Vec<&'static str> = CONFIGURATIONS.into_iter().filter(has_rows).collect();
    let workloads = in_order(entered.iter().map(|row| row.workload));
    let lines: Vec<ContestLine> = workloads
        .into_iter()
        .filter_map(|workload| line(workload, &entered, &ours, measure))
        .collect();
    let scores = ours.iter().enumerate();
    let scores = scores
        .map(|(column, allocator)| score(allocator, column, &lines))
        .collect();
    Contest {
        profile,
        measure,
        lines,
        scores,
    }
}

fn enters(workload: &str) -> bool {
    workloads::find(workload).is_some_and(|workload| workload.is_compared())
}

fn is_peer(allocator: &str) -> bool {
    allocators::find(allocator).is_some_and(|allocator| !allocator.ours)
}

/// Returns the comparison on one workload, or `None` if no peer has a figure.
fn line(
    workload: &'static str,
    rows: &[&VersusRow],
    ours: &[&'static str],
    measure: Measure,
) -> Option<ContestLine> {
    let figures = || {
        let rows = rows.iter().filter(|row| row.workload == workload);
        rows.filter_map(|row| Some((row.allocator, measure.figure(row)?)))
    };
    let peers = figures().filter(|(allocator, _)| is_peer(allocator));
    let (peer, best) = peers.min_by(|(_, one), (_, other)| one.total_cmp(other))?;
    let ratio = |name: &&str| {
        let mut own = figures().filter(|(allocator, _)| allocator == name);
        own.next().map(|(_, figure)| figure / best)
    };
    Some(ContestLine {
        workload,
        peer,
        best,
        ratios: ours.iter().map(ratio).collect(),
    })
}

fn score(allocator: &'static str, column: usize, lines: &[ContestLine]) -> Score {
    let with_ratio = lines
        .iter()
        .filter_map(|line| Some((line.workload, line.ratios[column]?)));
    let ratios: Vec<(&'static str, f64)> = with_ratio.collect();
    let mut behind = ratios.clone();
    behind.retain(|(_, ratio)| *ratio > BEHIND);
    behind.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    Score {
        allocator,
        mean: geometric_mean(ratios.iter().map(|(_, ratio)| *ratio)),
        workloads: ratios.len(),
        behind,
    }
}

/// Formats the contest. Returns an empty string if there are no peers or no configurations of ours.
pub(crate) fn contest_table(contest: &Contest, width: usize) -> String {
    if contest.lines.is_empty() || contest.scores.is_empty() {
        return String::new();
    }
    let (what, unit) = match contest.measure {
        Measure::Time => ("time over the best peer's", "its ns/op"),
        Measure::Peak => ("peak of resident memory over the best peer's", "its MiB"),
    };
    let mut headings = vec!["workload", "best peer", unit];
    headings.extend(contest.scores.iter().map(|score| score.allocator));
    let mut table = Table::new(headings);
    for line in &contest.lines {
        let best = contest.measure.show(line.best);
        let mut cells = vec![line.workload.to_owned(), line.peer.to_owned(), best];
        cells.extend(line.ratios.iter().map(|ratio| decimals(*ratio, 2)));
        table.row(cells);
    }
    let mut text = table.titled(&format!("{what}, profile {}", contest.profile), width);
    text.pop();
    for score in &contest.scores {
        text.push_str(&verdict(score));
    }
    text.push('\n');
    text
}

/// Formats a line about one configuration.
fn verdict(score: &Score) -> String {
    let Score {
        allocator,
        workloads,
        behind,
        ..
    } = score;
    let mean = decimals(score.mean, 2);
    let mut text = format!("{allocator}: geometric mean {mean} over {workloads} workloads");
    if !behind.is_empty() {
        let names = behind
            .iter()
            .map(|(workload, ratio)| format!("{workload} {ratio:.2}"));
        let names: Vec<String> = names.collect();
        text.push_str(&format!("; above {BEHIND:.2}: {}", names.join(", ")));
    }
    text.push('\n');
    text
}
