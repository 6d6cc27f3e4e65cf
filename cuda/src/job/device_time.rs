//! [`QueuedRuns`]: runs whose work is queued on a stream, each timed by a pair of the device's
//! events.
//!
//! QUEUED1 The lock is for lists only: a run whose events are asked or waited for is in no list
//! meanwhile.
//! QUEUED2 What the driver refuses is never an error: the run then counts by the host's clock.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cudarc::driver::CudaStream;
use larder_control::{Clock, Pacer, PerfControl};

use crate::driver::{CaptureStatus, DriverError, locked};
use crate::{Context, Event, EventConfig};

/// So many runs may be on the device before the oldest is waited for: enough that it does not idle
/// meanwhile.
const MOST: usize = 64;
/// So many at less than full share. What the device says of runs is late by so many.
const MOST_PACED: usize = 4;

type JobPacer = Pacer<Arc<dyn Clock>>;

/// The runs of a job that are on the device, and those that the device has done.
#[derive(Default)]
pub(super) struct QueuedRuns(Mutex<RunLists>);

#[derive(Default)]
struct RunLists {
    /// The newest run that is under way.
    current: Option<Timer>,
    /// Runs whose end is recorded, the oldest first.
    on_device: VecDeque<OnDevice>,
    ended: Vec<EndedRun>,
    /// Events of runs that have ended.
    spare: Vec<Arc<Pair>>,
    runs: u64,
}

/// Two events that keep the time.
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

struct OnDevice {
    run: EndedRun,
    pair: Arc<Pair>,
    /// Pauses and suspensions in it.
    idle: Duration,
}

/// A run that is over.
#[derive(Debug)]
pub(super) struct EndedRun {
    pub(super) number: u64,
    pub(super) graph: u64,
    pub(super) took: Duration,
}

/// A run that is under way. Dropped without its end, it counts for nothing.
pub(super) struct QueuedRun<'q> {
    runs: &'q QueuedRuns,
    timer: Timer,
    /// The pacer's pauses and suspensions when it began.
    idle: Duration,
}

impl QueuedRuns {
    /// Times what is queued on the stream from now on; `None` if that cannot be.
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

    /// How many runs are on the device, as far as is known.
    pub(super) fn count(&self) -> u64 {
        locked(&self.0).on_device.len() as u64
    }

    /// Reports runs that the device has done to the pacer. Waits for those that it has not, if
    /// asked to.
    pub(super) fn collect(&self, waits: bool, pacer: &JobPacer) {
        while self.collect_one(waits, pacer) {}
    }

    /// Waits until the device has done what the runs have queued so far.
    pub(super) fn drain(&self, pacer: &JobPacer) {
        self.collect(true, pacer);
        let current = locked(&self.0).current.clone();
        if let Some(timer) = current
            && timer.record(&timer.pair.end).is_some()
        {
            // If it is refused, the pause is made all the same (QUEUED2).
            let _ = timer.pair.end.synchronize();
        }
    }

    /// The runs that have ended since this was last asked.
    pub(super) fn take_ended(&self) -> Vec<EndedRun> {
        core::mem::take(&mut locked(&self.0).ended)
    }

    /// Reports the oldest run; false if there is none, or the device has not done it.
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

    /// Events of the stream's context.
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
    /// All of the run is queued, and took so long by the host's clock. The run's number.
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
            lists.on_device.push_back(OnDevice { run, pair, idle });
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
    /// Records an event where the work is queued; `None` if the stream captures, or the driver
    /// refuses.
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

    /// How long the work between the events took; `None` if it is not done and not waited for.
    fn took(&self, waits: bool) -> Result<Option<Duration>, DriverError> {
        if waits {
            self.end.synchronize()?;
        } else if !self.end.query()? {
            return Ok(None);
        }
        let ms = self.start.elapsed_ms(&self.end)?;
        // What is no time is none.
        let took = Duration::try_from_secs_f64(f64::from(ms) / 1e3);
        Ok(Some(took.unwrap_or_default()))
    }
}

/// The time that the pacer has held the job back.
fn idle(pacer: &JobPacer) -> Duration {
    let report = pacer.report();
    report.inserted.saturating_add(report.suspended)
}
