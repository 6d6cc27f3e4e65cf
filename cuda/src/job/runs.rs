//! Runs: what a [`Job`] does before, around and after the work that a program repeats.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cudarc::driver::CudaStream;
use larder_control::{ActionFailed, FileError, Group, OnError, Statistics, Waited};
use larder_core::sync::{AtomicU64, Ordering};

use super::device_time::{EndedRun, QueuedRun};
use super::limits::{Adjustment, NoDevice};
use super::managed::Check;
use super::sleep::UnderWay;
use super::status::Recorded;
use super::{Job, JobShared, Pauses};
use crate::Returned;
use crate::driver::locked;

/// A run, as its actions see it: which graph it is, and afterwards how long it took.
#[derive(Debug)]
pub struct Run {
    /// The number by which the status tells graphs apart.
    pub graph: u64,
    /// Zero before the work. Afterwards the time from before the actions before it, until the work
    /// came back or, if the job has waited for it, until the device had done it.
    pub duration: Duration,
    /// The runs that the status gets to know of at this one's end: itself, or queued ones that are
    /// done.
    ended: Vec<EndedRun>,
    /// Paced by the launches in it, and not by its end.
    is_step: bool,
    end: Mutex<RunEnd>,
    /// None in a loop of the program's own.
    under_way: Mutex<Option<UnderWay>>,
}

/// What happened at the end of a run.
#[derive(Debug)]
#[must_use = "it has the warnings"]
#[non_exhaustive]
pub struct RunEnd {
    /// What became of the status. `None` if it could not be written, which is among the warnings,
    /// or if all runs that it lacks are still on the device.
    pub recorded: Option<Recorded>,
    /// What became of the limits that waited for it, by GPU.
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
    /// No run is under way, as far as is known, or one has ended and pauses. Limits that are
    /// lowered never wait, so a run that begins meanwhile is not disturbed.
    pub(super) fn is_between_runs(&self) -> bool {
        // Relaxed: a run that begins meanwhile is not disturbed, so nothing depends on the order of
        // these.
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
    /// Runs a graph: actions before it, `work`, actions after it, among them the job's own
    /// ([`Job::actions`]). Its time is the host's: queued work that is not waited for wants
    /// [`run_on`](Self::run_on). Comes back when the pause is over that the share of the time asks
    /// for; a suspended job waits here.
    ///
    /// One run at a time is paced: of two at once the one that begins later ends the step of the
    /// other, and the share holds for both together.
    ///
    /// # Errors
    /// The first action that fails a run. One before the work prevents it, and nothing comes back;
    /// after the work its value does, and actions of later phases have not run.
    pub fn run<R>(
        &self,
        graph: u64,
        work: impl FnOnce() -> R,
    ) -> Result<(R, RunEnd), Returned<Option<R>, ActionFailed>> {
        self.run_timed(None, graph, work)
    }

    /// Runs a graph as [`run`](Self::run) does, whose work is queued on the stream and not waited
    /// for: for loops that run ahead of the device. The device times the run, from where it begins
    /// on the stream to the end of its work there; work on other streams counts as far as this one
    /// waits for it. Runs that overlap on the device count each.
    ///
    /// Below full share the job waits for the device before a pause, so that queued work does not
    /// hide it; the pauses of short runs are joined. A run that finds 4 on the device waits for the
    /// oldest, at full share one that finds 64. The status hears of a run once it is done. Two
    /// events are recorded; where the driver refuses them or the stream captures, the host's clock
    /// counts. The job keeps the stream's context.
    ///
    /// # Errors
    /// The first action that fails a run, as for [`run`](Self::run).
    pub fn run_on<R>(
        &self,
        stream: &Arc<CudaStream>,
        graph: u64,
        work: impl FnOnce() -> R,
    ) -> Result<(R, RunEnd), Returned<Option<R>, ActionFailed>> {
        self.run_timed(Some(stream), graph, work)
    }

    /// Runs a graph, which the device times where there is a stream.
    fn run_timed<R>(
        &self,
        stream: Option<&Arc<CudaStream>>,
        graph: u64,
        work: impl FnOnce() -> R,
    ) -> Result<(R, RunEnd), Returned<Option<R>, ActionFailed>> {
        let shared = &*self.shared;
        // It may sleep here, so the run begins on the device later.
        let under_way = shared.sleep.begin(shared);
        let queued = stream.and_then(|stream| {
            let perf = shared.management.perf();
            shared.queued.begin(stream, &shared.pacer, perf)
        });
        let inside = Counted::new(&shared.progress.inside);
        let start = shared.clock.now();
        let is_step = shared.config.pauses == Pauses::Spread;
        if is_step {
            match &queued {
                Some(_) => shared.pacer.begin_queued(shared.queued.count()),
                None => shared.pacer.begin(),
            }
        }
        let mut run = Run::new(graph, is_step);
        run.under_way = Mutex::new(Some(under_way));
        let before = shared.actions.run(Group::Pre, &run);
        let before = before.map_err(|error| Returned { value: None, error })?;
        let value = work();
        run.duration = shared.clock.now().saturating_sub(start);
        match queued {
            Some(queued) => shared.end_queued(queued, &mut run),
            None => run.note_ended(),
        }
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
                Err(Returned { value, error })
            }
        }
    }

    /// A run of a program's own loop is over and took so long, the job's pauses inside it included.
    /// The pause is made here, by upstream's formula; launches in such runs are held back by a
    /// suspension only.
    ///
    /// # Errors
    /// The first action that fails a run.
    pub fn end_run(&self, graph: u64, duration: Duration) -> Result<RunEnd, ActionFailed> {
        // Relaxed: asked as a number.
        self.shared.progress.own_loops.store(1, Ordering::Relaxed);
        let mut run = Run::new(graph, false);
        run.duration = duration;
        run.note_ended();
        self.shared.end_run(run)
    }
}

