//! Latency: the times of single frames, in workloads with a schedule.
//!
//! A workload with frames lasts as long as its schedule, so its time and operations enter no ratio and no mean. Its
//! frames have a table of their own.

use serde::{Deserialize, Serialize};

use super::allocators::SYSTEM;
use super::process::Sample;
use super::summary::VersusRow;
use crate::numbers::{in_order, median};
use crate::report::{Table, none};

/// The frames of a run, or of a worker's rounds. A frame's time is from its first allocation to its last free. If the
/// previous frame was still running when the frame was due, its time starts when it was due.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Frames {
    /// Number of frames in the schedule.
    pub(crate) planned: u64,
    /// Number of frames that ran, as the median over the rounds. A frame is missed if the frame before it still runs
    /// when the frame after it is due.
    pub(crate) done: u64,
    /// The time that half of the frames do not exceed, and the time that 99 of 100 do not exceed; medians over the
    /// rounds.
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// Time of the slowest frame of all rounds.
    pub(crate) max_us: f64,
}

impl Frames {
    /// Combines the frames of all rounds; `None` if they have no frames.
    pub(super) fn of(samples: &[Sample]) -> Option<Self> {
        let all = || samples.iter().filter_map(|sample| sample.frames);
        let middle = |figure: fn(&Self) -> f64| {
            let figures = all().map(|frames| figure(&frames));
            median(figures.collect())
        };
        Some(Self {
            planned: all().next()?.planned,
            done: middle(|frames| frames.done as f64)? as u64,
            p50_us: middle(|frames| frames.p50_us)?,
            p99_us: middle(|frames| frames.p99_us)?,
            max_us: all().map(|frames| frames.max_us).reduce(f64::max)?,
        })
    }
}

/// A line of the table: its name, and the function that returns its figure in microseconds.
type Figure = (&'static str, fn(&Frames) -> f64);

const FIGURES: [Figure; 3] = [
    ("p50", |frames| frames.p50_us),
    ("p99", |frames| frames.p99_us),
    ("max", |frames| frames.max_us),
];

/// Formats the rows of one profile for workloads with frames. Each workload has three lines of times, and one with the
/// number of its frames that ran. Returns an empty string if there are no such rows.
pub(super) fn frames_table(profile: &str, rows: &[&VersusRow], width: usize) -> String {
    let allocators = in_order(rows.iter().map(|row| row.allocator));
    let mut table = Table::new([&["workload", "frame"], &allocators[..]].concat());
    for workload in in_order(rows.iter().map(|row| row.workload)) {
        let of = |allocator: &str| {
            let mut rows = rows.iter().filter(|row| row.workload == workload);
            rows.find(|row| row.allocator == allocator).copied()
        };
        let mut line = |name: &str, cell: &dyn Fn(&Frames) -> String| {
            let mut cells = vec![workload.to_owned(), name.to_owned()];
            cells.extend(allocators.iter().map(|allocator| match of(allocator) {
                Some(row) => row_cell(row, cell),
                None => none(),
            }));
            table.row(cells);
        };
        let system = of(SYSTEM).and_then(|row| row.frames);
        for (name, figure) in FIGURES {
            let base = system.as_ref().map(figure).filter(|base| *base > 0.0);
            line(name, &|frames| with_ratio(figure(frames), base));
        }
        line("done", &|frames| {
            format!("{} of {}", frames.done, frames.planned)
        });
    }
    let title = format!(
        "time of a frame in microseconds (in brackets: over the system's), profile {profile}"
    );
    table.titled(&title, width)
}

fn row_cell(row: &VersusRow, cell: &dyn Fn(&Frames) -> String) -> String {
    if row.failed.is_some() {
        return "failed".to_owned();
    }
    if row.skipped.is_some() {
        return "skipped".to_owned();
    }
    row.frames.as_ref().map_or_else(none, cell)
}

fn with_ratio(figure: f64, base: Option<f64>) -> String {
    let Some(base) = base else {
        return format!("{figure:.1}");
    };
    let ratio = figure / base;
    let digits = if ratio < 100.0 { 2 } else { 0 };
    format!("{figure:.1} ({ratio:.digits$})")
}
