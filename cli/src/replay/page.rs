//! The report of `larder replay` as an HTML page: a table whose sizes have one unit, and the pictures.

use std::io;

use super::ReplayHistory;
use super::history::Served;
use super::report::{ReplayReport, ReplayRow, completed};
use crate::numbers::{Unit, less, thousands};
use crate::report::page::{details, escape, list, page};
use crate::report::picture::{Drawn, DrawnBlocks, Picture, Words, pictures};
use crate::report::{Left, Right, Table, TableCell, count, decimals, none};

impl ReplayReport {
    /// Returns a page with pictures of each trace.
    pub(crate) fn page(&self) -> io::Result<String> {
        let verdict = self.verdict();
        let sentences = self.would_fit().into_iter().chain(verdict);
        let sentences =
            sentences.map(|sentence| format!("<p><strong>{}</strong></p>\n", escape(&sentence)));
        let unit = Unit::of(self.rows.iter().map(|row| row.outcome.peak_reserved_bytes));
        let device = match self.options.device_bytes {
            Some(bytes) => format!("a device of {} {}", unit.show(bytes), unit.name),
            None => "a device without a limit".to_owned(),
        };
        let mut body = format!(
            "{}<p>On {device}. <em>Live</em> is what the program asked for; <em>reserved</em> is what the allocator took from the device for it, at most.</p>\n{}{}",
            sentences.collect::<String>(),
            self.page_table(unit).grouped_html(),
            details("More figures", &self.more(unit).grouped_html())
        );
        let lists = self.lists();
        let lists = lists.iter().map(|(heading, lines)| list(heading, lines));
        let traces = self
            .rows
            .chunk_by(|row, next| row.trace_number == next.trace_number);
        let drawn: Vec<Picture<'_>> = traces.filter_map(picture).collect();
        body.push_str(&pictures(&drawn, unit)?);
        body.extend(lists);
        Ok(page("Replayed allocation traces", &body))
    }

    /// Returns the table of a page: a group of rows for each trace, with sizes in one unit.
    fn page_table(&self, unit: Unit) -> Table {
        let base = self.rows.first().map_or("", |row| row.allocator);
        let reserved = format!("reserved {}", unit.name);
        let than = format!("than {base}");
        let headings = ["trace", "allocator", &reserved, &than];
        let headings = headings.into_iter().chain([
            "reserved/live",
            "driver calls",
            "last pass",
            "ns/op",
            "smallest/live",
            "its calls",
        ]);
        let mut table = Table::words(headings.clone().take(2));
        headings
            .skip(2)
            .for_each(|heading| table.column(heading, Right));
        let all = self.refused() == 0;
        if !all {
            table.column("completed", Left);
        }
        for rows in self
            .rows
            .chunk_by(|row, next| row.trace_number == next.trace_number)
        {
            let live = rows.iter().map(|row| row.outcome.peak_live_bytes);
            let live = unit.show(live.max().unwrap_or(0));
            let group = format!("{}: {live} {} live", rows[0].trace, unit.name);
            for row in rows {
                let mut cells: Vec<TableCell> = vec![
                    group.clone().into(),
                    row.allocator.into(),
                    unit.show(row.outcome.peak_reserved_bytes).into(),
                    row.less_than(&rows[0]).into(),
                    decimals(row.reserved_over_live, 4).into(),
                    thousands(&row.calls_or_regions().to_string()).into(),
                    thousands(&count(row.calls_last_pass)).into(),
                    thousands(&decimals(row.outcome.ns_per_operation, 1)).into(),
                    decimals(row.smallest_over_live, 4).into(),
                    thousands(&count(row.smallest_device_calls)).into(),
                ];
                cells.extend((!all).then(|| completed(row)));
                table.row(cells);
            }
        }
        table
    }

    /// Returns the figures that the table of a page leaves out.
    fn more(&self, unit: Unit) -> Table {
        let moved = format!("moved {}", unit.name);
        let mut table = Table::words(["trace", "allocator"]);
        let headings = ["allocations", "driver allocs", "driver frees"];
        for heading in headings
            .into_iter()
            .chain(["worst us", "peak at event", &moved])
        {
            table.column(heading, Right);
        }
        for row in &self.rows {
            let (outcome, history) = (&row.outcome, row.outcome.history.as_ref());
            let worst = outcome.worst_ns.map(|ns| f64::from(ns) / 1000.0);
            let moved = history.map(ReplayHistory::moved_bytes);
            table.row([
                row.trace.clone(),
                row.allocator.to_owned(),
                thousands(&outcome.allocations.to_string()),
                thousands(&outcome.driver_allocations.to_string()),
                thousands(&outcome.driver_frees.to_string()),
                thousands(&decimals(worst, 1)),
                thousands(&count(history.map(ReplayHistory::peak_at))),
                moved
                    .filter(|bytes| *bytes > 0)
                    .map_or_else(none, |bytes| unit.show(bytes)),
            ]);
        }
        table
    }
}

impl ReplayRow {
    /// Returns the words for how much less this replay reserves than the first one of its trace,
    /// if both complete.
    fn less_than(&self, first: &Self) -> String {
        if self.allocator == first.allocator || !(self.outcome.completed && first.outcome.completed)
        {
            return none();
        }
        let [theirs, ours] = [first, self].map(|row| row.outcome.peak_reserved_bytes as f64);
        less(theirs, ours)
    }
}

/// Returns the picture of one trace on those of its contenders that have a history; `None` if there
/// is none.
fn picture(rows: &[ReplayRow]) -> Option<Picture<'_>> {
    let histories = rows.iter().filter_map(|row| {
        let history = row.outcome.history.as_ref()?;
        Some((row, history))
    });
    // All runs have the same blocks, and the longest run has most of them.
    let (row, longest) = histories.clone().max_by_key(|(_, history)| history.ticks)?;
    let drawn = histories.map(|(row, history)| drawn(row, history));
    Some(Picture {
        name: &row.trace,
        words: Words {
            tick: "event",
            reserved: "reserved",
            planned: "planned",
        },
        ticks: longest.ticks + 1,
        steps: &longest.steps,
        blocks: blocks(longest),
        device: row.device_bytes.or_else(|| {
            let requests = row.outcome.refused_requests?;
            Some(requests.tried_on_bytes)
        }),
        refusals: &longest.refusals,
        allocators: drawn.collect(),
    })
}

fn blocks(history: &ReplayHistory) -> DrawnBlocks {
    let each = |figure: fn(&Served) -> u64| history.blocks.iter().map(figure).collect();
    let ends = history.blocks.iter().map(|block| block.to);
    DrawnBlocks {
        id: history.blocks.iter().map(|block| block.id).collect(),
        bytes: each(|block| block.bytes),
        from: each(|block| block.from),
        to: ends.map(|to| to.unwrap_or(history.ticks + 1)).collect(),
        stream: history.streams.clone(),
    }
}

fn drawn<'r>(row: &'r ReplayRow, history: &'r ReplayHistory) -> Drawn<'r> {
    let held = history.held.iter().map(|held| {
        let bytes = held.span.end - held.span.start;
        let to = held.to.unwrap_or(history.ticks + 1);
        [held.from, to, held.span.start, bytes, held.moved_bytes]
    });
    Drawn {
        name: row.allocator,
        address: history.blocks.iter().map(|block| block.address).collect(),
        reserved: history.reserved.clone(),
        planned: history.planned.clone(),
        calls: history.calls.clone(),
        held: held.collect(),
        refused: (!row.outcome.completed).then_some(history.ticks + 1),
    }
}
