//! Writes all results: a [`Table`] as text, Markdown or HTML; a value as a line of JSON; and an
//! HTML [`page`] with its [`picture`]s and [`bar`]s.

pub(crate) mod bar;
pub(crate) mod page;
pub(crate) mod picture;

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use bar::Bar;
use clap::Args;
use indicatif::{HumanCount, HumanDuration, ProgressBar, ProgressState, ProgressStyle};
use page::escape;
use serde::Serialize;
use terminal_size::{Width, terminal_size_of};

pub(crate) use Alignment::{Left, Right};
pub(crate) use larder_jobs::layout::{self, ANY_WIDTH};

/// The alignment of a column: words to the left, numbers to the right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Alignment {
    Left,
    Right,
}

/// A table: columns with headings, and rows of cells.
#[derive(Default)]
pub struct Table {
    columns: Vec<(String, Alignment)>,
    rows: Vec<Vec<TableCell>>,
}

/// The columns of a table that are printed.
#[derive(Debug, Clone, Args)]
pub(crate) struct Shown {
    /// Print all columns, however wide the table becomes
    #[arg(long)]
    pub(crate) wide: bool,

    /// Print these columns, such as calls,ns/op
    ///
    /// The first word of a name is enough. A wrong name lists the right ones.
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        conflicts_with = "wide"
    )]
    pub(crate) columns: Vec<String>,
}

impl Shown {
    /// Shows all columns.
    #[cfg(test)]
    pub(crate) const fn all() -> Self {
        Self {
            wide: true,
            columns: Vec::new(),
        }
    }

    /// Returns the maximum width of the table.
    pub(crate) fn width(&self) -> usize {
        if self.wide {
            ANY_WIDTH
        } else {
            layout::width()
        }
    }

    /// Reduces a table to its first `keys` columns and the requested ones, by default the `usual`
    /// ones. The error for an unknown column names the existing ones.
    pub(crate) fn choose(
        &self,
        table: &mut Table,
        keys: usize,
        usual: &[&str],
    ) -> Result<(), String> {
        if self.wide {
            return Ok(());
        }
        let headings: Vec<&str> = table.columns[keys..]
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        let fits = |name: &str| headings.iter().any(|heading| names(name, heading));
        if let Some(wrong) = self.columns.iter().find(|name| !fits(name)) {
            return Err(format!(
                "there is no column `{wrong}`; give some of: {}",
                headings.join(",")
            ));
        }
        let named = |heading: &str| match self.columns.as_slice() {
            [] => usual.contains(&heading),
            named => named.iter().any(|name| names(name, heading)),
        };
        let keep: Vec<bool> = (0..)
            .zip(&table.columns)
            .map(|(at, (name, _))| at < keys || named(name))
            .collect();
        let mut columns = keep.iter();
        table.columns.retain(|_| columns.next() == Some(&true));
        for row in &mut table.rows {
            let mut cells = keep.iter();
            row.retain(|_| cells.next() == Some(&true));
        }
        Ok(())
    }
}

/// Returns whether a name is a column's heading or the heading's first word.
fn names(name: &str, heading: &str) -> bool {
    name == heading || heading.split(' ').next() == Some(name)
}

/// How a cell looks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    Plain,
    /// Text in bold type.
    Strong,
    /// Text in bold type, and red in HTML, of a figure that is behind, failed or refused.
    Bad,
}

/// Text, which may stand out, or a bar (in HTML only).
pub struct TableCell {
    text: String,
    mark: Mark,
    bar: Option<Bar>,
}

impl TableCell {
    pub(crate) fn strong(text: impl Into<String>) -> Self {
        Self {
            mark: Mark::Strong,
            ..text.into().into()
        }
    }

    pub(crate) fn bad(text: impl Into<String>) -> Self {
        Self {
            mark: Mark::Bad,
            ..text.into().into()
        }
    }

    /// Returns whether the cell has no figure.
    fn is_empty(&self) -> bool {
        self.bar.is_none() && (self.text.is_empty() || self.text == none())
    }
}

impl<T: Into<String>> From<T> for TableCell {
    fn from(text: T) -> Self {
        Self {
            text: text.into(),
            mark: Mark::Plain,
            bar: None,
        }
    }
}

impl From<Bar> for TableCell {
    fn from(bar: Bar) -> Self {
        Self {
            bar: Some(bar),
            ..String::new().into()
        }
    }
}

impl Table {
    /// Creates a table with these headings: a first column of words, then columns of numbers.
    pub fn new(headings: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let mut table = Self::default();
        for heading in headings {
            let first = table.columns.is_empty();
            table.column(heading, if first { Left } else { Right });
        }
        table
    }

    /// Creates a table of words with these headings.
    pub(crate) fn words(headings: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let mut table = Self::default();
        for heading in headings {
            table.column(heading, Left);
        }
        table
    }

    pub(crate) fn column(&mut self, heading: impl Into<String>, alignment: Alignment) {
        self.columns.push((heading.into(), alignment));
    }

