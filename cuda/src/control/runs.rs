//! Runs: what a [`Job`] does before, around and after the work that a program repeats.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use larder_control::{ActionFailed, Adjustment, Group, NoDevice, OnError, Recorded, Waited};
use larder_core::sync::{AtomicU64, Ordering};

use super::rest::UnderWay;
use super::{Job, JobShared, Pauses};
use crate::Rejected;
use crate::driver::locked;

pub(super) type Adjusted = Result<Adjustment, NoDevice>;

/// What actions get: which graph runs, and afterwards for how long it did.
#[derive(Debug)]
pub struct Run {
    /// The number by which the status tells graphs apart.
    pub graph: u64,
    /// Zero before the work. Afterwards the time from before the actions before it.
    pub duration: Duration,
    /// Paced by the launches in it, and not by its end.
    is_step: bool,
    end: Mutex<RunEnd>,
    /// None in a loop of the program's own.
    under_way: Mutex<Option<UnderWay>>,
}

/// What the end of a run did.
#[derive(Debug)]
#[must_use = "it has the warnings"]
pub struct RunEnd {
    /// What became of the status; `None` if it could not be written, which is among the warnings.
    pub recorded: Option<Recorded>,
    /// What became of limits that waited for this, by GPU.
    pub adjusted: Vec<Result<Adjustment, NoDevice>>,
    /// How the pause ended.
    pub paused: Waited,
    /// Errors of actions that do not fail a run.
    pub warnings: Vec<ActionFailed>,
}

impl Default for RunEnd {
    fn default() -> Self {
        Self {
            recorded: None,
            adjusted: Vec::new(),
            paused: Waited::Done,
            warnings: Vec::new(),
        }
    }
}

/// Where runs are. A program with a loop of its own reports only their ends.
#[derive(Debug, Default)]
pub(super) struct Progress {
    inside: AtomicU64,
    pausing: AtomicU64,
    own_loops: AtomicU64,
}

impl Progress {
    /// No run is under way, as far as is known, or one has ended and pauses. Limits that are lowered never
    /// wait, so a run that begins meanwhile is not disturbed.
    pub(super) fn is_between_runs(&self) -> bool {
        // Relaxed: a run that begins meanwhile is not disturbed, so nothing depends on the order of these.
        let count = |number: &AtomicU64| number.load(Ordering::Relaxed);
        count(&self.pausing) > 0 || count(&self.inside) + count(&self.own_loops) == 0
    }
}

/// Counts while it lives, in a panic too.
struct Counted<'n>(&'n AtomicU64);

