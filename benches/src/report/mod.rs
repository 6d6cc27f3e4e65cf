//! What a command measured, collected for printing.
//!
//! A [`Report`] holds one [`ReplayRow`] for each replay, in the order they ran. Its
//! three faces are JSON lines (a row serialised as it is), a text table and an
//! HTML page.

mod calls;
mod chart;
mod html;
mod table;
#[cfg(test)]
mod tests;

use serde::Serialize;

pub use html::{HtmlError, try_html, write_html};
pub use table::table;

use crate::replay::{CallsByName, Curve, DriverCalls, Options, Outcome, StepFigures};

/// One replay: a line of JSON, a line of the table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReplayRow {
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
    /// Most bytes held over most bytes live; `None` if nothing was ever live.
    pub reserved_over_live: Option<f64>,
    /// Regions or blocks taken from the device.
    pub driver_allocations: u64,
    /// Regions or blocks given back to it.
    pub driver_frees: u64,
    /// All driver calls, for allocators whose device maps pages.
    pub driver_calls: Option<u64>,
    /// Driver calls by kind, for allocators whose device maps pages.
    pub driver_calls_by_kind: Option<DriverCalls>,
    /// How often the trace, or its last step, was to be played.
    pub passes: u32,
    /// Driver calls in each pass; the last one may have stopped.
    pub calls_by_pass: Option<Vec<u64>>,
    /// Which driver it ran on, `real` or `stand-in`, for allocators on one.
    pub driver: Option<&'static str>,
    /// Calls of that driver by name, as far as they are known.
    pub calls_by_name: Option<CallsByName>,
    /// Calls of that driver by name in each pass.
    pub calls_by_name_by_pass: Option<Vec<CallsByName>>,
    /// Most bytes held in each pass.
    pub reserved_by_pass: Vec<u64>,
    /// How the blocks of steps were served, for allocators that plan.
    pub steps: Option<StepFigures>,
    /// Driver calls in the last of several passes; `None` if there is one only.
    pub calls_last_pass: Option<u64>,
    /// Wall time of one `alloc` or `free`.
    pub ns_per_operation: Option<f64>,
    /// Whether every block was served.
    pub completed: bool,
    /// The event that was refused, counted from 1 without header lines; not in the JSON of a
    /// completed replay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped_at_event: Option<u64>,
    /// The pass of that event, counted from 1, if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped_in_pass: Option<u32>,
    /// The smallest device that is large enough; `None` if it was not searched, or is more than
    /// 1.06 times the peak live bytes.
    pub smallest_device_bytes: Option<u64>,
    /// The smallest device over the peak live bytes.
    pub smallest_over_live: Option<f64>,
    /// Driver calls made on the smallest device.
    pub smallest_device_calls: Option<u64>,
}

/// One allocator over all traces.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplayMean {
    /// Name of the allocator.
    pub allocator: &'static str,
    /// Geometric mean of reserved over live over the completed traces; `None` if there is none.
    pub reserved_over_live: Option<f64>,
    /// Sum of the driver calls on the completed traces, if they are known.
    pub driver_calls: Option<u64>,
    /// Geometric mean of the smallest device over live, over the traces that have one.
    pub smallest_over_live: Option<f64>,
    /// Traces that have one; `None` if it was not searched.
    pub smallest: Option<usize>,
    /// Traces it completed.
    pub completed: usize,
    /// Traces it ran.
    pub traces: usize,
}

/// Everything a `replay` measured.
#[derive(Debug, Clone)]
pub struct Report {
    options: Options,
    rows: Vec<ReplayRow>,
    /// One for each row.
    curves: Vec<Curve>,
}

