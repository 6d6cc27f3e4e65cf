//! What a command measured, collected for printing.
//!
//! A [`Report`] holds one [`Row`] for each replay, in the order they ran. Its
//! three faces are JSON lines (a row serialised as it is), a text table and an
//! HTML page.

mod chart;
mod html;
mod table;
#[cfg(test)]
mod tests;

use serde::Serialize;

pub use html::{HtmlError, try_html, write_html};
pub use table::table;

use crate::replay::{Curve, Outcome};

/// One replay: a line of JSON, a line of the table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Name of the trace.
    pub trace: String,
    /// Name of the allocator.
    pub allocator: &'static str,
    /// Size of the device; `None` is no limit.
    pub device_bytes: Option<u64>,
    /// Blocks served.
    pub allocations: u64,
    /// Most requested bytes live at once.
    pub peak_live_bytes: u64,
    /// Most bytes held from the device at once.
    pub peak_reserved_bytes: u64,
    /// The second over the first; `None` if nothing was ever live.
    pub reserved_over_live: Option<f64>,
    /// Regions or blocks taken from the device.
    pub driver_allocations: u64,
    /// Regions or blocks given back to it.
    pub driver_frees: u64,
    /// Wall time of one `alloc` or `free`.
    pub ns_per_operation: Option<f64>,
    /// Whether every block was served.
    pub completed: bool,
    /// The event that was refused, counted from 1 without header lines; not in the JSON of a
    /// completed replay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped_at_event: Option<u64>,
}

/// Geometric mean of reserved over live of one allocator.
#[derive(Debug, Clone, PartialEq)]
pub struct Mean {
    /// Name of the allocator.
    pub allocator: &'static str,
    /// The mean over the completed traces; `None` if there is none.
    pub reserved_over_live: Option<f64>,
    /// Traces it completed.
    pub completed: usize,
    /// Traces it ran.
    pub traces: usize,
}

/// Everything a `replay` measured.
#[derive(Debug, Clone)]
pub struct Report {
    device_bytes: Option<u64>,
    rows: Vec<Row>,
    /// One for each row.
    curves: Vec<Curve>,
}

impl Report {
    /// An empty report about a device of so many bytes, or without limit.
    #[must_use]
    pub fn new(device_bytes: Option<u64>) -> Self {
        Self {
            device_bytes,
            rows: Vec::new(),
            curves: Vec::new(),
        }
    }

    /// Adds a replay and returns its row.
    pub fn add(&mut self, trace: &str, allocator: &'static str, outcome: Outcome) -> &Row {
        let row = Row {
            trace: trace.to_owned(),
            allocator,
            device_bytes: self.device_bytes,
            allocations: outcome.allocations,
            peak_live_bytes: outcome.peak_live_bytes,
            peak_reserved_bytes: outcome.peak_reserved_bytes,
            reserved_over_live: outcome.reserved_over_live(),
            driver_allocations: outcome.driver_allocations,
            driver_frees: outcome.driver_frees,
            ns_per_operation: outcome.ns_per_operation,
            completed: outcome.completed,
            stopped_at_event: outcome.stopped_at_event,
        };
        self.curves.push(outcome.curve);
        self.rows.push(row);
        &self.rows[self.rows.len() - 1]
    }

    /// Whether nothing was replayed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// One row for each replay.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The means by allocator; empty for fewer than two traces.
    #[must_use]
    pub fn means(&self) -> Vec<Mean> {
        let mut allocators: Vec<&'static str> = Vec::new();
        for row in &self.rows {
            if !allocators.contains(&row.allocator) {
                allocators.push(row.allocator);
            }
        }
        let means = allocators.into_iter().map(|allocator| self.mean(allocator));
        means.filter(|mean| mean.traces > 1).collect()
    }

    fn mean(&self, allocator: &'static str) -> Mean {
        let rows = || self.rows.iter().filter(|row| row.allocator == allocator);
        let ratios: Vec<f64> = rows()
            .filter(|row| row.completed)
            .filter_map(|row| row.reserved_over_live)
            .collect();
        let logarithms: f64 = ratios.iter().map(|ratio| ratio.ln()).sum();
        Mean {
            allocator,
            reserved_over_live: (!ratios.is_empty())
                .then(|| (logarithms / ratios.len() as f64).exp()),
            completed: rows().filter(|row| row.completed).count(),
            traces: rows().count(),
        }
    }

    /// Names of the traces in order of their first row, each with its rows and
    /// their curves. Traces of the same name share an entry.
    fn by_trace(&self) -> Vec<(&str, Vec<(&Row, &Curve)>)> {
        let mut groups: Vec<(&str, Vec<(&Row, &Curve)>)> = Vec::new();
        for pair in self.rows.iter().zip(&self.curves) {
            match groups.last_mut() {
                Some((name, group)) if *name == pair.0.trace => group.push(pair),
                _ => groups.push((&pair.0.trace, vec![pair])),
            }
        }
        groups
    }
}

/// The cells of a row, as table and page show them.
fn cells(row: &Row) -> [String; 10] {
    let optional = |value: Option<f64>, decimals: usize| {
        value.map_or_else(|| "-".to_owned(), |value| format!("{value:.decimals$}"))
    };
    [
        row.trace.clone(),
        row.allocator.to_owned(),
        row.allocations.to_string(),
        format!("{:.1}", crate::units::mebibytes(row.peak_live_bytes)),
        format!("{:.1}", crate::units::mebibytes(row.peak_reserved_bytes)),
        optional(row.reserved_over_live, 4),
        row.driver_allocations.to_string(),
        row.driver_frees.to_string(),
        optional(row.ns_per_operation, 1),
        match row.stopped_at_event {
            _ if row.completed => "yes".to_owned(),
            Some(event) => format!("no, event {event}"),
            None => "no".to_owned(),
        },
    ]
}

/// Headings of [`cells`].
const HEADINGS: [&str; 10] = [
    "trace",
    "allocator",
    "allocations",
    "live MiB",
    "reserved MiB",
    "reserved/live",
    "driver allocs",
    "driver frees",
    "ns/op",
    "completed",
];

/// Columns of [`cells`] that hold text; the others hold numbers.
const TEXT_COLUMNS: [usize; 3] = [0, 1, COMPLETED_COLUMN];

/// Column of [`cells`] that says whether the replay went to its end.
const COMPLETED_COLUMN: usize = HEADINGS.len() - 1;

/// The line on a mean, without the allocator's name.
fn mean_text(mean: &Mean) -> String {
    let Mean {
        completed, traces, ..
    } = mean;
    match mean.reserved_over_live {
        Some(ratio) => format!("{ratio:.4} over {completed} completed of {traces} traces"),
        None => format!("none: {completed} of {traces} traces completed"),
    }
}
