//! Rows as text. Each profile has a table of times, tables of memory, the geometric means, the
//! comparison of ours with the best peers, and the frames. Failures come last.

use std::iter;

use super::frames::frames_table;
use super::peers::{Measure, contest, contest_table};
use super::summary::{VersusMean, VersusRow, means};
use crate::numbers::in_order;
use crate::numbers::mebibytes;
use crate::report::{Table, decimals, none};

/// The fraction of the median above which the difference between rounds is marked.
const STEADY: f64 = 0.10;

/// One kind of table: its title, the contents of its cells, and its last column.
struct Face {
    title: &'static str,
    cell: fn(&VersusRow) -> Option<String>,
    /// The last column, whose text comes from the row with the smallest ratio.
    best: Option<BestPeer>,
}

struct BestPeer {
    heading: &'static str,
    ratio: fn(&VersusRow) -> Option<f64>,
    figure: fn(&VersusRow) -> Option<String>,
}

const FACES: [Face; 5] = [
    Face {
        title: "time over the shortest (~ rounds differ by more than a tenth)",
        cell: |row| Some(format!("{}{:.2}", time_mark(row), row.ratio_to_best?)),
        best: Some(BestPeer {
            heading: "best ns/op",
            ratio: |row| row.ratio_to_best,
            figure: |row| Some(format!("{:.1}", row.ns_per_operation?)),
        }),
    },
    Face {
        title: "peak of resident memory over the smallest",
        cell: |row| Some(format!("{:.2}", row.peak_rss_ratio_to_best?)),
        best: Some(BestPeer {
            heading: "best MiB",
            ratio: |row| row.peak_rss_ratio_to_best,
            figure: |row| Some(format!("{:.1}", mebibytes(row.peak_rss_bytes?))),
        }),
    },
    Face {
        title: "resident memory once all is freed, over the smallest",
        cell: |row| Some(format!("{:.2}", row.end_rss_ratio_to_best?)),
        best: Some(BestPeer {
            heading: "best MiB",
            ratio: |row| row.end_rss_ratio_to_best,
            figure: |row| Some(format!("{:.1}", mebibytes(row.end_rss_bytes?))),
        }),
    },
    Face {
        title: "resident memory over live bytes",
        cell: |row| Some(format!("{:.2}", row.rss_over_live?)),
        best: None,
    },
    Face {
        title: "minor page faults of one operation",
        cell: |row| Some(format!("{:.1}", row.faults_per_operation?)),
        best: None,
    },
];

/// Returns the mark in front of a time, which is `~` if rounds differ by more than a tenth.
pub(super) fn time_mark(row: &VersusRow) -> &'static str {
    match row.spread {
        Some(spread) if spread > STEADY => "~",
        _ => "",
    }
}

/// Formats all rows.
pub(crate) fn table(rows: &[VersusRow], width: usize) -> String {
    let mut text = String::new();
    for profile in in_order(rows.iter().map(|row| row.profile)) {
        let of_profile = rows.iter().filter(|row| row.profile == profile);
        let (frames, timed): (Vec<&VersusRow>, Vec<&VersusRow>) =
            of_profile.partition(|row| row.is_of_frames());
        for face in &FACES {
            text.push_str(&face_table(face, profile, &timed, width));
        }
        if let Some(means) = means_table(rows, profile) {
            let title = format!("geometric means of the ratios above, profile {profile}");
            text.push_str(&means.titled(&title, width));
        }
        for measure in Measure::ALL {
            text.push_str(&contest_table(&contest(rows, profile, measure), width));
        }
        text.push_str(&frames_table(profile, &frames, width));
    }
    for row in rows {
        if let Some(why) = &row.failed {
            let (workload, allocator, profile) = (row.workload, row.allocator, row.profile);
            text.push_str(&format!(
                "failed: {workload} on {allocator} ({profile}): {why}\n"
            ));
        }
    }
    text.push_str(&skipped(rows));
    text
}