impl Report {
    /// An empty report about replays with these options.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            options,
            rows: Vec::new(),
            curves: Vec::new(),
        }
    }

    /// Adds a replay and returns its row.
    pub fn add(&mut self, trace: &str, allocator: &'static str, outcome: Outcome) -> &ReplayRow {
        let passes = self.options.passes.get();
        let reserved_over_live = outcome.reserved_over_live();
        let calls_by_pass = outcome.calls_by_pass;
        let last_pass = calls_by_pass
            .as_ref()
            .and_then(|calls| calls.last().copied());
        let row = ReplayRow {
            trace: trace.to_owned(),
            allocator,
            device_bytes: self.options.device_bytes,
            allocations: outcome.allocations,
            peak_live_bytes: outcome.peak_live_bytes,
            peak_reserved_bytes: outcome.peak_reserved_bytes,
            reserved_over_live,
            driver_allocations: outcome.driver_allocations,
            driver_frees: outcome.driver_frees,
            driver_calls: outcome.driver_calls.map(|calls| calls.total()),
            driver_calls_by_kind: outcome.driver_calls,
            passes,
            calls_last_pass: last_pass.filter(|_| passes > 1 && outcome.completed),
            calls_by_pass,
            driver: outcome.driver,
            calls_by_name: outcome.calls_by_name,
            calls_by_name_by_pass: outcome.calls_by_name_by_pass,
            reserved_by_pass: outcome.reserved_by_pass,
            steps: outcome.steps,
            ns_per_operation: outcome.ns_per_operation,
            completed: outcome.completed,
            stopped_at_event: outcome.stopped_at_event,
            stopped_in_pass: outcome.stopped_in_pass.filter(|_| passes > 1),
            smallest_device_bytes: outcome.smallest_device.map(|device| device.bytes),
            smallest_over_live: outcome.smallest_device.map(|device| device.over_live),
            smallest_device_calls: outcome.smallest_device.and_then(|device| device.calls),
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
    pub fn rows(&self) -> &[ReplayRow] {
        &self.rows
    }

    /// The means by allocator; empty for fewer than two traces.
    #[must_use]
    pub fn means(&self) -> Vec<ReplayMean> {
        let mut allocators: Vec<&'static str> = Vec::new();
        for row in &self.rows {
            if !allocators.contains(&row.allocator) {
                allocators.push(row.allocator);
            }
        }
        let means = allocators.into_iter().map(|allocator| self.mean(allocator));
        means.filter(|mean| mean.traces > 1).collect()
    }

    fn mean(&self, allocator: &'static str) -> ReplayMean {
        let rows = || self.rows.iter().filter(|row| row.allocator == allocator);
        let completed = || rows().filter(|row| row.completed);
        let smallest = || completed().filter_map(|row| row.smallest_over_live);
        let calls = || completed().filter_map(|row| row.driver_calls);
        ReplayMean {
            allocator,
            reserved_over_live: geometric_mean(
                completed().filter_map(|row| row.reserved_over_live),
            ),
            driver_calls: calls().next().is_some().then(|| calls().sum()),
            smallest_over_live: geometric_mean(smallest()),
            smallest: self.options.smallest_device.then(|| smallest().count()),
            completed: completed().count(),
            traces: rows().count(),
        }
    }

    /// Names of the traces in order of their first row, each with its rows and
    /// their curves. Traces of the same name share an entry.
    fn by_trace(&self) -> Vec<(&str, Vec<(&ReplayRow, &Curve)>)> {
        let mut groups: Vec<(&str, Vec<(&ReplayRow, &Curve)>)> = Vec::new();
        for pair in self.rows.iter().zip(&self.curves) {
            match groups.last_mut() {
                Some((name, group)) if *name == pair.0.trace => group.push(pair),
                _ => groups.push((&pair.0.trace, vec![pair])),
            }
        }
        groups
    }
}

/// The geometric mean; `None` of no numbers.
fn geometric_mean(ratios: impl Iterator<Item = f64>) -> Option<f64> {
    let (count, logarithms) = ratios.fold((0_u32, 0.0), |(count, sum), ratio| {
        (count + 1, sum + ratio.ln())
    });
    (count > 0).then(|| (logarithms / f64::from(count)).exp())
}

/// A column of table and page: its heading, and the cell of a row.
struct Column {
    heading: &'static str,
    kind: Kind,
    cell: fn(&ReplayRow) -> String,
}

/// What a column holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Number,
    /// Whether the replay went to its end.
    Completed,
}

impl Column {
    const fn text(heading: &'static str, cell: fn(&ReplayRow) -> String) -> Self {
        Self {
            heading,
            kind: Kind::Text,
            cell,
        }
    }

    const fn number(heading: &'static str, cell: fn(&ReplayRow) -> String) -> Self {
        Self {
            heading,
            kind: Kind::Number,
            cell,
        }
    }
}

/// The columns of a report; what was not asked for has none.
fn columns(report: &Report) -> Vec<Column> {
    let mut columns = vec![
        Column::text("trace", |row| row.trace.clone()),
        Column::text("allocator", |row| row.allocator.to_owned()),
        Column::number("allocations", |row| row.allocations.to_string()),
        Column::number("live MiB", |row| mebibytes(row.peak_live_bytes)),
        Column::number("reserved MiB", |row| mebibytes(row.peak_reserved_bytes)),
        Column::number("reserved/live", |row| decimals(row.reserved_over_live, 4)),
        Column::number("driver allocs", |row| row.driver_allocations.to_string()),
        Column::number("driver frees", |row| row.driver_frees.to_string()),
        Column::number("calls", |row| count(row.driver_calls)),
    ];
    if report.options.passes.get() > 1 {
        columns.push(Column::number("last pass", |row| {
            count(row.calls_last_pass)
        }));
    }
    columns.push(Column::number("ns/op", |row| {
        decimals(row.ns_per_operation, 1)
    }));
    if report.options.smallest_device {
        columns.push(Column::number("smallest/live", |row| {
            decimals(row.smallest_over_live, 4)
        }));
        columns.push(Column::number("its calls", |row| {
            count(row.smallest_device_calls)
        }));
    }
    columns.push(Column {
        heading: "completed",
        kind: Kind::Completed,
        cell: completed,
    });
    columns
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1}", crate::units::mebibytes(bytes))
}

fn decimals(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.decimals$}"))
}

fn count(value: Option<u64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

fn completed(row: &ReplayRow) -> String {
    match (row.stopped_at_event, row.stopped_in_pass) {
        _ if row.completed => "yes".to_owned(),
        (Some(event), Some(pass)) => format!("no, event {event} of pass {pass}"),
        (Some(event), None) => format!("no, event {event}"),
        (None, _) => "no".to_owned(),
    }
}

/// The line on a mean, without the allocator's name.
fn mean_text(mean: &ReplayMean) -> String {
    let ReplayMean {
        completed, traces, ..
    } = mean;
    let Some(ratio) = mean.reserved_over_live else {
        return format!("none: {completed} of {traces} traces completed");
    };
    let mut text = format!("{ratio:.4} over {completed} completed of {traces} traces");
    if let Some(calls) = mean.driver_calls {
        text.push_str(&format!(", {calls} calls"));
    }
    match (mean.smallest, mean.smallest_over_live) {
        (Some(found), Some(ratio)) => {
            text.push_str(&format!(", smallest/live {ratio:.4} over {found}"));
        }
        (Some(_), None) => text.push_str(", smallest/live above 1.06"),
        (None, _) => {}
    }
    text
}
