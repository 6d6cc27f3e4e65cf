//! [`QueuedRuns`]: runs whose work is queued on a stream, each timed by a pair of device events.
//!
//! QUEUED1 The lock is held only for changes to lists: a run whose events are being queried or waited for is
//! in no list.
//! QUEUED2 A refusal by the driver is never an error: the host's clock then times the run.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cudarc::driver::CudaStream;
use larder_control::{Clock, Pacer, PerfControl};

use crate::driver::{CaptureStatus, DriverError, locked};
use crate::{Context, Event, EventConfig};

/// Maximum number of runs on the device; another run waits for the oldest one. The rest are enough to keep
/// the device busy during the wait.
const MOST: usize = 64;
/// Maximum number of runs on the device at less than full share. The time of a run becomes known at most this
/// many runs later.
const MOST_PACED: usize = 4;

type JobPacer = Pacer<Arc<dyn Clock>>;

/// The runs of a job that are on the device, and the runs that the device has finished.
#[derive(Default)]
pub(super) struct QueuedRuns(Mutex<RunLists>);

#[derive(Default)]
struct RunLists {
    /// The newest run under way.
    current: Option<Timer>,
    /// Runs whose end is recorded, oldest first.
    on_device: VecDeque<RunOnDevice>,
    ended: Vec<EndedRun>,
    /// Events of runs that have ended.
    spare: Vec<Arc<Pair>>,
    runs: u64,
}

/// The two events that time a run.
struct Pair {
    context: Context,
    start: Event,
    end: Event,
}

#[derive(Clone)]
struct Timer {
    stream: Arc<CudaStream>,
    pair: Arc<Pair>,
}

struct RunOnDevice {
    run: EndedRun,
    pair: Arc<Pair>,
    /// Time for which the job was paused or suspended during the run.
    idle: Duration,
}

/// A run that is over.
#[derive(Debug)]
pub(super) struct EndedRun {
    pub(super) number: u64,
    pub(super) graph: u64,
    pub(super) took: Duration,
}

/// A run under way. If it is dropped before its end, it does not count.
pub(super) struct QueuedRun<'q> {
    runs: &'q QueuedRuns,
    timer: Timer,
    /// Total time for which the job had been paused or suspended when the run began.
    idle: Duration,
}

impl QueuedRuns {
    /// Begins to time the work that is queued on the stream from now on; returns `None` if that is not
    /// possible.
    pub(super) fn begin(
        &self,
        stream: &Arc<CudaStream>,
        pacer: &JobPacer,
        perf: PerfControl,
    ) -> Option<QueuedRun<'_>> {
        let most = if perf.is_full() { MOST } else { MOST_PACED };
        while locked(&self.0).on_device.len() >= most && self.collect_one(true, pacer) {}
        let timer = Timer {
            stream: Arc::clone(stream),
            pair: self.pair(stream)?,
        };
        timer.record(&timer.pair.start)?;
        locked(&self.0).current = Some(timer.clone());
        Some(QueuedRun {
            runs: self,
            timer,
            idle: idle(pacer),
        })
    }

    /// Returns the number of runs on the device, including finished ones that are not yet collected.
    pub(super) fn count(&self) -> u64 {
        locked(&self.0).on_device.len() as u64
    }

    /// Reports the finished runs to the pacer; if `waits`, waits for the others and reports them, too.
    pub(super) fn collect(&self, waits: bool, pacer: &JobPacer) {
        while self.collect_one(waits, pacer) {}
    }

    /// Waits until the device has finished the work that the runs have queued so far.
    pub(super) fn drain(&self, pacer: &JobPacer) {
        self.collect(true, pacer);
        let current = locked(&self.0).current.clone();
        if let Some(timer) = current
            && timer.record(&timer.pair.end).is_some()
        {
            // The pause is made even after a refusal (QUEUED2).
            let _ = timer.pair.end.synchronize();
        }
    }

    /// Returns the runs that have ended since the last call.
    pub(super) fn take_ended(&self) -> Vec<EndedRun> {
        core::mem::take(&mut locked(&self.0).ended)
    }

    /// Reports the oldest run. Returns false if there is none, or if the device has not finished it and
    /// `waits` is false.
    fn collect_one(&self, waits: bool, pacer: &JobPacer) -> bool {
        let Some(mut oldest) = locked(&self.0).on_device.pop_front() else {
            return false;
        };
        match oldest.pair.took(waits) {
            Ok(Some(took)) => oldest.run.took = took,
            Ok(None) => {
                locked(&self.0).on_device.push_front(oldest);
                return false;
            }
            Err(_) => {}
        }
        pacer.ran(oldest.run.took.saturating_sub(oldest.idle));
        let mut lists = locked(&self.0);
        lists.ended.push(oldest.run);
        if lists.spare.len() < MOST {
            lists.spare.push(oldest.pair);
        }
        true
    }

    /// Returns a pair of events in the stream's context.
    fn pair(&self, stream: &Arc<CudaStream>) -> Option<Arc<Pair>> {
        let fits = |pair: &Arc<Pair>| Arc::ptr_eq(pair.context.cudarc(), stream.context());
        let mut lists = locked(&self.0);
        let index = lists.spare.iter().position(fits);
        let spare = index.map(|index| lists.spare.swap_remove(index));
        drop(lists);
        spare.or_else(|| Pair::new(stream).map(Arc::new))
    }
}