    /// Adds a row; missing cells are empty.
    pub fn row(&mut self, cells: impl IntoIterator<Item = impl Into<TableCell>>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// Renders the table for a terminal, with a title above and an empty line below. Returns an
    /// empty string if the table has no rows.
    pub(crate) fn titled(&self, title: &str, width: usize) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        format!("{title}\n{}\n", self.text(width))
    }

    /// Renders the table for a terminal.
    pub(crate) fn text(&self, width: usize) -> String {
        layout::lay_out(&self.cells(0), None, width)
    }

    /// Renders the table for a terminal. The first cell is a line of its own, above all rows that
    /// share it.
    pub(crate) fn grouped(&self, width: usize) -> String {
        let groups = self.cells(0).swap_remove(0).cells;
        layout::lay_out(&self.cells(1), Some(&groups), width)
    }

    /// Returns the columns from index `from`, with their cells.
    fn cells(&self, from: usize) -> Vec<layout::Column> {
        let columns = self.columns.iter().enumerate().skip(from);
        let cells = |at| {
            let cells = self
                .rows
                .iter()
                .map(move |row: &Vec<TableCell>| row.get(at));
            cells
                .map(|cell| cell.map_or_else(String::new, |cell: &TableCell| cell.text.clone()))
                .collect()
        };
        let column = |(at, (heading, alignment)): (usize, &(String, Alignment))| layout::Column {
            heading: heading.clone(),
            right: *alignment == Right,
            cells: cells(at),
        };
        columns.map(column).collect()
    }

    /// Renders the table in Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let headings = self.columns.iter().map(|(heading, _)| heading.clone());
        let rules = self.columns.iter().map(|(_, alignment)| match alignment {
            Right => "---:".to_owned(),
            Left => "---".to_owned(),
        });
        let mut lines: Vec<Vec<String>> = vec![headings.collect(), rules.collect()];
        for row in &self.rows {
            let cells = row.iter().map(|cell| match cell.mark {
                Mark::Plain => cell.text.clone(),
                Mark::Strong | Mark::Bad => format!("**{}**", cell.text),
            });
            lines.push(cells.collect());
        }
        let lines = lines
            .iter()
            .map(|cells| format!("| {} |\n", cells.join(" | ")));
        lines.collect()
    }

    /// Renders the table in HTML. A column without any figure is omitted.
    pub(crate) fn html(&self) -> String {
        self.html_from(0)
    }

    /// Renders the table in HTML. The first cell is a heading above all rows that share it.
    pub(crate) fn grouped_html(&self) -> String {
        self.html_from(1)
    }

    /// Renders the columns from index `from`. The first of them has the names of the rows.
    fn html_from(&self, from: usize) -> String {
        let filled = |at: &usize| {
            let mut cells = self.rows.iter().filter_map(|row| row.get(*at));
            *at == from || cells.any(|cell| !cell.is_empty())
        };
        let shown: Vec<usize> = (from..self.columns.len()).filter(filled).collect();
        let bars = self.rows.iter().flatten().any(|cell| cell.bar.is_some());
        // On a narrow screen, the cells of a row with many columns are below each other.
        let class = match shown.len() {
            _ if bars => "table bars",
            0..=MOST_NARROW => "table",
            _ => "table cards",
        };
        let mut html = format!("<div class=\"{class}\"><table>\n<thead><tr>");
        for &at in &shown {
            let (heading, alignment) = &self.columns[at];
            let (class, heading) = (class_of(*alignment, Mark::Plain), escape(heading));
            html.push_str(&format!("<th scope=\"col\"{class}>{heading}</th>"));
        }
        html.push_str("</tr></thead>\n");
        let name = |row: &[TableCell]| row.first().map(|cell| cell.text.clone());
        let groups = self
            .rows
            .chunk_by(|row, next| from == 0 || name(row) == name(next));
        for rows in groups {
            html.push_str("<tbody>\n");
            if from > 0 {
                let (columns, name) = (shown.len(), name(&rows[0]).unwrap_or_default());
                html.push_str(&format!(
                    "<tr><th scope=\"rowgroup\" class=\"group\" colspan=\"{columns}\">{}</th></tr>\n",
                    escape(&name)
                ));
            }
            for row in rows {
                html.push_str("<tr>");
                for &at in &shown {
                    html.push_str(&self.html_cell(row, at, at == from));
                }
                html.push_str("</tr>\n");
            }
            html.push_str("</tbody>\n");
        }
        html.push_str("</table></div>\n");
        html
    }

    /// Renders a cell. On a narrow screen it has its heading beside it, unless it names the row.
    fn html_cell(&self, row: &[TableCell], at: usize, names: bool) -> String {
        let Some(cell) = row.get(at) else {
            return "<td></td>".to_owned();
        };
        let (heading, alignment) = &self.columns[at];
        let (class, text) = (class_of(*alignment, cell.mark), escape(&cell.text));
        if names {
            return format!("<th scope=\"row\"{class}>{text}</th>");
        }
        let bar = cell.bar.as_ref().map_or_else(String::new, Bar::html);
        let heading = escape(heading);
        format!("<td{class} data-of=\"{heading}\">{bar}{text}</td>")
    }
}

