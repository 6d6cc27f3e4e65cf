//! Text that fits a terminal: columns in as many blocks as they need, and prose wrapped at words.
//! Numbers and words are never broken.

use std::io;

use terminal_size::{Width, terminal_size_of};

/// The width of text that is never wrapped.
pub const ANY_WIDTH: usize = usize::MAX;

/// Blanks between two columns.
const GAP: usize = 2;

/// Returns the value of `COLUMNS`, or else the width of the terminal. Without a terminal there is
/// no limit.
pub fn width() -> usize {
    let said = std::env::var("COLUMNS").ok();
    let said = said.and_then(|text| text.parse().ok()).filter(|n| *n > 0);
    let terminal = || terminal_size_of(io::stdout()).map(|(Width(width), _)| width.into());
    said.or_else(terminal).unwrap_or(ANY_WIDTH)
}

/// One column: its heading and its cells.
pub struct Column {
    /// The text above the cells.
    pub heading: String,
    /// Whether the cells are aligned right, as numbers are.
    pub right: bool,
    /// The cells, one for each row.
    pub cells: Vec<String>,
}

impl Column {
    fn width(&self) -> usize {
        let texts = self.cells.iter().chain([&self.heading]);
        texts.map(|text| count(text)).max().unwrap_or(0)
    }

    /// Pads a text of the column to the column's width.
    fn padded(&self, text: &str, width: usize) -> String {
        // Formatting pads by characters, and `count` counts characters too.
        match self.right {
            true => format!("{text:>width$}"),
            false => format!("{text:width$}"),
        }
    }
}

/// Lays out columns as text. Columns that do not fit follow in further blocks, each of which
/// repeats the first column. `groups` gives each row the name of its group; a line with the name
/// precedes the rows of each group.
pub fn lay_out(columns: &[Column], groups: Option<&[String]>, width: usize) -> String {
    let Some((key, rest)) = columns.split_first() else {
        return String::new();
    };
    let indent = if groups.is_some() { GAP } else { 0 };
    let mut text = String::new();
    let mut rest = rest;
    loop {
        let mut used = indent + key.width();
        let fits = |column: &&Column| {
            used += GAP + column.width();
            used <= width
        };
        let fitting = rest.iter().take_while(fits).count();
        let (now, later) = rest.split_at(fitting.clamp(rest.len().min(1), rest.len()));
        if !text.is_empty() {
            text.push('\n');
        }
        block(&mut text, key, now, groups, indent, width);
        rest = later;
        if rest.is_empty() {
            return text;
        }
    }
}

fn block(
    text: &mut String,
    key: &Column,
    rest: &[Column],
    groups: Option<&[String]>,
    indent: usize,
    width: usize,
) {
    let all = || std::iter::once(key).chain(rest);
    let widths: Vec<usize> = all().map(Column::width).collect();
    let line = |cell: &dyn Fn(&Column) -> String| {
        let cells: Vec<String> = all()
            .zip(&widths)
            .map(|(column, width)| column.padded(&cell(column), *width))
            .collect();
        let line = format!("{:indent$}{}", "", cells.join(&" ".repeat(GAP)));
        format!("{}\n", line.trim_end())
    };
    let wide: usize = widths.iter().map(|width| width + GAP).sum();
    text.push_str(&line(&|column| column.heading.clone()));
    let line_width = (indent + wide - GAP).min(width);
    text.push_str(&format!("{}\n", "─".repeat(line_width)));
    let mut group = None;
    for row in 0..key.cells.len() {
        let name = groups.and_then(|groups| groups.get(row));
        if let Some(name) = name
            && group.replace(name) != Some(name)
        {
            text.push_str(&format!("{name}\n"));
        }
        text.push_str(&line(&|column| column.cells[row].clone()));
    }
}

/// Wraps lines that are too long between words, and indents the rest like the line.
pub fn wrapped(text: &str, width: usize) -> String {
    let mut wrapped = String::new();
    for line in text.split_inclusive('\n') {
        let blanks = line.len() - line.trim_start_matches(' ').len();
        if count(line.trim_end()) <= width {
            wrapped.push_str(line);
            continue;
        }
        let mut used = 0;
        for word in line.split_whitespace() {
            let begins = used == 0;
            if !begins && used + 1 + count(word) > width {
                wrapped.push('\n');
                used = 0;
            }
            let lead = match (used, begins) {
                (0, true) => " ".repeat(blanks),
                (0, false) => " ".repeat((blanks + GAP).min(width / 4)),
                _ => " ".to_owned(),
            };
            used += lead.len() + count(word);
            wrapped.push_str(&lead);
            wrapped.push_str(word);
        }
        wrapped.push('\n');
    }
    wrapped
}

fn count(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns() -> Vec<Column> {
        let column = |heading: &str, right, cells: [&str; 2]| Column {
            heading: heading.to_owned(),
            right,
            cells: cells.map(str::to_owned).to_vec(),
        };
        vec![
            column("name", false, ["one", "second"]),
            column("first", true, ["12345", "7"]),
            column("more", true, ["1.5", "123456789"]),
        ]
    }

    #[test]
    fn columns_that_do_not_fit_stand_in_a_block_of_their_own() {
        let wide = "name    first       more\n────────────────────────\none     12345        1.5\nsecond      7  123456789\n";
        assert_eq!(lay_out(&columns(), None, 24), wide);
        let narrow = lay_out(&columns(), None, 23);
        let blocks: Vec<&str> = narrow.split("\n\n").collect();
        assert_eq!(blocks.len(), 2, "{narrow}");
        assert!(blocks[1].contains("second  123456789"), "{narrow}");
        // A column wider than the terminal stays whole.
        assert!(lay_out(&columns(), None, 5).contains("second  123456789\n"));
    }

    #[test]
    fn a_group_has_its_name_above_its_rows() {
        let groups = ["a".to_owned(), "b".to_owned()];
        let text = lay_out(&columns()[..2], Some(&groups), ANY_WIDTH);
        assert_eq!(
            text.lines().skip(2).collect::<Vec<_>>(),
            ["a", "  one     12345", "b", "  second      7"]
        );
    }

    #[test]
    fn prose_is_wrapped_at_words_and_words_are_never_broken() {
        let text = "short\n  a line that is too long 123456789012345678901\n";
        let lines = wrapped(text, 16);
        let lines: Vec<&str> = lines.lines().collect();
        assert_eq!(lines[..3], ["short", "  a line that is", "    too long"]);
        assert_eq!(lines[3].trim(), "123456789012345678901");
        assert_eq!(wrapped(text, ANY_WIDTH), text);
    }
}