impl QueuedRun<'_> {
    /// Ends the run, whose work is all queued; `took` is its time by the host's clock. Returns the run's
    /// number.
    pub(super) fn end(self, graph: u64, took: Duration, pacer: &JobPacer) -> u64 {
        let is_timed = self.timer.record(&self.timer.pair.end).is_some();
        let idle = idle(pacer).saturating_sub(self.idle);
        let mut lists = locked(&self.runs.0);
        lists.runs += 1;
        let number = lists.runs;
        let run = EndedRun {
            number,
            graph,
            took,
        };
        if is_timed {
            let pair = Arc::clone(&self.timer.pair);
            lists.on_device.push_back(RunOnDevice { run, pair, idle });
        } else {
            lists.ended.push(run);
            drop(lists);
            pacer.ran(took.saturating_sub(idle));
        }
        number
    }
}

impl Drop for QueuedRun<'_> {
    fn drop(&mut self) {
        let mut lists = locked(&self.runs.0);
        let is_ours = |timer: &Timer| Arc::ptr_eq(&timer.pair, &self.timer.pair);
        let current = lists.current.take_if(|timer| is_ours(timer));
        drop(lists);
        drop(current);
    }
}

impl Timer {
    /// Records an event after the queued work; `None` if the stream is being captured, or the driver refuses.
    fn record(&self, event: &Event) -> Option<()> {
        let status = self.pair.context.capture_status(&self.stream).ok()?;
        if status != CaptureStatus::None {
            return None;
        }
        event.record(&self.stream).ok()
    }
}

impl Pair {
    fn new(stream: &CudaStream) -> Option<Self> {
        let context = Context::from_cudarc(Arc::clone(stream.context())).ok()?;
        let config = EventConfig {
            timing: true,
            blocking: false,
        };
        Some(Self {
            start: Event::new(&context, config).ok()?,
            end: Event::new(&context, config).ok()?,
            context,
        })
    }

    /// Returns the time between the events; `None` if the work is not done and `waits` is false.
    fn took(&self, waits: bool) -> Result<Option<Duration>, DriverError> {
        if waits {
            self.end.synchronize()?;
        } else if !self.end.query()? {
            return Ok(None);
        }
        let ms = self.start.elapsed_ms(&self.end)?;
        // A negative or invalid time counts as zero.
        let took = Duration::try_from_secs_f64(f64::from(ms) / 1e3);
        Ok(Some(took.unwrap_or_default()))
    }
}

/// Returns the total time for which the pacer has held the job back.
fn idle(pacer: &JobPacer) -> Duration {
    let report = pacer.report();
    report.inserted.saturating_add(report.suspended)
}
