//! Plays one trace on one contender and measures it.
//!
//! There are three kinds of runs, each with a new contender:
//! * *timed*: between two readings of the clock, the run does only the contender's `alloc` and
//!   `free`; the tables of the loop are allocated before. The time of a simulated driver's calls is
//!   subtracted;
//! * *timed one by one*: the same, with two readings of the clock for each event. The time of an
//!   event is the minimum over several runs, since another process rarely disturbs the same event
//!   in all of them;
//! * *sampled*: live and reserved bytes are recorded after every event, and every new block is
//!   checked against all live ones. A defect is a [`Violation`], never a figure in a table.
//!
//! A run has one or more *passes*: first the trace, then its last step (or all of it) repeatedly,
//! as in a program that loops.
//!
//! The memory needed grows with the number of live blocks, not with the length of the trace:
//! * a trace is read once, event by event, onto a [`tape`], so defects of the file are found before
//!   any event is played, and standard input works too;
//! * each run of each contender reads the tape from its start, a batch at a time;
//! * the tables of a run have one place for each block that may be live at the same time.
//!
//! Contenders may keep more; a contender that plans keeps a step. The record for an HTML page or a
//! snapshot grows with the number of events that it shows.
//!
//! A replay runs on one thread, without locks.

mod contender;
#[cfg(test)]
mod figures_tests;
pub(crate) mod heaps;
mod history;
mod live_map;
mod outcome;
mod page;
#[cfg(test)]
mod pass_tests;
mod recorded;
mod refusal;
mod registry;
pub(crate) mod report;
#[cfg(test)]
mod report_tests;
mod script;
mod smallest;
mod spare;
mod tape;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod unwatched;
#[cfg(test)]
mod upstream_agrees_tests;
mod verdict;
#[cfg(test)]
mod verdict_tests;
mod would_fit;
#[cfg(test)]
mod would_fit_tests;

use std::hint::black_box;
use std::io;
use std::num::NonZeroU32;
use std::slice;
use std::time::{Duration, Instant};

use clap::Args;

pub(crate) use contender::{
    CallsByName, Contender, ContenderBlock, ContenderSpec, DriverCalls, StepFigures, beyond,
};
pub(crate) use history::{Change, ReplayHistory};
use live_map::LiveMap;
pub(crate) use outcome::{Outcome, Refused, ReplayError, ReplayFault, Violation, no_tape};
pub(crate) use recorded::record;
pub(crate) use refusal::RefusedRequests;
pub(crate) use registry::{CONTENDERS, OF_STEPS, PYTORCH_SET, SHOWN};
pub(crate) use script::{Repeat, ReplayScript};
pub(crate) use smallest::SmallestDevice;
pub(crate) use spare::Spare;
pub(crate) use tape::{RecordedTape, TapeWriter};
#[cfg(test)]
pub(crate) use unwatched::replay;

use crate::interrupt;
use crate::planned;
use larder_jobs::units::parse_bytes;
use tape::{Played, TapeAction};

/// Timed runs per replay. The fastest counts, because a disturbance (another process, a page fault)
/// only makes a run slower.
const TIMED_RUNS: u32 = 3;

/// Number of runs of a replay: one sampled, and equal numbers of timed ones and of ones timed one
/// by one.
const RUNS: f64 = 1.0 + 2.0 * TIMED_RUNS as f64;

/// Maximum number of events timed one by one, from the start of the replay. There is a maximum
/// because each time is kept.
const TIMED_EVENTS: usize = 1 << 20;

/// Events between two reports of progress and checks for Ctrl-C.
const EVENTS_PER_LOOK: u64 = 1 << 12;

/// Settings of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Args)]
pub(crate) struct Options {
    /// Size of the simulated device, such as 8GiB; without it, no limit
    #[arg(long, value_name = "N", value_parser = parse_bytes, allow_negative_numbers = true)]
    pub(crate) device_bytes: Option<u64>,

    /// Number of passes; every pass after the first plays only the part that --repeat names
    #[arg(
        long,
        value_name = "N",
        default_value = "1",
        allow_negative_numbers = true
    )]
    pub(crate) passes: NonZeroU32,

    /// The part that later passes play
    #[arg(long, value_name = "WHAT", default_value = "last-step")]
    pub(crate) repeat: Repeat,

    /// Also find the smallest device each allocator needs
    ///
    /// From 1 to 1.3 times the peak live bytes.
    #[arg(long)]
    pub(crate) smallest_device: bool,

    /// Plans that another run saved, for contenders that plan; already validated.
    #[arg(skip)]
    pub(crate) plans: Option<&'static [u8]>,

    /// Whether each replay is recorded for the HTML page.
    #[arg(skip)]
    pub(crate) history: bool,
}

