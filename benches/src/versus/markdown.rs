//! The summary of a measurement as one table in Markdown, and reading back the
//! rows it is made of.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use thiserror::Error;

use super::allocators::CONFIGURATIONS;
use super::peers::{BEHIND, Contest, ContestLine, Measure, contest, ratio_cell};
use super::summary::VersusRow;
use super::table::none;
use super::workers::Profile;
use super::workloads::WORKLOADS;

/// Why rows could not be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file is not there, or is no text.
    #[error("{}: {error}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// What is wrong with it.
        error: std::io::Error,
    },
    /// A line is no row.
    #[error("{}, line {line}: {error}; give a file that `larder versus --results` or `--json` wrote", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// What is wrong with it.
        error: serde_json::Error,
    },
}

/// The rows that `--results` or `--json` wrote; lines of other measures are passed over.
///
/// # Errors
/// [`ReadError`] names the file and the line.
pub fn read(path: &Path) -> Result<Vec<VersusRow>, ReadError> {
    let text = fs::read_to_string(path).map_err(|error| ReadError::File {
        path: path.to_owned(),
        error,
    })?;
    let mut rows = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let value: Result<Value, _> = serde_json::from_str(line);
        let row = match value {
            Ok(value) if value.get("measure").is_some() => continue,
            Ok(value) => serde_json::from_value(value),
            Err(error) => Err(error),
        };
        rows.push(row.map_err(|error| ReadError::Line {
            path: path.to_owned(),
            line: index + 1,
            error,
        })?);
    }
    Ok(rows)
}

/// Rows of several measurements as one. Ratios are taken within one measurement, so a workload and
/// profile that was measured again counts as the later one has it, for all allocators.
#[must_use]
pub fn join(mut earlier: Vec<VersusRow>, later: Vec<VersusRow>) -> Vec<VersusRow> {
    let key = |row: &VersusRow| (row.workload, row.profile);
    earlier.retain(|row| later.iter().all(|again| key(again) != key(row)));
    earlier.extend(later);
    earlier
}

/// A group of columns: its heading, the profile, what is compared.
const GROUPS: [(&str, Profile, Measure); 3] = [
    ("time", Profile::Fat, Measure::Time),
    ("plain", Profile::Plain, Measure::Time),
    ("peak", Profile::Fat, Measure::Peak),
];

/// Our configurations in headings, in their order.
const NAMES: [&str; CONFIGURATIONS.len()] = ["default", "speed", "memory"];

/// A line for each workload: the best peer with fat LTO and its time, then each of our
/// configurations over the best peer: time with fat LTO, time of a plain release build, peak of
/// resident memory. Below them geometric means and what they aim at.
#[must_use]
pub fn summary(rows: &[VersusRow]) -> String {
    let groups = GROUPS.map(|(_, profile, measure)| contest(rows, profile.name(), measure));
    let mut table = MarkdownText::default();
    let mut cells = ["workload", "best peer", "its ns/op"]
        .map(str::to_owned)
        .to_vec();
    for (heading, ..) in GROUPS {
        cells.extend(NAMES.map(|name| format!("{heading}: {name}")));
    }
    table.add(&cells);
    table.add(
        &[
            vec!["---".to_owned(); 2],
            vec!["---:".to_owned(); cells.len() - 2],
        ]
        .concat(),
    );
    for workload in WORKLOADS {
        let lines = groups.each_ref().map(|group| line_of(group, workload.name));
        if lines.iter().all(Option::is_none) {
            continue;
        }
        let peer = lines[0].map_or_else(none, |line| line.peer.to_owned());
        let best = lines[0].map_or_else(none, |line| Measure::Time.show(line.best));
        let mut cells = vec![workload.name.to_owned(), peer, best];
        for (group, line) in groups.iter().zip(lines) {
            cells.extend(CONFIGURATIONS.map(|name| ratio_of(group, line, name)));
        }
        table.add(&cells);
    }
    for (name, cell) in [("**geometric mean**", mean_of as Cell), ("**aim**", aim_of)] {
        let mut cells = vec![name.to_owned(), String::new(), String::new()];
        for group in &groups {
            cells.extend(CONFIGURATIONS.map(|name| cell(group, name)));
        }
        table.add(&cells);
    }
    table.0
}

/// What a contest says of a configuration.
type Cell = fn(&Contest, &str) -> String;

#[derive(Default)]
struct MarkdownText(String);

impl MarkdownText {
    fn add(&mut self, cells: &[String]) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "| {} |", cells.join(" | "));
    }
}

fn line_of<'a>(contest: &'a Contest, workload: &str) -> Option<&'a ContestLine> {
    contest.lines.iter().find(|line| line.workload == workload)
}

fn column(contest: &Contest, name: &str) -> Option<usize> {
    let mut scores = contest.scores.iter();
    scores.position(|score| score.allocator == name)
}

/// In bold where it is behind.
fn ratio_of(contest: &Contest, line: Option<&ContestLine>, name: &str) -> String {
    let ratio = line
        .zip(column(contest, name))
        .and_then(|(line, column)| line.ratios[column]);
    match ratio {
        Some(ratio) if ratio > BEHIND => format!("**{ratio:.2}**"),
        ratio => ratio_cell(ratio),
    }
}

fn mean_of(contest: &Contest, name: &str) -> String {
    let score = column(contest, name).map(|column| &contest.scores[column]);
    ratio_cell(score.and_then(|score| score.mean))
}

fn aim_of(contest: &Contest, name: &str) -> String {
    let Some(aim) = contest.measure.aim(name) else {
        return none();
    };
    let mean = format!("{:.2}", aim.mean);
    let score = column(contest, name).map(|column| &contest.scores[column]);
    match score {
        Some(score) => format!("{mean} ({})", score.against(&aim)),
        None => mean,
    }
}
