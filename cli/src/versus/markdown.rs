//! The summary of a measurement as one table in Markdown, and the parser for the rows that it summarizes.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::allocators::CONFIGURATIONS;
use super::peers::{BEHIND, Contest, ContestLine, Measure, Score, contest};
use super::summary::VersusRow;
use super::workers::Profile;
use super::workloads::WORKLOADS;
use crate::report::{Left, Right, Table, TableCell, decimals, none};

/// Reads the rows that `--results` or `--json` wrote. Skips lines of other measures. An error names the file and the
/// line.
pub(crate) fn read(path: &Path) -> Result<Vec<VersusRow>, String> {
    let file = path.display();
    let text = fs::read_to_string(path).map_err(|error| format!("{file}: {error}"))?;
    let mut rows = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let row = match serde_json::from_str::<Value>(line) {
            Ok(value) if value.get("measure").is_some() => continue,
            Ok(value) => serde_json::from_value(value),
            Err(error) => Err(error),
        };
        rows.push(row.map_err(|error| {
            format!(
                "{file}, line {number}: {error}; give a file that `larder versus --results` or `--json` wrote"
            )
        })?);
    }
    Ok(rows)
}

/// Merges the rows of two measurements. A ratio is within one measurement. So for a workload and profile that were
/// measured again, the later rows replace the earlier ones of all allocators.
pub(crate) fn join(mut earlier: Vec<VersusRow>, later: Vec<VersusRow>) -> Vec<VersusRow> {
    let key = |row: &VersusRow| (row.workload, row.profile);
    earlier.retain(|row| later.iter().all(|again| key(again) != key(row)));
    earlier.extend(later);
    earlier
}

/// A group of columns: its heading, profile and measure.
const GROUPS: [(&str, Profile, Measure); 3] = [
    ("time", Profile::Fat, Measure::Time),
    ("plain build", Profile::Plain, Measure::Time),
    ("peak", Profile::Fat, Measure::Peak),
];

/// The headings of our configurations, in their order.
const NAMES: [&str; CONFIGURATIONS.len()] = ["default", "speed", "memory"];

/// Returns the summary. Each workload has a line: the best peer with fat LTO and its time, and then the ratios of each
/// of our configurations to the best peer: time with fat LTO, time of a plain release build, and peak of resident
/// memory. The last line has geometric means.
pub(crate) fn summary(rows: &[VersusRow]) -> String {
    summary_table(rows).markdown()
}

/// Formats the [`summary`] as a table.
pub(super) fn summary_table(rows: &[VersusRow]) -> Table {
    let groups = GROUPS.map(|(_, profile, measure)| contest(rows, profile.name(), measure));
    let mut table = Table::default();
    table.column("workload", Left);
    table.column("best peer", Left);
    table.column("its ns/op", Right);
    for (heading, ..) in GROUPS {
        for name in NAMES {
            table.column(format!("{heading}: {name}"), Right);
        }
    }
    for workload in WORKLOADS {
        let lines = groups.each_ref().map(|group| line_of(group, workload.name));
        if lines.iter().all(Option::is_none) {
            continue;
        }
        let peer = lines[0].map_or_else(none, |line| line.peer.to_owned());
        let best = lines[0].map_or_else(none, |line| Measure::Time.show(line.best));
        let mut cells: Vec<TableCell> = vec![workload.name.into(), peer.into(), best.into()];
        for (group, line) in groups.iter().zip(lines) {
            cells.extend(CONFIGURATIONS.map(|name| ratio_of(group, line, name)));
        }
        table.row(cells);
    }
    let mut cells = vec![TableCell::strong("geometric mean"), "".into(), "".into()];
    for group in &groups {
        cells.extend(CONFIGURATIONS.map(|name| mean_of(group, name)));
    }
    table.row(cells);
    table
}

fn line_of<'a>(contest: &'a Contest, workload: &str) -> Option<&'a ContestLine> {
    contest.lines.iter().find(|line| line.workload == workload)
}

fn score_of<'a>(contest: &'a Contest, name: &str) -> Option<&'a Score> {
    let mut scores = contest.scores.iter();
    scores.find(|score| score.allocator == name)
}

/// Returns the cell of a ratio. It stands out if the configuration is behind.
fn ratio_of(contest: &Contest, line: Option<&ContestLine>, name: &str) -> TableCell {
    let mut scores = contest.scores.iter();
    let column = scores.position(|score| score.allocator == name);
    let ratio = line.zip(column).and_then(|(line, at)| line.ratios[at]);
    shown(ratio)
}

fn mean_of(contest: &Contest, name: &str) -> TableCell {
    shown(score_of(contest, name).and_then(|score| score.mean))
}

fn shown(ratio: Option<f64>) -> TableCell {
    let text = decimals(ratio, 2);
    match ratio {
        Some(ratio) if ratio > BEHIND => TableCell::bad(text),
        _ => text.into(),
    }
}