/// Returns the number that identifies a program in saved plans: a hash of its trace's name.
pub(crate) fn program_number(name: &str) -> u64 {
    name.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
    })
}

/// Replays a script with new contenders built by `spec`, and reports its progress, from 0 to 1, to
/// `watch`. A [`Violation`] means that the contender returned overlapping blocks, counted fewer
/// reserved bytes than live ones, or broke a rule of its device.
pub(crate) fn replay_watched(
    spec: &ContenderSpec,
    script: &mut ReplayScript,
    options: &Options,
    watch: &dyn Fn(f64),
) -> Result<Outcome, ReplayError> {
    let mut slots = vec![ContenderBlock::default(); script.places()];
    let mut replay = Replay::new(spec, script, options, watch, &mut slots)?;
    let history = options.history.then(ReplayHistory::default);
    let mut outcome = replay.sampled_run(options.device_bytes, &mut slots, history)?;
    let mut fastest: Option<Timed> = None;
    for run in 0..TIMED_RUNS {
        watch(f64::from(1 + run) / RUNS);
        let timed = replay.timed_run(options.device_bytes, &mut slots)?;
        if timed.operations > 0 && fastest.as_ref().is_none_or(|best| timed.time < best.time) {
            fastest = Some(timed);
        }
    }
    outcome.ns_per_operation =
        fastest.map(|run| run.time.as_nanos() as f64 / run.operations as f64);
    outcome.worst_ns = replay.worst_ns(options.device_bytes, &mut slots)?;
    if options.smallest_device && outcome.completed {
        outcome.smallest_device = replay.smallest_device(outcome.peak_live_bytes, &mut slots)?;
    }
    outcome.refused_requests = replay.refused_requests(options.device_bytes, &mut slots)?;
    Ok(outcome)
}

/// A contender and its script.
struct Replay<'r> {
    spec: &'r ContenderSpec,
    script: &'r mut ReplayScript,
    /// Plans to load, if the contender's plans can be saved.
    plans: Option<Vec<u8>>,
    watch: &'r dyn Fn(f64),
}

/// The result of a timed run.
struct Timed {
    time: Duration,
    operations: u64,
    completed: bool,
}

impl<'r> Replay<'r> {
    /// Prepares a replay. A contender that plans starts with the saved plans, or with the plans of
    /// a hidden run without a limit. A program repeats its steps thousands of times, so the figures
    /// should show the contender with plans.
    fn new(
        spec: &'r ContenderSpec,
        script: &'r mut ReplayScript,
        options: &Options,
        watch: &'r dyn Fn(f64),
        slots: &mut [ContenderBlock],
    ) -> io::Result<Self> {
        let plans = options.plans.map(<[u8]>::to_vec);
        let mut replay = Self {
            spec,
            script,
            plans,
            watch,
        };
        let mut first = replay.build(None);
        if replay.plans.is_none() && first.planner().is_some() {
            let mut timed = Timed::new();
            replay.each_batch(|batch| {
                timed.play(first.as_mut(), batch, slots);
                timed.completed
            })?;
            replay.plans = replay.saved(first.as_mut());
        }
        Ok(replay)
    }

    /// Returns the plans that a contender learned, if they can be saved.
    fn saved(&self, contender: &mut dyn Contender) -> Option<Vec<u8>> {
        let program = program_number(self.script.trace().name());
        let steps = contender.planner()?;
        Some(planned::save(steps, program))
    }
}