impl Run {
    fn new(graph: u64, is_step: bool) -> Self {
        Self {
            graph,
            duration: Duration::ZERO,
            ended: Vec::new(),
            is_step,
            end: Mutex::default(),
            under_way: Mutex::default(),
        }
    }

    /// The run is over, by the host's clock.
    fn note_ended(&mut self) {
        self.ended.push(EndedRun {
            number: 0,
            graph: self.graph,
            took: self.duration,
        });
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

    /// The work of a queued run is on the stream: waits for it if a pause comes.
    fn end_queued(&self, queued: QueuedRun<'_>, run: &mut Run) {
        let number = queued.end(run.graph, run.duration, &self.pacer);
        let waits = if run.is_step {
            self.pacer.is_pause_at_end()
        } else {
            !self.management.perf().is_full()
        };
        self.queued.collect(waits, &self.pacer);
        run.ended = self.queued.take_ended();
        if let Some(own) = run.ended.iter().find(|ended| ended.number == number) {
            run.duration = own.took;
        }
    }

    /// Records the queued runs that the device has done, without waiting for the others.
    pub(super) fn record_queued(&self) {
        self.queued.collect(false, &self.pacer);
        // What goes wrong is in the report.
        let _ = self.record_ended(&self.queued.take_ended());
    }

    /// Phase 1: records the run, and writes the status if that is due.
    fn record_run(&self, run: &Run) -> Result<(), FileError> {
        let recorded = self.record_ended(&run.ended);
        if let Ok(recorded) = &recorded {
            locked(&run.end).recorded = *recorded;
        }
        recorded.map(drop)
    }

    fn record_ended(&self, ended: &[EndedRun]) -> Result<Option<Recorded>, FileError> {
        let record = |statistics: &mut Statistics| {
            let mut answer = None;
            for run in ended {
                let recorded = self.record(statistics, run)?;
                if answer != Some(Recorded::Written) {
                    answer = Some(recorded);
                }
            }
            Ok(answer)
        };
        // Inside a callback of the thread that has the statistics nothing is recorded.
        self.with_statistics(record).unwrap_or(Ok(None))
    }

    /// Phase 2: sets the limits that waited, writes the status if that changes it, and pauses.
    fn manage(&self, run: &Run) {
        let obeyed = self.with_statistics(|statistics| {
            let adjusted = self.obey();
            if adjusted.is_empty() {
                self.managed.shrink();
            }
            if self.bell.take() {
                // What goes wrong is in the report.
                let _ = self.check(statistics, Check::Early);
            }
            adjusted
        });
        let adjusted = obeyed.unwrap_or_default();
        self.sleep_after(run);
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

    /// Has the job sleep while the control file says so.
    fn sleep_after(&self, run: &Run) {
        let ended = locked(&run.under_way).take();
        let counts = ended.is_some();
        drop(ended);
        let again = self.sleep.begin(self);
        *locked(&run.under_way) = counts.then_some(again);
    }
}

/// Adds the job's own actions.
pub(super) fn add_actions(shared: &Arc<JobShared>) {
    let job = Arc::downgrade(shared);
    let record = move |run: &Run| match job.upgrade() {
        Some(job) => job.record_run(run).map_err(Into::into),
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