/// The number of columns that fit on a narrow screen.
const MOST_NARROW: usize = 5;

/// Returns the attribute with the classes of a cell.
fn class_of(alignment: Alignment, mark: Mark) -> String {
    let word = if alignment == Left { "text" } else { "" };
    let mark = match mark {
        Mark::Plain => "",
        Mark::Strong => "strong",
        Mark::Bad => "bad",
    };
    match format!("{word} {mark}").trim() {
        "" => String::new(),
        classes => format!(" class=\"{classes}\""),
    }
}

/// Formats a number as a cell, or `-` for `None`.
pub(crate) fn decimals(number: Option<f64>, decimals: usize) -> String {
    number.map_or_else(none, |number| format!("{number:.decimals$}"))
}

/// Formats a count as a cell, or `-` for `None`.
pub(crate) fn count(number: Option<u64>) -> String {
    number.map_or_else(none, |number| number.to_string())
}

/// Returns the cell of a missing value.
pub(crate) fn none() -> String {
    "-".to_owned()
}

/// Formats a value as a line of JSON.
pub(crate) fn json_line(value: &impl Serialize) -> io::Result<String> {
    Ok(serde_json::to_string(value)? + "\n")
}

/// Prints text for a terminal of `width` columns.
pub(crate) fn print_wrapped(text: &str, width: usize) -> io::Result<()> {
    print(&layout::wrapped(text, width))
}

/// Prints text with a single write, so that a reader need not wait for the rest.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Time between two updates of a progress bar.
const TICK: Duration = Duration::from_millis(100);

/// Creates a progress bar on stderr, hidden unless stderr is a terminal.
pub(crate) fn progress_bar() -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(0);
    // A terminal breaks long lines in the middle of a word.
    let style = match terminal_size_of(io::stderr()) {
        Some((Width(0..80), _)) => "{so_far}{wide_msg}",
        _ => "{bar:30} {so_far}{wide_msg}",
    };
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style.with_key("so_far", so_far));
    }
    bar.enable_steady_tick(TICK);
    bar
}

/// Writes the completed work and the elapsed time, and the remaining time if it is known.
fn so_far(state: &ProgressState, line: &mut dyn fmt::Write) {
    let Some(all) = state.len().filter(|&all| all > 0) else {
        return;
    };
    let (done, all) = (HumanCount(state.pos()), HumanCount(all));
    // A failed write of a progress line cannot be reported.
    let _ = write!(line, "{done}/{all} {:#}", HumanDuration(state.elapsed()));
    let _ = match state.pos() {
        0 => line.write_str(" "),
        _ => write!(line, ", {:#} left ", HumanDuration(state.eta())),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_is_asked_for_by_its_first_word_and_one_without_figures_is_not_on_a_page() {
        let shown = |columns: &[&str]| Shown {
            wide: false,
            columns: columns.iter().map(|&name| name.to_owned()).collect(),
        };
        let make = || {
            let mut table = Table::new(["trace", "live MiB", "calls", "driver frees"]);
            table.row(["x", "1.5", "-", "3"]);
            table.row(["y", "2.5", "-", "-"]);
            table
        };
        let mut table = make();
        shown(&["live"]).choose(&mut table, 1, &[]).unwrap();
        assert!(table.markdown().starts_with("| trace | live MiB |\n"));
        let error = shown(&["MiB"]).choose(&mut make(), 1, &[]).unwrap_err();
        assert!(error.contains("no column `MiB`"), "{error}");
        let html = make().html();
        assert!(!html.contains("calls") && html.contains("driver frees"));
        assert!(
            html.contains(
                "<td data-of=\"live MiB\">2.5</td><td data-of=\"driver frees\">-</td></tr>"
            ),
            "{html}"
        );
    }

    #[test]
    fn a_table_has_the_same_cells_in_every_form() {
        let mut table = Table::new(["a", "b"]);
        table.column("c", Left);
        table.row(["x".into(), "1.5".into(), TableCell::bad("<no>")]);
        table.row(["y", "22"]);
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let text = table.text(ANY_WIDTH);
        let lines: Vec<String> = text.lines().map(words).collect();
        assert_eq!(
            (lines[0].as_str(), lines[2].as_str()),
            ("a b c", "x 1.5 <no>")
        );
        assert_eq!(text.lines().count(), 4);
        let markdown = "| a | b | c |\n| --- | ---: | --- |\n| x | 1.5 | **<no>** |\n| y | 22 |\n";
        assert_eq!(table.markdown(), markdown);
        let html = table.html();
        assert!(html.contains(
            "<tr><th scope=\"row\" class=\"text\">x</th><td data-of=\"b\">1.5</td><td class=\"text bad\" data-of=\"c\">&lt;no&gt;</td></tr>"
        ));
        assert!(
            table
                .grouped_html()
                .contains("colspan=\"2\">y</th></tr>\n<tr><th scope=\"row\">22</th>")
        );
        assert_eq!(Table::new(["a"]).titled("t", ANY_WIDTH), "");
    }
}
