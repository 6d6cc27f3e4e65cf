//! The report of `larder replay`: a row for each replay, in the order in which they ran, as lines
//! of JSON and as text.

use larder_core::ByteCount;
use serde::Serialize;

use super::{CallsByName, Options, Outcome};
use crate::numbers::{geometric_mean, in_order, mebibytes};
use crate::report::{Alignment, Left, Right, Shown, Table, TableCell, count, decimals};

/// The allocator with which the others are compared.
const BESIDE: &str = "pytorch-expandable";

/// The result of one replay: one line of JSON and one row of the table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct ReplayRow {
    pub(crate) trace: String,
    pub(crate) allocator: &'static str,
    pub(crate) device_bytes: Option<u64>,
    /// The number of the trace among all replayed ones.
    #[serde(skip)]
    pub(crate) trace_number: usize,
    /// The number of passes requested.
    pub(crate) passes: u32,
    pub(crate) reserved_over_live: Option<f64>,
    /// The number of all driver calls, if the allocator's device maps pages.
    pub(crate) driver_calls: Option<u64>,
    /// Driver calls in the last of several passes.
    pub(crate) calls_last_pass: Option<u64>,
    pub(crate) smallest_device_bytes: Option<u64>,
    pub(crate) smallest_over_live: Option<f64>,
    pub(crate) smallest_device_calls: Option<u64>,
    #[serde(flatten)]
    pub(crate) outcome: Outcome,
}

/// One allocator over all traces. Means are geometric.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ReplayMean {
    pub(crate) allocator: &'static str,
    /// Mean over the completed traces; `None` if there is none.
    pub(crate) reserved_over_live: Option<f64>,
    /// Sum over the completed traces, if the numbers are known.
    pub(crate) driver_calls: Option<u64>,
    /// Mean over the traces that have a smallest device.
    pub(crate) smallest_over_live: Option<f64>,
    /// Number of traces that have a smallest device; `None` if there was no search for it.
    pub(crate) smallest: Option<usize>,
    pub(crate) completed: usize,
    pub(crate) traces: usize,
}

/// The measurements of a `replay`.
#[derive(Debug, Clone)]
pub(crate) struct ReplayReport {
    pub(super) options: Options,
    pub(crate) rows: Vec<ReplayRow>,
}

impl ReplayReport {
    pub(crate) fn new(options: Options) -> Self {
        let rows = Vec::new();
        Self { options, rows }
    }

    /// Adds a replay and returns its row.
    pub(crate) fn add(
        &mut self,
        trace: &str,
        allocator: &'static str,
        mut outcome: Outcome,
    ) -> &ReplayRow {
        let passes = self.options.passes.get();
        let several = passes > 1;
        outcome.stopped_in_pass = outcome.stopped_in_pass.filter(|_| several);
        let calls = outcome.calls_by_pass.as_ref();
        let last_pass = calls.and_then(|calls| calls.last().copied());
        let smallest = outcome.smallest_device;
        let trace_number = self.trace_number(trace, allocator);
        self.rows.push(ReplayRow {
            trace: trace.to_owned(),
            allocator,
            trace_number,
            device_bytes: self.options.device_bytes,
            passes,
            reserved_over_live: outcome.reserved_over_live(),
            driver_calls: outcome.driver_calls.map(|calls| calls.total()),
            calls_last_pass: last_pass.filter(|_| several && outcome.completed),
            smallest_device_bytes: smallest.map(|device| device.bytes),
            smallest_over_live: smallest.map(|device| device.over_live),
            smallest_device_calls: smallest.map(|device| device.calls),
            outcome,
        });
        &self.rows[self.rows.len() - 1]
    }

    /// Returns the number of the trace of a new row. The rows of one trace are adjacent and have
    /// different allocators; two traces may have the same name.
    fn trace_number(&self, trace: &str, allocator: &str) -> usize {
        let Some(last) = self.rows.last() else {
            return 0;
        };
        let rows = self.rows.iter().rev();
        let mut rows = rows.take_while(|row| row.trace_number == last.trace_number);
        let is_same = last.trace == trace && rows.all(|row| row.allocator != allocator);
        last.trace_number + usize::from(!is_same)
    }

