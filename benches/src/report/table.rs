//! The report as a text table for a terminal or a file.

use std::fmt::Write;

use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};

use super::{Kind, Report, calls, columns, mean_text};

/// A line under the headings, and no other.
const STYLE: TableStyle = TableStyle::new().header_separator(LineStyle::new('─', '─', '─', '─'));

/// The whole report: a table with one line for each replay, then, for more than
/// one trace, the geometric means, then the calls of a driver by name.
#[must_use]
pub fn table(report: &Report) -> String {
    let mut table = Table::new();
    let columns = columns(report);
    let headings = columns.iter().map(|column| column.heading);
    table.load_style(STYLE).set_header(headings);
    for (shown, column) in table.column_iter_mut().zip(&columns) {
        if column.kind == Kind::Number {
            shown.set_cell_alignment(CellAlignment::Right);
        }
    }
    for row in report.rows() {
        table.add_row(columns.iter().map(|column| (column.cell)(row)));
    }
    let mut text = format!("{}\n", table.trim_fmt());
    let means = report.means();
    if !means.is_empty() {
        text.push_str("\ngeometric mean of reserved/live\n");
    }
    let width = means
        .iter()
        .map(|mean| mean.allocator.len())
        .max()
        .unwrap_or(0);
    for mean in &means {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {:width$}  {}", mean.allocator, mean_text(mean));
    }
    if let Some((heading, lines)) = calls::lines(report) {
        let _ = writeln!(text, "\n{heading}");
        for line in lines {
            let _ = writeln!(text, "  {line}");
        }
    }
    text
}
