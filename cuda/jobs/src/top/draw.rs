//! How the table looks in a terminal.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Text;
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState};

use super::screen::Screen;
use super::table::HEADINGS;
use crate::alive::Alive;

/// Columns that go first where the terminal is narrow.
const SPARED: [&str; 9] = [
    "stable", "prio", "peak", "batch", "swap", "pid", "deferred", "age", "host",
];

const KEYS: &str = "↑↓ job  +/- limit  l type a limit  0-9 share of the time in tens  p pause  \
                    r resume  q end";

impl Screen {
    /// Draws all of it.
    pub(crate) fn draw(&self, frame: &mut Frame<'_>) {
        let [table, message, keys] = Layout::vertical([
            Constraint::Min(1),
            Constraint::Length(1),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        self.draw_table(frame, table);
        let said = match &self.typed {
            Some(typed) => format!("limit: {typed}█  (Enter sets it, Esc leaves it)"),
            None => self.message.clone(),
        };
        frame.render_widget(Paragraph::new(said), message);
        let style = Style::new().add_modifier(Modifier::DIM);
        frame.render_widget(Paragraph::new(KEYS).style(style), keys);
    }

    fn draw_table(&self, frame: &mut Frame<'_>, area: Rect) {
        if self.lines.is_empty() {
            frame.render_widget(Paragraph::new("no jobs yet"), area);
            return;
        }
        let columns = self.columns(area.width);
        let widths = columns
            .iter()
            .map(|&column| Constraint::Length(self.width(column)));
        let rows = self.lines.iter().map(|line| {
            let cells = columns
                .iter()
                .map(|&column| cell(column, line.cells[column].as_str()));
            let style = match self.jobs[line.job].alive {
                Alive::No => Style::new().add_modifier(Modifier::DIM),
                _ => Style::new(),
            };
            Row::new(cells).style(style)
        });
        let heading = columns.iter().map(|&column| cell(column, HEADINGS[column]));
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let table = Table::new(rows, widths)
            .header(Row::new(heading).style(bold))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        let mut state = TableState::new().with_selected(self.selected);
        frame.render_stateful_widget(table, area, &mut state);
    }

    /// The columns that fit, the problem's always among them.
    fn columns(&self, width: u16) -> Vec<usize> {
        let mut columns: Vec<usize> = (0..HEADINGS.len()).collect();
        for spared in SPARED {
            let needed: usize = columns
                .iter()
                .map(|&column| usize::from(self.width(column)) + 1)
                .sum();
            if needed <= usize::from(width) + 1 {
                break;
            }
            columns.retain(|&column| HEADINGS[column] != spared);
        }
        columns
    }

    /// What the widest cell of a column needs.
    fn width(&self, column: usize) -> u16 {
        let cells = self.lines.iter().map(|line| line.cells[column].as_str());
        let widest = cells
            .chain([HEADINGS[column]])
            .map(|text| text.chars().count())
            .max();
        u16::try_from(widest.unwrap_or(0)).unwrap_or(u16::MAX)
    }
}

/// Words stand to the left, numbers to the right.
fn cell(column: usize, text: &str) -> Cell<'_> {
    let text = Text::from(text);
    if column == 0 || column + 1 == HEADINGS.len() {
        Cell::from(text)
    } else {
        Cell::from(text.right_aligned())
    }
}