    /// Returns the rows of two allocators, in pairs, for each trace that both replayed.
    pub(super) fn pairs(&self, one: &str, other: &str) -> Vec<(&ReplayRow, &ReplayRow)> {
        let traces = self
            .rows
            .chunk_by(|row, next| row.trace_number == next.trace_number);
        let pairs = traces.filter_map(|rows| {
            let of = |name: &str| rows.iter().find(|row| row.allocator == name);
            Some((of(one)?, of(other)?))
        });
        pairs.collect()
    }

    /// Returns how many replays did not complete.
    pub(crate) fn refused(&self) -> usize {
        let refused = self.rows.iter().filter(|row| !row.outcome.completed);
        refused.count()
    }

    /// Returns the means by allocator; empty for fewer than two traces.
    pub(crate) fn means(&self) -> Vec<ReplayMean> {
        let allocators = in_order(self.rows.iter().map(|row| row.allocator));
        let means = allocators.into_iter().map(|allocator| self.mean(allocator));
        means.filter(|mean| mean.traces > 1).collect()
    }

    fn mean(&self, allocator: &'static str) -> ReplayMean {
        let rows = || self.rows.iter().filter(|row| row.allocator == allocator);
        let completed = || rows().filter(|row| row.outcome.completed);
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

    /// Returns a line for each allocator except [`BESIDE`], with the number of traces on which it
    /// is worse than [`BESIDE`]. Returns none if [`BESIDE`] did not run, or for fewer than two
    /// traces.
    fn worse(&self) -> Vec<String> {
        let means = self.means();
        let ran = self.rows.iter().any(|row| row.allocator == BESIDE);
        let others = means.iter().filter(|mean| mean.allocator != BESIDE);
        let others = others.filter(|_| ran);
        let width = means.iter().map(|mean| mean.allocator.len()).max();
        let width = width.unwrap_or(0);
        let lines = others.map(|mean| {
            let both = self.pairs(mean.allocator, BESIDE).into_iter();
            let both = both.filter(|(row, peer)| row.outcome.completed && peer.outcome.completed);
            let both: Vec<_> = both.collect();
            let count = |worse: fn(&ReplayRow, &ReplayRow) -> bool| {
                both.iter().filter(|(row, peer)| worse(row, peer)).count()
            };
            format!(
                "{:width$}  memory on {}, calls on {}, time on {} of {} traces",
                mean.allocator,
                count(ReplayRow::reserves_more),
                count(|row, peer| row.calls_or_regions() > peer.calls_or_regions()),
                count(|row, peer| row.outcome.ns_per_operation > peer.outcome.ns_per_operation),
                both.len()
            )
        });
        lines.collect()
    }

    /// Returns the table, with a row for each replay.
    fn table(&self) -> Table {
        let columns = self.columns();
        let mut table = Table::default();
        for (heading, alignment, _) in &columns {
            table.column(*heading, *alignment);
        }
        for row in &self.rows {
            table.row(columns.iter().map(|(.., cell)| cell(row)));
        }
        table
    }

    /// Returns the columns. Measurements that were not requested have no column.
    fn columns(&self) -> Vec<Column> {
        let mut columns: Vec<Column> = vec![
            ("trace", Left, |row| row.trace.clone().into()),
            ("allocator", Left, |row| row.allocator.into()),
            ("allocations", Right, |row| {
                row.outcome.allocations.to_string().into()
            }),
            ("live MiB", Right, |row| mib(row.outcome.peak_live_bytes)),
            ("reserved MiB", Right, |row| {
                mib(row.outcome.peak_reserved_bytes)
            }),
            ("reserved/live", Right, |row| {
                decimals(row.reserved_over_live, 4).into()
            }),
            ("driver allocs", Right, |row| {
                row.outcome.driver_allocations.to_string().into()
            }),
            ("driver frees", Right, |row| {
                row.outcome.driver_frees.to_string().into()
            }),
            ("calls", Right, |row| {
                row.calls_or_regions().to_string().into()
            }),
        ];
        if self.options.passes.get() > 1 {
            columns.push(("last pass", Right, |row| count(row.calls_last_pass).into()));
        }
        columns.push(("ns/op", Right, |row| {
            decimals(row.outcome.ns_per_operation, 1).into()
        }));
        columns.push(("worst us", Right, |row| {
            let worst = row.outcome.worst_ns.map(|ns| f64::from(ns) / 1000.0);
            decimals(worst, 1).into()
        }));
        if self.options.smallest_device {
            columns.push(("smallest/live", Right, |row| {
                decimals(row.smallest_over_live, 4).into()
            }));
            columns.push(("its calls", Right, |row| {
                count(row.smallest_device_calls).into()
            }));
        }
        columns.push(("completed", Left, completed));
        columns
    }

    /// Returns the lists below the table, each with a heading: the blocks that did not fit; for
    /// more than one trace, the geometric means and the comparison with [`BESIDE`]; the calls of a
    /// driver by name; and for each trace, the facts missing from its file.
    pub(super) fn lists(&self) -> Vec<(&'static str, Vec<String>)> {
        let means = self.means();
        let width = means.iter().map(|mean| mean.allocator.len()).max();
        let width = width.unwrap_or(0);
        let means = means
            .iter()
            .map(|mean| format!("{:width$}  {}", mean.allocator, mean.text()));
        // A process uses only one driver.
        let mut drivers = self.rows.iter().map(|row| row.outcome.driver);
        let of_calls = if drivers.any(|driver| driver == Some("stand-in")) {
            "calls of the stand-in driver, whose own work is in these ns/op and whose pool is below cudarc and cuda-async: they say nothing of a GPU"
        } else {
            "calls of the driver, those that are counted"
        };
        let calls = self.rows.iter().filter_map(ReplayRow::calls);
        let traces = self.rows.chunk_by(|row, next| row.trace == next.trace);
        let notes = traces.flat_map(|rows| {
            let row = &rows[0];
            let notes = row.outcome.notes.iter();
            notes.map(move |note| format!("{}: {note}", row.trace))
        });
        let refusals = self.rows.iter().filter_map(ReplayRow::refusal);
        let mut lists = vec![
            ("what did not fit", refusals.collect()),
            ("geometric mean of reserved/live", means.collect()),
            (
                "worse than pytorch-expandable, in memory by more than 2 MiB a stream",
                self.worse(),
            ),
            (of_calls, calls.collect()),
            ("Notes on the recordings", notes.collect()),
        ];
        lists.retain(|(_, lines): &(_, Vec<String>)| !lines.is_empty());
        lists
    }

    /// Returns the table and the lists below it. An error names an unknown column.
    pub(crate) fn text(&self, shown: &Shown) -> Result<String, String> {
        let mut table = self.table();
        shown.choose(&mut table, 2, &self.usual_columns())?;
        let fits = self.would_fit().into_iter().map(|line| line + "\n\n");
        let mut text: String = fits.collect();
        text.push_str(&table.grouped(shown.width()));
        for (heading, lines) in self.lists() {
            text.push_str(&format!("\n{heading}\n"));
            for line in lines {
                text.push_str(&format!("  {line}\n"));
            }
        }
        if let Some(verdict) = self.verdict() {
            text.push_str(&format!("\n{verdict}\n"));
        }
        Ok(text)
    }

    /// Returns the columns printed by default: the most important ones, `completed` in place of
    /// calls and times unless every replay completed, and those of the options given.
    fn usual_columns(&self) -> Vec<&'static str> {
        let mut usual = vec!["live MiB", "reserved MiB", "reserved/live"];
        if self.rows.iter().all(|row| row.outcome.completed) {
            usual.extend(["calls", "ns/op"]);
        } else {
            usual.push("completed");
        }
        usual.extend(["last pass", "smallest/live", "its calls"]);
        usual
    }
}

