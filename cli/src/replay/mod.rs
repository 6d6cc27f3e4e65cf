//! Drives one contender through one trace and measures it.
//!
//! Three kinds of runs, each with a fresh contender:
//! * *timed*: only the contender's `alloc` and `free` between two readings of the clock; the tables
//!   of the loop are allocated before. The time of a simulated driver's calls is subtracted;
//! * *timed one by one*: as timed, with two readings of the clock for each event. For each event
//!   the least time of several runs counts, since another process hardly ever disturbs the same
//!   event in all of them;
//! * *sampled*: after every event live and reserved bytes are recorded, and every block is checked
//!   against all live ones. A defect found is a [`Violation`], never a figure in a table.
//!
//! A run has one or more *passes*: the trace, and then its last step (or all of it) again and
//! again, as in a program that loops.
//!
//! Memory grows with the blocks that are live at once, and not with the trace:
//! * a trace is read once, event by event, onto a [`tape`]: defects of its file are found before
//!   any event is played, and standard input is read once;
//! * each run of each contender reads the tape from its start, a batch at a time;
//! * the runs keep tables of places, as many as blocks are live at once.
//!
//! Contenders may keep more: those that plan keep a step. The record for a page or a snapshot grows
//! with the events that it shows.
//!
//! No lock: a replay runs on one thread.

mod contender;
#[cfg(test)]
mod figures_tests;
mod history;
mod live_map;
#[cfg(test)]
mod pass_tests;
mod recorded;
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
mod upstream_agrees_tests;
mod verdict;
#[cfg(test)]
mod verdict_tests;

use std::hint::black_box;
use std::io;
use std::num::NonZeroU32;
use std::slice;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use thiserror::Error;

pub(crate) use contender::ContenderBlock;
pub(crate) use contender::{
    CallsByName, Contender, ContenderSpec, DriverCalls, StepFigures, beyond,
};
pub(crate) use history::{Change, ReplayHistory};
use live_map::{LiveBlock, LiveMap};
pub(crate) use recorded::record;
pub(crate) use registry::{CONTENDERS, PYTORCH_SET, SHOWN};
pub(crate) use script::{Repeat, ReplayScript};
pub(crate) use smallest::SmallestDevice;
pub(crate) use spare::Spare;
pub(crate) use tape::{RecordedTape, TapeWriter};

use crate::interrupt;
use crate::planned;
use larder_jobs::units::parse_bytes;
#[cfg(test)]
use larder_trace::Trace;
use tape::{Played, TapeAction};

/// Timed runs per replay. The fastest counts, because a disturbance (another process, a page fault)
/// only ever makes a run slower.
const TIMED_RUNS: u32 = 3;

/// All runs of a replay: the sampled one, the timed ones, and as many timed one by one.
const RUNS: f64 = 1.0 + 2.0 * TIMED_RUNS as f64;

/// Number of events timed one by one: the first of a longer replay, since each time is kept.
const TIMED_EVENTS: usize = 1 << 20;

/// Events between two reports of progress and checks for Ctrl-C.
const EVENTS_PER_LOOK: u64 = 1 << 12;

/// Settings of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Args)]
pub(crate) struct Options {
    /// Size of the simulated device, such as 8GiB; without it, no limit
    #[arg(long, value_name = "N", value_parser = parse_bytes, allow_negative_numbers = true)]
    pub(crate) device_bytes: Option<u64>,

    /// Number of passes; those after the first play the part that --repeat names
    #[arg(
        long,
        value_name = "N",
        default_value = "1",
        allow_negative_numbers = true
    )]
    pub(crate) passes: NonZeroU32,

    /// The part that passes after the first play
    #[arg(long, value_name = "WHAT", default_value = "last-step")]
    pub(crate) repeat: Repeat,

    /// Also search the smallest device for each allocator
    ///
    /// From 1 to 1.3 times the peak live bytes.
    #[arg(long)]
    pub(crate) smallest_device: bool,

    /// Plans that another run saved, for contenders that plan; already validated.
    #[arg(skip)]
    pub(crate) plans: Option<&'static [u8]>,

    /// Whether each replay is recorded for a page.
    #[arg(skip)]
    pub(crate) history: bool,
}