impl Replay<'_> {
    /// Builds a new contender. Loads the plans, if there are any and the contender plans.
    fn build(&self, device_bytes: Option<u64>) -> Box<dyn Contender> {
        let mut contender = (self.spec.build)(device_bytes);
        if let (Some(plans), Some(steps)) = (&self.plans, contender.planner()) {
            // The plans were validated when their file was read.
            let _ = planned::load(steps, program_number(self.script.trace().name()), plans);
        }
        contender
    }

    fn timed_run(
        &mut self,
        device_bytes: Option<u64>,
        slots: &mut [ContenderBlock],
    ) -> io::Result<Timed> {
        let mut contender = self.build(device_bytes);
        let mut timed = Timed::new();
        self.each_batch(|batch| {
            timed.play(contender.as_mut(), batch, slots);
            timed.completed
        })?;
        timed.time = timed.time.saturating_sub(contender.driver_time());
        Ok(timed)
    }

    /// Returns the longest time of an event; see [`Outcome::worst_ns`].
    fn worst_ns(
        &mut self,
        device_bytes: Option<u64>,
        slots: &mut [ContenderBlock],
    ) -> io::Result<Option<u32>> {
        let mut least: Vec<u32> = Vec::new();
        for run in 0..TIMED_RUNS {
            (self.watch)(f64::from(1 + TIMED_RUNS + run) / RUNS);
            let mut contender = self.build(device_bytes);
            let mut place = 0;
            self.each_batch(|batch| {
                for event in batch {
                    let mut timed = Timed::new();
                    let before = contender.driver_time();
                    timed.play(contender.as_mut(), slice::from_ref(event), slots);
                    if !timed.completed || place == TIMED_EVENTS {
                        return false;
                    }
                    let own = timed.time.saturating_sub(contender.driver_time() - before);
                    let own = match event.act {
                        TapeAction::StartOver => 0,
                        _ => u32::try_from(own.as_nanos()).unwrap_or(u32::MAX),
                    };
                    match least.get_mut(place) {
                        Some(least) => *least = own.min(*least),
                        None => least.push(own),
                    }
                    place += 1;
                }
                true
            })?;
        }
        Ok(least.into_iter().max())
    }

    /// Passes the batches of all passes to `play`, until `play` returns false.
    fn each_batch(&mut self, mut play: impl FnMut(&[Played]) -> bool) -> io::Result<()> {
        for pass in self.script.passes() {
            let mut batches = self.script.tape(pass).batches()?;
            loop {
                let batch = batches.next()?;
                if batch.is_empty() {
                    break;
                }
                if !play(batch) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn sampled_run(
        &mut self,
        device_bytes: Option<u64>,
        slots: &mut [ContenderBlock],
        history: Option<ReplayHistory>,
    ) -> Result<Outcome, ReplayError> {
        let mut contender = self.build(device_bytes);
        contender.judge();
        let mut samples = Samples {
            history,
            ..Samples::default()
        };
        let mut stopped = None;
        let mut calls_by_pass = Vec::new();
        let mut calls_by_name = contender.calls_by_name();
        let mut calls_by_name_by_pass = calls_by_name.is_some().then(Vec::new);
        let mut reserved_by_pass = Vec::new();
        for pass in self.script.passes() {
            let before = contender.driver_calls();
            let refused = self.sampled_pass(pass, &mut samples, contender.as_mut(), slots)?;
            if let (Some(before), Some(after)) = (before, contender.driver_calls()) {
                calls_by_pass.push(after.total() - before.total());
            }
            if let Some(by_pass) = &mut calls_by_name_by_pass {
                let now = contender.calls_by_name().unwrap_or_default();
                by_pass.push(beyond(&now, &calls_by_name.unwrap_or_default(), 1));
                calls_by_name = Some(now);
            }
            reserved_by_pass.push(samples.pass_reserved_bytes);
            if let Some(Played { number, act }) = refused {
                let reserved_bytes = contender.reserved_bytes();
                let refused = Refused::new(act, samples.live.bytes, reserved_bytes);
                stopped = Some((number, pass, refused));
                break;
            }
        }
        let plans = self.saved(contender.as_mut());
        let max_reserved_bytes = contender.max_reserved_bytes().unwrap_or(0);
        let driver_calls = contender.driver_calls();
        Ok(Outcome {
            allocations: samples.allocations,
            streams: self.script.streams(),
            peak_live_bytes: samples.peak_live_bytes,
            peak_reserved_bytes: samples.peak_reserved_bytes.max(max_reserved_bytes),
            driver_allocations: contender.driver_allocations(),
            driver_frees: contender.driver_frees(),
            driver_calls,
            calls_by_pass: driver_calls.map(|_| calls_by_pass),
            driver: contender.driver(),
            calls_by_name,
            calls_by_name_by_pass,
            reserved_by_pass,
            steps: contender.steps(),
            plans,
            ns_per_operation: None,
            worst_ns: None,
            completed: stopped.is_none(),
            stopped_at_event: stopped.map(|(event, ..)| event),
            stopped_in_pass: stopped.map(|(_, pass, _)| pass),
            refused: stopped.map(|(.., refused)| refused),
            notes: self.script.trace().notes().to_vec(),
            trace_live_bytes: self.script.peak_live_bytes(),
            smallest_device: None,
            refused_requests: None,
            pytorch_settings: self.script.trace().pytorch_settings().map(str::to_owned),
            recorded_held_bytes: self.script.trace().held_bytes(),
            history: samples
                .history
                .map(|history| history.of(self.script.trace())),
        })
    }

    /// Plays one pass. Returns the event that was refused, if any.
    fn sampled_pass(
        &mut self,
        pass: u32,
        samples: &mut Samples,
        contender: &mut dyn Contender,
        slots: &mut [ContenderBlock],
    ) -> Result<Option<Played>, ReplayError> {
        let (all, leftovers) = (self.script.events() as f64, self.script.leftovers(pass));
        let trace = self.script.trace().name().to_owned();
        let mut batches = self.script.tape(pass).batches()?;
        let start = samples.events;
        loop {
            let batch = batches.next()?;
            for event in batch {
                if samples.events.is_multiple_of(EVENTS_PER_LOOK) {
                    (self.watch)(samples.events as f64 / all / RUNS);
                    if interrupt::asked() {
                        return Err(ReplayError::Interrupted);
                    }
                }
                if samples.events - start == leftovers {
                    samples.pass_reserved_bytes = 0;
                }
                samples.events += 1;
                match samples.play(contender, event.act, slots) {
                    Ok(true) => {}
                    Ok(false) => return Ok(Some(*event)),
                    Err(fault) => {
                        return Err(ReplayError::Violation(Violation {
                            allocator: self.spec.name,
                            trace,
                            event: event.number,
                            pass,
                            fault,
                        }));
                    }
                }
            }
            if batch.is_empty() {
                return Ok(None);
            }
        }
    }
}

impl Timed {
    const fn new() -> Self {
        Self {
            time: Duration::ZERO,
            operations: 0,
            completed: true,
        }
    }

    /// Plays events until one is refused. Apart from the contender's own work, this only writes one
    /// table entry for each block.
    fn play(
        &mut self,
        contender: &mut dyn Contender,
        events: &[Played],
        slots: &mut [ContenderBlock],
    ) {
        let start = Instant::now();
        for event in events {
            match event.act {
                TapeAction::Alloc {
                    place,
                    bytes,
                    stream,
                    ..
                } => match contender.alloc_on(stream, bytes) {
                    Some(slot) => slots[place] = slot,
                    None => {
                        self.completed = false;
                        break;
                    }
                },
                TapeAction::Free { place } => contender.free(slots[place]),
                TapeAction::Step { .. } => {
                    contender.end_step();
                    continue;
                }
                TapeAction::StartOver => {
                    contender.start_over();
                    continue;
                }
            }
            self.operations += 1;
        }
        self.time += start.elapsed();
        black_box(slots);
    }
}

/// The samples of a sampled run.
#[derive(Default)]
struct Samples {
    live: LiveMap,
    /// Number of events of all passes so far.
    events: u64,
    allocations: u64,
    peak_live_bytes: u64,
    peak_reserved_bytes: u64,
    /// Maximum bytes held in the current pass.
    pass_reserved_bytes: u64,
    history: Option<ReplayHistory>,
}

impl Samples {
    /// Plays an event. Returns whether it was served.
    fn play(
        &mut self,
        contender: &mut dyn Contender,
        act: TapeAction,
        slots: &mut [ContenderBlock],
    ) -> Result<bool, ReplayFault> {
        let mut served = true;
        match act {
            TapeAction::Alloc {
                id,
                place,
                bytes,
                stream,
            } => match contender.alloc_on(stream, bytes) {
                Some(slot) => {
                    slots[place] = slot;
                    self.live.insert(id, slot.address, bytes)?;
                    self.allocations += 1;
                }
                None => served = false,
            },
            TapeAction::Free { place } => {
                contender.free(slots[place]);
                self.live.remove(slots[place].address);
            }
            TapeAction::Step { .. } => contender.end_step(),
            TapeAction::StartOver => contender.start_over(),
        }
        if let Some(rule) = contender.broken_rule() {
            return Err(ReplayFault::BrokenRule(rule));
        }
        if served {
            self.note(contender.reserved_bytes())?;
            if let Some(history) = &mut self.history {
                history.note(act, slots, contender);
            }
        }
        Ok(served)
    }

    fn note(&mut self, reserved_bytes: u64) -> Result<(), ReplayFault> {
        let live_bytes = self.live.bytes;
        if reserved_bytes < live_bytes {
            return Err(ReplayFault::ReservedBelowLive {
                reserved_bytes,
                live_bytes,
            });
        }
        self.peak_live_bytes = self.peak_live_bytes.max(live_bytes);
        self.peak_reserved_bytes = self.peak_reserved_bytes.max(reserved_bytes);
        self.pass_reserved_bytes = self.pass_reserved_bytes.max(reserved_bytes);
        Ok(())
    }
}