impl<'n> Counted<'n> {
    fn new(number: &'n AtomicU64) -> Self {
        number.fetch_add(1, Ordering::Relaxed);
        Self(number)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Job {
    /// Runs a graph: actions before it, `work`, actions after it, among them the job's own ([`Job::actions`]).
    /// It comes back when the pause is over that the share of the time asks for; a suspended job waits here.
    ///
    /// One run at a time is paced: of two at once the one that begins later ends the step of the other, and
    /// the share holds for both together.
    ///
    /// # Errors
    /// The first action that fails a run. One before the work prevents it, and nothing comes back; after the
    /// work its value does, and actions of later phases have not run.
    pub fn run<R>(
        &self,
        graph: u64,
        work: impl FnOnce() -> R,
    ) -> Result<(R, RunEnd), Rejected<Option<R>, ActionFailed>> {
        let shared = &*self.shared;
        let under_way = shared.rest.begin(shared);
        let inside = Counted::new(&shared.progress.inside);
        let start = shared.clock.now();
        let is_step = shared.config.pauses == Pauses::Spread;
        if is_step {
            shared.pacer.begin();
        }
        let mut run = Run::new(graph, is_step);
        run.under_way = Mutex::new(Some(under_way));
        let before = shared.actions.run(Group::Pre, &run);
        let before = before.map_err(|error| Rejected { value: None, error })?;
        let value = work();
        run.duration = shared.clock.now().saturating_sub(start);
        let ended = shared.end_run(run);
        drop(inside);
        match ended {
            Ok(mut end) => {
                let warnings = before.warnings.into_iter().chain(end.warnings);
                end.warnings = warnings.collect();
                Ok((value, end))
            }
            Err(error) => {
                let value = Some(value);
                Err(Rejected { value, error })
            }
        }
    }

    /// A run of a program's own loop is over and took so long, the job's pauses inside it included. The pause
    /// is made here, by upstream's formula; launches in such runs are held back by a suspension only.
    ///
    /// # Errors
    /// The first action that fails a run.
    pub fn end_run(&self, graph: u64, duration: Duration) -> Result<RunEnd, ActionFailed> {
        // Relaxed: asked as a number.
        self.shared.progress.own_loops.store(1, Ordering::Relaxed);
        let mut run = Run::new(graph, false);
        run.duration = duration;
        self.shared.end_run(run)
    }
}

impl Run {
    fn new(graph: u64, is_step: bool) -> Self {
        Self {
            graph,
            duration: Duration::ZERO,
            is_step,
            end: Mutex::default(),
            under_way: Mutex::default(),
        }
    }
}

impl JobShared {
    fn end_run(&self, run: Run) -> Result<RunEnd, ActionFailed> {
        let ran = self.actions.run(Group::Post, &run)?;
        let end = run.end.into_inner();
        let mut end = end.unwrap_or_else(std::sync::PoisonError::into_inner);
        end.warnings = ran.warnings;
        Ok(end)
    }

    /// Phase 1: the run counts, and the status is written if it is due.
    fn record(&self, run: &Run) -> Result<(), larder_control::FileError> {
        let recorded = self.combiner.work(
            |state| state.record(run.graph, run.duration),
            |state| self.settle(state),
        );
        // Inside a callback of the thread that has the state nothing is recorded.
        let recorded = recorded.transpose();
        if let Err(error) = &recorded {
            self.note_unwritten(error);
        }
        if let Ok(recorded) = &recorded {
            locked(&run.end).recorded = *recorded;
        }
        recorded.map(drop)
    }

    /// Phase 2: the limits that waited, the status if that changes it, and the pause.
    fn manage(&self, run: &Run) {
        let obeyed = self.combiner.work(
            |state| {
                let adjusted = self.obey(state);
                if adjusted.is_empty() {
                    state.retry();
                }
                if self.bell.take() {
                    self.note_written(state.check().err());
                }
                adjusted
            },
            |state| self.settle(state),
        );
        let adjusted = obeyed.unwrap_or_default();
        if !adjusted.is_empty() {
            self.management.note_adjusted();
        }
        self.rest_after(run);
        let pausing = Counted::new(&self.progress.pausing);
        let paused = if run.is_step {
            self.pacer.end_wait()
        } else {
            self.management.finish_run(run.duration)
        };
        drop(pausing);
        let mut end = locked(&run.end);
        end.adjusted = adjusted;
        end.paused = paused;
    }

    /// Sleeps while the control file says so.
    fn rest_after(&self, run: &Run) {
        if run.is_step && self.rest.is_told() {
            // Time asleep is no work.
            let _ = self.pacer.end();
        }
        let ended = locked(&run.under_way).take();
        let counts = ended.is_some();
        drop(ended);
        let again = self.rest.begin(self);
        *locked(&run.under_way) = counts.then_some(again);
    }
}

/// The job's own actions.
pub(super) fn add_actions(shared: &Arc<JobShared>) {
    let job = Arc::downgrade(shared);
    let record = move |run: &Run| match job.upgrade() {
        Some(job) => job.record(run).map_err(Into::into),
        None => Ok(()),
    };
    let actions = &shared.actions;
    actions.add(Group::Post, 1, "statistics", OnError::Warn, record);
    let job = Arc::downgrade(shared);
    let manage = move |run: &Run| {
        if let Some(job) = job.upgrade() {
            job.manage(run);
        }
        Ok(())
    };
    actions.add(Group::Post, 2, "management", OnError::Ignore, manage);
}
