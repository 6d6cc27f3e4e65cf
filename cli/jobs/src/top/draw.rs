//! Draws the table in a terminal.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Text;
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState};

use super::screen::Screen;
use super::table::{HEADINGS, problems};
use crate::alive::Liveness;
use crate::layout::wrapped;
use crate::visible::visible;

/// Columns that a narrow terminal omits, in this order. The job's name is always shown.
const SPARED: [&str; 15] = [
    "stable", "prio", "peak", "batch", "pid", "deferred", "age", "host", "gpu", "used", "state",
    "perf", "target", "held", "limit",
];

const KEYS: &str = "↑↓ job  +/- limit  l type one  q end\n\
                    0-9 share of time  p pause  r resume\n";

impl Screen {
    /// Draws the whole screen.
    pub(crate) fn draw(&self, frame: &mut Frame<'_>) {
        let width = usize::from(frame.area().width);
        let said = match &self.typed {
            Some(typed) => {
                let typed = visible(typed);
                format!("limit: {typed}█  (Enter sets it, Esc leaves it)")
            }
            None => self.message.clone(),
        };
        let (said, keys) = (wrapped(&said, width), wrapped(KEYS, width));
        let [upper, below, last] = Layout::vertical([
            Constraint::Min(1),
            Constraint::Length(height(&said).max(1)),
            Constraint::Length(height(&keys)),
        ])
        .areas(frame.area());
        let rows = u16::try_from(self.lines.len() + 1).unwrap_or(u16::MAX);
        let [table, problems] =
            Layout::vertical([Constraint::Length(rows), Constraint::Min(0)]).areas(upper);
        self.draw_table(frame, table);
        frame.render_widget(Paragraph::new(wrapped(&self.problems(), width)), problems);
        frame.render_widget(Paragraph::new(said), below);
        let style = Style::new().add_modifier(Modifier::DIM);
        frame.render_widget(Paragraph::new(keys).style(style), last);
    }

    /// Returns the problems of the jobs' files. Those of the selected job come first, because there
    /// may not be room for all.
    fn problems(&self) -> String {
        let selected = self.lines.get(self.selected).map(|line| line.job);
        let others = (0..self.jobs.len()).filter(|job| Some(*job) != selected);
        let jobs = selected.into_iter().chain(others);
        problems(jobs.map(|job| &self.jobs[job]))
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
                Liveness::No => Style::new().add_modifier(Modifier::DIM),
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

    /// Returns the columns that fit on a screen of `width`.
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

    /// Returns the width of a column's widest cell.
    fn width(&self, column: usize) -> u16 {
        let cells = self.lines.iter().map(|line| line.cells[column].as_str());
        let widest = cells
            .chain([HEADINGS[column]])
            .map(|text| text.chars().count())
            .max();
        u16::try_from(widest.unwrap_or(0)).unwrap_or(u16::MAX)
    }
}

/// Returns a cell. Names are aligned left, numbers right.
fn cell(column: usize, text: &str) -> Cell<'_> {
    let text = Text::from(text);
    if column == 0 {
        Cell::from(text)
    } else {
        Cell::from(text.right_aligned())
    }
}

fn height(text: &str) -> u16 {
    u16::try_from(text.lines().count()).unwrap_or(u16::MAX)
}
