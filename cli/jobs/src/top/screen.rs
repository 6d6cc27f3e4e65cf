//! The live table in a terminal: [`Screen`] is its content and handles keys; [`run`] connects it to
//! the terminal, the files and the clock.
//!
//! Keys change control files immediately. The table shows the limit and the share in the control
//! file next to those in force, which change once the job has obeyed.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use ratatui::crossterm::event::{self, Event, KeyEventKind};

use super::table::{TableLine, lines};
use crate::Failure;
use crate::files::{FilesError, JobPaths, Twins, find};
use crate::order::ControlChange;
use crate::view::JobView;
use crate::visible::visible;

/// The content of the table, and the limit being typed.
#[derive(Debug)]
pub(crate) struct Screen {
    pub(super) jobs: Vec<JobView>,
    pub(super) lines: Vec<TableLine>,
    pub(super) selected: usize,
    /// The limit being typed, if any.
    pub(super) typed: Option<String>,
    /// The bytes by which the keys + and - change a limit.
    pub(super) step_bytes: u64,
    pub(super) message: String,
}

/// The action for a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum KeyAction {
    /// Redraws and reads the files again.
    Nothing,
    /// Ends the program.
    Quit,
    /// Writes an order into a job's control file.
    Tell(JobPaths, ControlChange),
}

impl Screen {
    pub(crate) fn new(step_bytes: u64) -> Self {
        Self {
            jobs: Vec::new(),
            lines: Vec::new(),
            selected: 0,
            typed: None,
            step_bytes,
            message: String::new(),
        }
    }

    /// Shows the jobs found; the selected line stays with its job and GPU if they still exist.
    pub(crate) fn show(&mut self, jobs: Vec<JobView>) {
        let before = self.lines.get(self.selected).map(|line| self.whose(line));
        (self.lines, self.jobs) = (lines(&jobs), jobs);
        let mut all = self.lines.iter();
        let stays = all.position(|line| Some(self.whose(line)) == before);
        let last = self.lines.len().saturating_sub(1);
        self.selected = stays.unwrap_or(self.selected.min(last));
    }

    /// Shows a message below the table.
    pub(crate) fn say(&mut self, message: impl Into<String>) {
        self.message = visible(&message.into());
    }

    fn whose(&self, line: &TableLine) -> (JobPaths, Option<larder_control::BusId>) {
        let job = &self.jobs[line.job];
        let gpu = line.gpu.map(|gpu| job.gpus[gpu].gpu);
        (job.files.clone(), gpu)
    }
}

/// Shows the jobs until the user quits, and reads the files once in each `interval`.
pub(super) fn run(places: &[PathBuf], interval: Duration, step_bytes: u64) -> Result<(), Failure> {
    let mut screen = Screen::new(step_bytes);
    screen.show(look(places)?);
    let ended = ratatui::try_init().and_then(|mut terminal| {
        let ended = live(&mut terminal, &mut screen, places, interval);
        ratatui::try_restore().and(ended)
    });
    ended.map_err(|error| Failure::Failed(format!("cannot use the terminal: {error}")))
}

fn live(
    terminal: &mut ratatui::DefaultTerminal,
    screen: &mut Screen,
    places: &[PathBuf],
    interval: Duration,
) -> io::Result<()> {
    let mut next = Instant::now() + interval;
    loop {
        terminal.draw(|frame| screen.draw(frame))?;
        if event::poll(next.saturating_duration_since(Instant::now()))?
            && let Event::Key(key) = event::read()?
            && key.kind != KeyEventKind::Release
        {
            match screen.key(key) {
                KeyAction::Quit => return Ok(()),
                KeyAction::Nothing => {}
                KeyAction::Tell(job, order) => {
                    let said = send(&job, &order);
                    screen.say(said);
                    next = Instant::now();
                }
            }
        }
        if Instant::now() >= next {
            match look(places) {
                Ok(jobs) => screen.show(jobs),
                Err(error) => screen.say(error.to_string()),
            }
            next = Instant::now() + interval;
        }
    }
}

/// Writes an order into a job's control file. Returns a message about it.
pub(crate) fn send(job: &JobPaths, order: &ControlChange) -> String {
    match order.give(job) {
        Ok(dropped) if dropped.is_empty() => format!("{}: sent", job.name),
        Ok(dropped) => format!("{}: sent, and removed {}", job.name, dropped.join("; ")),
        Err(error) => format!("{}: {error}", job.name),
    }
}

/// Reads the files of all jobs. Bad files of a job are not an error.
pub(crate) fn look(places: &[PathBuf]) -> Result<Vec<JobView>, FilesError> {
    let now = SystemTime::now();
    let jobs = find(places, Twins::Hidden)?;
    Ok(jobs.iter().map(|job| JobView::look(job, now)).collect())
}