#[cfg(test)]
impl Options {
    /// One pass on a device of `device_bytes`, or without limit.
    pub(crate) const fn new(device_bytes: Option<u64>) -> Self {
        Self {
            device_bytes,
            passes: NonZeroU32::MIN,
            repeat: Repeat::LastStep,
            smallest_device: false,
            plans: None,
            history: false,
        }
    }
}

/// The result of one contender on one trace; the larger part of a line of JSON.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Outcome {
    /// Blocks served: all of the trace's, if it completed.
    pub(crate) allocations: u64,
    /// Streams of the program.
    pub(crate) streams: u32,
    /// Most requested bytes live at once, unrounded.
    pub(crate) peak_live_bytes: u64,
    /// Most bytes the contender held from its device at once.
    pub(crate) peak_reserved_bytes: u64,
    /// Regions or blocks taken from the device, and given back to it.
    pub(crate) driver_allocations: u64,
    pub(crate) driver_frees: u64,
    /// Calls of the driver, for contenders whose device maps pages.
    #[serde(rename = "driver_calls_by_kind")]
    pub(crate) driver_calls: Option<DriverCalls>,
    /// Calls in each pass, if they are known. The last pass is the one in which a replay that did
    /// not complete stopped.
    pub(crate) calls_by_pass: Option<Vec<u64>>,
    /// The driver it ran on, `real` or `stand-in`, for contenders on one.
    pub(crate) driver: Option<&'static str>,
    /// Calls of that driver, as far as they are known: all, and those of each pass.
    pub(crate) calls_by_name: Option<CallsByName>,
    pub(crate) calls_by_name_by_pass: Option<Vec<CallsByName>>,
    /// Most bytes held in each pass, sampled after each event; from the moment the blocks of the
    /// previous pass are freed, if that was the whole trace.
    pub(crate) reserved_by_pass: Vec<u64>,
    /// How the blocks of steps were served, for contenders that plan.
    pub(crate) steps: Option<StepFigures>,
    /// The plans that the contender learned, for another run.
    #[serde(skip)]
    pub(crate) plans: Option<Vec<u8>>,
    /// Wall time of one `alloc` or `free`, averaged over the fastest timed
    /// run; `None` if there was no operation.
    pub(crate) ns_per_operation: Option<f64>,
    /// The longest `alloc`, `free` or end of a step, each the least of the runs in which events are
    /// timed one by one.
    pub(crate) worst_ns: Option<u32>,
    /// Whether every block was served. If not, the replay stopped at the first
    /// refusal, and the other figures are those up to there.
    pub(crate) completed: bool,
    /// The refused event, counted from 1 without header lines, and its pass, if there are several.
    pub(crate) stopped_at_event: Option<u64>,
    pub(crate) stopped_in_pass: Option<u32>,
    /// The refused block.
    pub(crate) refused: Option<Refused>,
    /// Facts missing from the trace's file, and how they were replaced; see [`Trace::notes`].
    pub(crate) notes: Vec<String>,
    /// Most requested bytes live at once in the whole trace, played to its end or not.
    #[serde(skip)]
    pub(crate) trace_live_bytes: u64,
    /// The smallest device that is large enough, if it was searched and found.
    #[serde(skip)]
    pub(crate) smallest_device: Option<SmallestDevice>,
    #[serde(skip)]
    pub(crate) history: Option<ReplayHistory>,
}

/// A block that was refused, and the bytes live and reserved at that time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Refused {
    pub(crate) bytes: u64,
    pub(crate) live_bytes: u64,
    pub(crate) reserved_bytes: u64,
}

impl Refused {
    fn new(act: TapeAction, live_bytes: u64, reserved_bytes: u64) -> Self {
        let bytes = match act {
            TapeAction::Alloc { bytes, .. } => bytes,
            TapeAction::Free { .. } | TapeAction::Step { .. } | TapeAction::StartOver => 0,
        };
        Self {
            bytes,
            live_bytes,
            reserved_bytes,
        }
    }
}