/// Formats a line for each workload that the system does not allow.
fn skipped(rows: &[VersusRow]) -> String {
    let lines = rows.iter().filter_map(|row| {
        let (why, workload, profile) = (row.skipped.as_ref()?, row.workload, row.profile);
        Some(format!("skipped: {workload} ({profile}): {why}\n"))
    });
    let mut lines: Vec<String> = lines.collect();
    lines.dedup();
    lines.concat()
}

/// Formats a line for each workload with figures, and a column for each allocator.
fn face_table(face: &Face, profile: &str, rows: &[&VersusRow], width: usize) -> String {
    let allocators = in_order(rows.iter().map(|row| row.allocator));
    let best = face.best.as_ref().map(|best| best.heading);
    let headings = iter::once("workload").chain(allocators.iter().copied());
    let mut table = Table::new(headings.chain(best));
    for workload in in_order(rows.iter().map(|row| row.workload)) {
        let of_workload = rows.iter().filter(|row| row.workload == workload);
        let line: Vec<&VersusRow> = of_workload.copied().collect();
        let has_figures = line.iter().any(|row| (face.cell)(row).is_some());
        // A line without figures stays if an allocator has failed, except in tables such as that of
        // live bytes, which few workloads know.
        if !has_figures && (face.best.is_none() || line.iter().all(|row| row.failed.is_none())) {
            continue;
        }
        let mut cells = vec![workload.to_owned()];
        for allocator in &allocators {
            let row = line.iter().find(|row| row.allocator == *allocator);
            cells.push(row.map_or_else(none, |row| cell(face, row)));
        }
        cells.extend(face.best.as_ref().map(|best| best_cell(best, &line)));
        table.row(cells);
    }
    table.titled(&format!("{}, profile {profile}", face.title), width)
}

fn cell(face: &Face, row: &VersusRow) -> String {
    match row.failed {
        Some(_) => "failed".to_owned(),
        None => (face.cell)(row).unwrap_or_else(none),
    }
}

fn best_cell(best: &BestPeer, line: &[&VersusRow]) -> String {
    let with_ratio = line
        .iter()
        .filter_map(|row| Some(((best.ratio)(row)?, row)));
    let smallest = with_ratio.min_by(|(one, _), (other, _)| one.total_cmp(other));
    let figure = smallest.and_then(|(_, row)| (best.figure)(row));
    figure.unwrap_or_else(none)
}

/// Returns whether several workloads enter the means.
pub(super) fn enters_means(rows: &[VersusRow], profile: &str) -> bool {
    let entered = rows.iter();
    let entered = entered.filter(|row| row.profile == profile && row.is_of_means());
    in_order(entered.map(|row| row.workload)).len() > 1
}

/// Returns a table with a line for each allocator, or `None` unless several workloads enter the
/// means.
fn means_table(rows: &[VersusRow], profile: &'static str) -> Option<Table> {
    if !enters_means(rows, profile) {
        return None;
    }
    let means = means(rows, profile);
    let mut table = Table::new([
        "allocator",
        "one thread: time",
        "peak",
        "end",
        "of",
        "more threads: time",
        "peak",
        "end",
        "of",
    ]);
    for allocator in in_order(means.iter().map(|mean| mean.allocator)) {
        let mut cells = vec![allocator.to_owned()];
        for one_thread in [true, false] {
            let mut same = means.iter().filter(|mean| mean.allocator == allocator);
            let mean = same.find(|mean| mean.one_thread == one_thread);
            cells.extend(mean.map_or_else(|| [(); 4].map(|()| none()), mean_cells));
        }
        table.row(cells);
    }
    Some(table)
}

fn mean_cells(mean: &VersusMean) -> [String; 4] {
    let of = if mean.workloads == mean.of {
        mean.of.to_string()
    } else {
        // Means over different sets of workloads are not comparable.
        format!("only {} of {}", mean.workloads, mean.of)
    };
    [
        decimals(mean.time, 2),
        decimals(mean.peak_rss, 2),
        decimals(mean.end_rss, 2),
        of,
    ]
}