/// A column: its heading, its alignment, and a function that returns its cell of a row.
type Column = (&'static str, Alignment, fn(&ReplayRow) -> TableCell);

fn mib(bytes: u64) -> TableCell {
    format!("{:.1}", mebibytes(bytes)).into()
}

pub(super) fn completed(row: &ReplayRow) -> TableCell {
    match (row.outcome.stopped_at_event, row.outcome.stopped_in_pass) {
        _ if row.outcome.completed => "yes".into(),
        (Some(event), Some(pass)) => TableCell::bad(format!("no, event {event} of pass {pass}")),
        (Some(event), None) => TableCell::bad(format!("no, event {event}")),
        (None, _) => TableCell::bad("no"),
    }
}

impl ReplayRow {
    /// Returns whether this replay's peak exceeds that of `other` by more than a page of 2 MiB for
    /// each stream.
    fn reserves_more(&self, other: &Self) -> bool {
        let slack = u64::from(self.outcome.streams) << 21;
        self.outcome.peak_reserved_bytes > other.outcome.peak_reserved_bytes + slack
    }

    /// Returns the number of driver calls. If the device does not map pages, returns the number of
    /// allocations and releases of regions.
    pub(super) fn calls_or_regions(&self) -> u64 {
        let outcome = &self.outcome;
        let regions = outcome.driver_allocations + outcome.driver_frees;
        self.driver_calls.unwrap_or(regions)
    }

    /// Describes the block that did not fit, and the reason.
    fn refusal(&self) -> Option<String> {
        let (refused, event) = (self.outcome.refused?, self.outcome.stopped_at_event?);
        let why = match self.device_bytes {
            None => "its addresses or its tables are full".to_owned(),
            Some(device) if refused.live_bytes.saturating_add(refused.bytes) > device => format!(
                "{:#} are live on a device of {:#}: no allocator could serve it",
                ByteCount(refused.live_bytes),
                ByteCount(device)
            ),
            Some(device) => format!(
                "{:#} of the device's {:#} are reserved for {:#} that are live: the rest is in pieces, or too small once rounded",
                ByteCount(refused.reserved_bytes),
                ByteCount(device),
                ByteCount(refused.live_bytes)
            ),
        };
        let (trace, allocator, bytes) = (&self.trace, self.allocator, ByteCount(refused.bytes));
        Some(format!(
            "{trace} {allocator}: event {event} asks for {bytes:#}, and {why}"
        ))
    }

    /// Lists the calls of a driver by name, if they are known.
    fn calls(&self) -> Option<String> {
        let all = listed(self.outcome.calls_by_name.as_ref()?);
        let mut line = format!("{} {}: {all}", self.trace, self.allocator);
        let by_pass = self.outcome.calls_by_name_by_pass.as_ref();
        if let Some(last) = by_pass.and_then(|by| by.last())
            && self.passes > 1
            && self.outcome.completed
        {
            line.push_str(&format!("; last pass: {}", listed(last)));
        }
        Some(line)
    }
}

fn listed(calls: &CallsByName) -> String {
    if calls.is_empty() {
        return "none".to_owned();
    }
    let each = calls.iter().map(|(name, calls)| format!("{name} {calls}"));
    each.collect::<Vec<_>>().join(", ")
}

impl ReplayMean {
    /// Returns the text of a mean, without the allocator's name.
    fn text(&self) -> String {
        let Self {
            completed, traces, ..
        } = self;
        let Some(ratio) = self.reserved_over_live else {
            return format!("none: {completed} of {traces} traces completed");
        };
        let mut text = format!("{ratio:.4} over {completed} completed of {traces} traces");
        if let Some(calls) = self.driver_calls {
            text.push_str(&format!(", {calls} calls"));
        }
        match (self.smallest, self.smallest_over_live) {
            (Some(found), Some(ratio)) => {
                text.push_str(&format!(", smallest/live {ratio:.4} over {found}"));
            }
            (Some(_), None) => text.push_str(", smallest/live above 1.3"),
            (None, _) => {}
        }
        text
    }
}