impl Outcome {
    /// Returns peak reserved over peak live; `None` if no bytes were ever live.
    pub(crate) fn reserved_over_live(&self) -> Option<f64> {
        let live = self.peak_live_bytes;
        (live > 0).then(|| self.peak_reserved_bytes as f64 / live as f64)
    }
}

/// Returns the number of a program in saved plans: a hash of its trace's name.
pub(crate) fn program_number(name: &str) -> u64 {
    name.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
    })
}

/// The reason why a replay has no outcome.
#[derive(Debug, Error)]
pub(crate) enum ReplayError {
    #[error(transparent)]
    Violation(#[from] Violation),
    #[error("{}", no_tape(.0))]
    NoTape(#[from] io::Error),
    /// The user pressed Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

/// Describes why events could not be written to a tape or read from it.
pub(crate) fn no_tape(error: &io::Error) -> String {
    let folder = std::env::temp_dir();
    format!(
        "cannot keep a trace's events in a file in {}: {error}; name a folder with room in TMPDIR",
        folder.display()
    )
}

/// A contender broke its contract: a bug in it, not in the trace. Events and passes are counted from 1, events
/// without header lines.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{allocator} broke its contract at event {event} of {trace}{}: {fault}", in_pass(*pass))]
pub(crate) struct Violation {
    pub(crate) allocator: &'static str,
    pub(crate) trace: String,
    pub(crate) event: u64,
    pub(crate) pass: u32,
    pub(crate) fault: ReplayFault,
}

/// Names the pass, unless it is the first.
fn in_pass(pass: u32) -> String {
    if pass > 1 {
        format!(", pass {pass}")
    } else {
        String::new()
    }
}

/// The way in which a contender broke its contract.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum ReplayFault {
    /// A block shares bytes with a live one.
    #[error("{new} overlaps the live {old}")]
    Overlap { new: LiveBlock, old: LiveBlock },
    #[error(
        "block {id} at address {address} with {bytes} bytes passes the end of the address space"
    )]
    PastTheEnd { id: u32, address: u64, bytes: u64 },
    #[error("{reserved_bytes} bytes are said to be reserved while {live_bytes} are live")]
    ReservedBelowLive {
        reserved_bytes: u64,
        live_bytes: u64,
    },
    /// The device was used against its rules, or a live byte has no memory of its own behind it.
    #[error("against the rules of its device: {0}")]
    BrokenRule(String),
}

/// Replays `trace` without reporting progress.
#[cfg(test)]
pub(crate) fn replay(
    spec: &ContenderSpec,
    trace: &Trace,
    options: &Options,
) -> Result<Outcome, Violation> {
    let mut script = ReplayScript::of(trace, options.passes, options.repeat);
    replay_watched(spec, &mut script, options, &|_| {}).map_err(|error| match error {
        ReplayError::Violation(violation) => violation,
        other => panic!("{other}"),
    })
}

/// Replays a script with fresh contenders built by `spec`, and reports the part done to `watch`,
/// from 0 to 1. A [`Violation`] means that the contender returned overlapping blocks, counted fewer
/// bytes reserved than live or broke a rule of its device.
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
    Ok(outcome)
}

/// A contender and its script.
struct Replay<'r> {
    spec: &'r ContenderSpec,
    script: &'r mut ReplayScript,
    /// For contenders whose plans can be saved.
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
    /// Prepares a replay. A contender that plans starts with the saved plans, or with those of a
    /// hidden run without limit: the figures should show it with plans, and a program plays its
    /// steps thousands of times.
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
    /// Builds a fresh contender, with the plans loaded if there are any and it plans.
    fn build(&self, device_bytes: Option<u64>) -> Box<dyn Contender> {
        let mut contender = (self.spec.build)(device_bytes);
        if let (Some(plans), Some(steps)) = (&self.plans, contender.planner()) {
            // The reader of the file has validated the plans.
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

    /// Passes the batches of all passes to `play`, until it returns false.
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

    /// Plays events until one is refused. Does only the contender's own work and one table write a
    /// block.
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
    /// Events of all passes so far.
    events: u64,
    allocations: u64,
    peak_live_bytes: u64,
    peak_reserved_bytes: u64,
    /// Most bytes held in the present pass.
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
