//! Runs: the steps that a program repeats, with a [`Job`]'s actions before and after them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cudarc::driver::CudaStream;
use larder_control::{ActionFailed, FileError, Group, OnError, Statistics, Waited};
use larder_core::sync::{AtomicU64, Ordering};

use super::device_time::{EndedRun, QueuedRun};
use super::limits::{Adjustment, NoDevice, StatusCheck};
use super::sleep::UnderWay;
use super::status::Recorded;
use super::{Job, JobShared, Pauses};
use crate::Returned;
use crate::driver::locked;

/// A run, as its actions see it: the number of its graph and, after the work, its duration.
#[derive(Debug)]
pub struct Run {
    /// The number by which the status distinguishes graphs.
    pub graph: u64,
    /// Zero before the work. After the work, the host's time since before the pre-run actions or, if the
    /// device has already finished the run, the device's time for it.
    pub duration: Duration,
    /// The runs that the status records when this run ends: this run itself, or queued runs that are done.
    ended: Vec<EndedRun>,
    /// Whether the pacer spreads the pauses over the launches, instead of one pause at the end.
    is_step: bool,
    end: Mutex<RunEnd>,
    /// Counts this run as under way. `None` in a program's own loop.
    under_way: Mutex<Option<UnderWay>>,
}

/// The outcome of the end of a run.
#[derive(Debug)]
#[must_use = "it has the warnings"]
#[non_exhaustive]
pub struct RunEnd {
    /// The effect on the status. `None` if the status could not be written (the error is among the
    /// warnings), or if all runs that it lacks are still on the device.
    pub recorded: Option<Recorded>,
    /// The outcomes of setting the limits that were waiting, by GPU.
    pub adjusted: Vec<Result<Adjustment, NoDevice>>,
    /// How the pause ended.
    pub paused: Waited,
    /// The errors of actions that warn instead of failing the run.
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

/// Counts of runs under way. A program with its own loop reports only the ends of its runs.
#[derive(Debug, Default)]
pub(super) struct RunProgress {
    inside: AtomicU64,
    pausing: AtomicU64,
    own_loops: AtomicU64,
}

impl RunProgress {
    /// Returns whether no known run is under way, or a run has ended and is in its pause. A run that begins
    /// at the same moment is not disturbed, since lowering a limit never waits.
    pub(super) fn is_between_runs(&self) -> bool {
        // Relaxed: a run that begins at the same moment is not disturbed, so nothing depends on the order of
        // the loads.
        let count = |number: &AtomicU64| number.load(Ordering::Relaxed);
        count(&self.pausing) > 0 || count(&self.inside) + count(&self.own_loops) == 0
    }
}

/// Keeps a counter incremented until this is dropped, even by a panic.
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
    /// Runs a graph: the actions before it, `work`, and the actions after it, which include the job's own
    /// ([`Job::actions`]). The host's clock times the run: for queued work that is not waited for, use
    /// [`run_on`](Self::run_on). Returns after the pause that the share of the time demands; a suspended job
    /// waits here.
    ///
    /// One run at a time is paced: if two runs overlap, the one that begins later ends the step of the other,
    /// and the share applies to both together.
    ///
    /// # Errors
    /// The first action that fails the run. If an action before the work fails, the work does not run and no
    /// value is returned. If an action after it fails, the work's value is returned, and actions of later
    /// phases do not run.
    pub fn run<R>(
        &self,
        graph: u64,
        work: impl FnOnce() -> R,
    ) -> Result<(R, RunEnd), Returned<Option<R>, ActionFailed>> {
        self.run_timed(None, graph, work)
    }

    /// Runs a graph as [`run`](Self::run) does, but with work that is queued on the stream and not waited
    /// for: for loops that run ahead of the device. The device times the run, from its beginning on the
    /// stream to the end of its work there; work on other streams counts only as far as this stream waits for
    /// it. Runs that overlap on the device each count in full.
    ///
    /// Below full share the job waits for the device before a pause, so that queued work does not hide the
    /// pause; the pauses of short runs are joined. If 4 runs are on the device (64 at full share), a new run
    /// waits for the oldest. The status includes a run once the device has finished it. Two events are
    /// recorded for each run; if the driver refuses them, or the stream is being captured, the host's clock
    /// times the run. The job keeps the stream's context alive.
    ///
    /// # Errors
    /// The first action that fails the run, as for [`run`](Self::run).
    pub fn run_on<R>(
        &self,
        stream: &Arc<CudaStream>,
        graph: u64,
        work: impl FnOnce() -> R,
    ) -> Result<(R, RunEnd), Returned<Option<R>, ActionFailed>> {
        self.run_timed(Some(stream), graph, work)
    }

    /// Runs a graph, timed by the device if a stream is given.
    fn run_timed<R>(
        &self,
        stream: Option<&Arc<CudaStream>>,
        graph: u64,
        work: impl FnOnce() -> R,
    ) -> Result<(R, RunEnd), Returned<Option<R>, ActionFailed>> {
        let shared = &*self.shared;
        // The job may sleep here, so the run begins on the device only afterwards.
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

    /// Ends a run of the program's own loop. `duration` is the time of the run, including the job's pauses in
    /// it. The pause is made here, by AntMan's formula; inside such runs only a suspension delays launches.
    ///
    /// # Errors
    /// The first action that fails a run.
    pub fn end_run(&self, graph: u64, duration: Duration) -> Result<RunEnd, ActionFailed> {
        // Relaxed: no other memory is published through the number.
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

    /// Notes the run as ended, timed by the host's clock.
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

    /// Ends a run whose work is all queued. Waits for the device if a pause follows.
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

    /// Records the queued runs that the device has finished, without waiting for the others.
    pub(super) fn record_queued(&self) {
        self.queued.collect(false, &self.pacer);
        // The report contains the error.
        let _ = self.record_ended(&self.queued.take_ended());
    }

    /// Phase 1: records the run, and writes the status if a check is due.
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
        // Nothing is recorded inside a callback of the thread that has the statistics.
        self.with_statistics(record).unwrap_or(Ok(None))
    }

    /// Phase 2: sets the waiting limits, writes the status if it has changed, and pauses.
    fn manage(&self, run: &Run) {
        let obeyed = self.with_statistics(|statistics| {
            let adjusted = self.obey();
            if adjusted.is_empty() {
                self.managed.shrink();
            }
            if self.bell.take() {
                // The report contains the error.
                let _ = self.check(statistics, StatusCheck::Early);
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

    /// Sleeps here while the control file demands it.
    fn sleep_after(&self, run: &Run) {
        let ended = locked(&run.under_way).take();
        let counts = ended.is_some();
        drop(ended);
        self.sleep.note_ended();
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
