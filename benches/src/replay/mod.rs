//! Drives one contender through one trace and measures it.
//!
//! Two kinds of runs, each with a fresh contender:
//! * *timed*: nothing but the contender's `alloc` and `free` between two looks
//!   at the clock; the tables of the loop are allocated before;
//! * *sampled*: after every event live and reserved bytes are noted, and every
//!   block is checked against all live ones. What it finds wrong is a
//!   [`Violation`], never a figure in a table.
//!
//! A run has one or more *passes*: the trace, and then its last step (or all of
//! it) again and again, as a program that loops.
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
#[cfg(test)]
mod tests;
#[cfg(test)]
mod upstream_agrees_tests;
mod verdict;
#[cfg(test)]
mod verdict_tests;

use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use thiserror::Error;

pub(crate) use contender::Slot;
pub(crate) use contender::{
    CallsByName, Contender, ContenderSpec, DriverCalls, StepFigures, beyond,
};
pub(crate) use history::{Change, History};
use live_map::{LiveBlock, LiveMap};
pub(crate) use recorded::record;
pub(crate) use registry::{CONTENDERS, PYTORCH_SET, SHOWN};
pub(crate) use script::Repeat;
pub(crate) use smallest::SmallestDevice;
pub(crate) use spare::Spare;

use crate::interrupt;
use crate::planned;
use larder_jobs::units::parse_bytes;
use larder_trace::{Event, Trace};
use script::ReplayScript;

/// Timed runs per replay; the fastest counts, because whatever disturbs a
/// run (another process, a page fault) only ever makes it slower.
const TIMED_RUNS: u32 = 3;

/// All runs of a replay, with the sampled one.
const RUNS: f64 = 1.0 + TIMED_RUNS as f64;

/// Events between two looks at who watches.
const EVENTS_PER_LOOK: usize = 1 << 12;

/// How a trace is replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Args)]
pub(crate) struct Options {
    /// Size of the simulated device, such as 8GiB; without it, no limit
    #[arg(long, value_name = "N", value_parser = parse_bytes, allow_negative_numbers = true)]
    pub(crate) device_bytes: Option<u64>,

    /// Play the last step again until there are so many passes
    #[arg(
        long,
        value_name = "N",
        default_value = "1",
        allow_negative_numbers = true
    )]
    pub(crate) passes: NonZeroU32,

    /// What the passes after the first one play
    #[arg(long, value_name = "WHAT", default_value = "last-step")]
    pub(crate) repeat: Repeat,

    /// Also search the smallest device for each allocator
    ///
    /// From 1 to 1.3 times what is live.
    #[arg(long)]
    pub(crate) smallest_device: bool,

    /// Plans that another run saved, for contenders that plan; they were found to be whole.
    #[arg(skip)]
    pub(crate) plans: Option<&'static [u8]>,

    /// Whether each replay is written down for a page.
    #[arg(skip)]
    pub(crate) history: bool,
}

#[cfg(test)]
impl Options {
    /// One pass on a device of so many bytes, or without limit.
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

/// What one contender did on one trace; the most part of a line of JSON.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Outcome {
    /// Blocks served: all of the trace's, if it completed.
    pub(crate) allocations: u64,
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
    /// Calls in each pass, if they are known. The last one is the pass in which a replay that did
    /// not complete stopped.
    pub(crate) calls_by_pass: Option<Vec<u64>>,
    /// Which driver it ran on, `real` or `stand-in`, for contenders on one.
    pub(crate) driver: Option<&'static str>,
    /// Calls of that driver, as far as they are known: all, and those of each pass.
    pub(crate) calls_by_name: Option<CallsByName>,
    pub(crate) calls_by_name_by_pass: Option<Vec<CallsByName>>,
    /// Most bytes held in each pass, as seen after each event, from when nothing is left of the
    /// pass before if that was the whole trace.
    pub(crate) reserved_by_pass: Vec<u64>,
    /// How the blocks of steps were served, for contenders that plan.
    pub(crate) steps: Option<StepFigures>,
    /// What a contender that plans learned, for another run.
    #[serde(skip)]
    pub(crate) plans: Option<Vec<u8>>,
    /// Wall time of one `alloc` or `free`, averaged over the fastest timed
    /// run; `None` if there was no operation.
    pub(crate) ns_per_operation: Option<f64>,
    /// Whether every block was served. If not, the replay stopped at the first
    /// refusal, and the other figures are those up to there.
    pub(crate) completed: bool,
    /// The refused event, counted from 1 without header lines, and its pass, if there are several.
    pub(crate) stopped_at_event: Option<u64>,
    pub(crate) stopped_in_pass: Option<u32>,
    /// What was refused.
    pub(crate) refused: Option<Refused>,
    /// What the trace's file does not say, or what was made of it; see [`Trace::notes`].
    pub(crate) notes: Vec<String>,
    /// The smallest device that is large enough, if it was searched and found.
    #[serde(skip)]
    pub(crate) smallest_device: Option<SmallestDevice>,
    #[serde(skip)]
    pub(crate) history: Option<History>,
}

/// A block that was refused, and what there was then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Refused {
    pub(crate) bytes: u64,
    pub(crate) live_bytes: u64,
    pub(crate) reserved_bytes: u64,
}

impl Refused {
    fn new(event: Event, live_bytes: u64, reserved_bytes: u64) -> Self {
        let bytes = match event {
            Event::Alloc { bytes, .. } => bytes,
            Event::Free { .. } | Event::Step { .. } => 0,
        };
        Self {
            bytes,
            live_bytes,
            reserved_bytes,
        }
    }
}

impl Outcome {
    /// Peak reserved over peak live; `None` if nothing was ever live.
    pub(crate) fn reserved_over_live(&self) -> Option<f64> {
        let live = self.peak_live_bytes;
        (live > 0).then(|| self.peak_reserved_bytes as f64 / live as f64)
    }
}

/// The number of a program in saved plans: a hash of its trace's name.
pub(crate) fn program_number(name: &str) -> u64 {
    name.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
    })
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

/// Says so if it is not the first.
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
    /// Nobody broke anything: somebody pressed Ctrl-C.
    #[error("interrupted")]
    Interrupted,
    /// The device was used against its rules, or a live byte has no memory of its own behind it.
    #[error("against the rules of its device: {0}")]
    BrokenRule(String),
}

/// Replays `trace` with nobody watching.
#[cfg(test)]
pub(crate) fn replay(
    spec: &ContenderSpec,
    trace: &Trace,
    options: &Options,
) -> Result<Outcome, Violation> {
    replay_watched(spec, trace, options, &|_| {})
}

/// Replays `trace` with fresh contenders built by `spec`, and tells which part of it is done, from 0 to 1. A
/// [`Violation`] says that the contender handed out overlapping blocks, counts less reserved than live or broke a
/// rule of its device, or that somebody pressed Ctrl-C.
pub(crate) fn replay_watched(
    spec: &ContenderSpec,
    trace: &Trace,
    options: &Options,
    watch: &dyn Fn(f64),
) -> Result<Outcome, Violation> {
    let replay = Replay {
        spec,
        trace,
        script: ReplayScript::new(trace, options.passes, options.repeat),
        plans: options.plans,
        watch,
    };
    let mut slots = vec![Slot::default(); trace.allocations() as usize];
    let history = options.history.then(History::default);
    let mut outcome = replay.sampled_run(options.device_bytes, &mut slots, history)?;
    let runs = (0..TIMED_RUNS).map(|run| {
        watch(f64::from(1 + run) / RUNS);
        replay.timed_run(options.device_bytes, &mut slots)
    });
    let fastest = runs
        .filter(|run| run.operations > 0)
        .min_by_key(|run| run.time);
    outcome.ns_per_operation =
        fastest.map(|run| run.time.as_nanos() as f64 / run.operations as f64);
    if options.smallest_device && outcome.completed {
        outcome.smallest_device = replay.smallest_device(outcome.peak_live_bytes, &mut slots)?;
    }
    Ok(outcome)
}

/// A contender and what it has to do.
struct Replay<'r> {
    spec: &'r ContenderSpec,
    trace: &'r Trace,
    script: ReplayScript<'r>,
    plans: Option<&'static [u8]>,
    watch: &'r dyn Fn(f64),
}

/// The result of a timed run.
struct Timed {
    time: Duration,
    operations: u64,
    completed: bool,
}

impl Replay<'_> {
    /// A fresh contender that knows the plans, if there are any and it plans.
    fn build(&self, device_bytes: Option<u64>) -> Box<dyn Contender> {
        let mut contender = (self.spec.build)(device_bytes);
        if let (Some(plans), Some(steps)) = (self.plans, contender.planner()) {
            // The reader of the file has validated the plans.
            let _ = planned::load(steps, program_number(self.trace.name()), plans);
        }
        contender
    }

    /// Nothing in here but the contender's own work and one table write a block.
    fn timed_run(&self, device_bytes: Option<u64>, slots: &mut [Slot]) -> Timed {
        let mut contender = self.build(device_bytes);
        let mut operations = 0;
        let mut completed = true;
        let start = Instant::now();
        'passes: for (_, events) in self.script.passes() {
            for event in events {
                match *event {
                    Event::Alloc { id, bytes } => match contender.alloc(bytes) {
                        Some(slot) => slots[id as usize] = slot,
                        None => {
                            completed = false;
                            break 'passes;
                        }
                    },
                    Event::Free { id } => contender.free(slots[id as usize]),
                    Event::Step { .. } => {
                        contender.end_step();
                        continue;
                    }
                }
                operations += 1;
            }
        }
        let time = start.elapsed();
        black_box(slots);
        Timed {
            time,
            operations,
            completed,
        }
    }

    fn sampled_run(
        &self,
        device_bytes: Option<u64>,
        slots: &mut [Slot],
        history: Option<History>,
    ) -> Result<Outcome, Violation> {
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
        for (pass, events) in self.script.passes() {
            let before = contender.driver_calls();
            let leftovers = self.script.leftovers(pass);
            let violation = |(index, fault)| Violation {
                allocator: self.spec.name,
                trace: self.trace.name().to_owned(),
                event: self.script.number(pass, index),
                pass,
                fault,
            };
            let all = self.script.events() as f64;
            let watch = |played: usize| (self.watch)(played as f64 / all / RUNS);
            let refused = samples.play(contender.as_mut(), events, leftovers, slots, &watch);
            let refused = refused.map_err(violation)?;
            if let (Some(before), Some(after)) = (before, contender.driver_calls()) {
                calls_by_pass.push(after.total() - before.total());
            }
            if let Some(by_pass) = &mut calls_by_name_by_pass {
                let now = contender.calls_by_name().unwrap_or_default();
                by_pass.push(beyond(&now, &calls_by_name.unwrap_or_default(), 1));
                calls_by_name = Some(now);
            }
            reserved_by_pass.push(samples.pass_reserved_bytes);
            if let Some(index) = refused {
                let reserved_bytes = contender.reserved_bytes();
                let refused = Refused::new(events[index], samples.live.bytes, reserved_bytes);
                stopped = Some((self.script.number(pass, index), pass, refused));
                break;
            }
        }
        let planner = contender.planner();
        let plans = planner.map(|steps| planned::save(steps, program_number(self.trace.name())));
        let max_reserved_bytes = contender.max_reserved_bytes().unwrap_or(0);
        let driver_calls = contender.driver_calls();
        Ok(Outcome {
            allocations: samples.allocations,
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
            completed: stopped.is_none(),
            stopped_at_event: stopped.map(|(event, ..)| event),
            stopped_in_pass: stopped.map(|(_, pass, _)| pass),
            refused: stopped.map(|(.., refused)| refused),
            notes: self.trace.notes().to_vec(),
            smallest_device: None,
            history: samples.history.map(|history| history.of(self.trace)),
        })
    }
}

/// What the sampled run notes.
#[derive(Default)]
struct Samples {
    live: LiveMap,
    /// Events of all passes so far.
    events: usize,
    allocations: u64,
    peak_live_bytes: u64,
    peak_reserved_bytes: u64,
    /// Most bytes held in the present pass.
    pass_reserved_bytes: u64,
    history: Option<History>,
}

impl Samples {
    /// Plays one pass. Gives the index of the event that was refused, if one was, or that of the
    /// one at which the contender was found wrong.
    fn play(
        &mut self,
        contender: &mut dyn Contender,
        events: &[Event],
        leftovers: usize,
        slots: &mut [Slot],
        watch: &dyn Fn(usize),
    ) -> Result<Option<usize>, (usize, ReplayFault)> {
        for (index, event) in events.iter().enumerate() {
            if self.events.is_multiple_of(EVENTS_PER_LOOK) {
                watch(self.events);
                if interrupt::asked() {
                    return Err((index, ReplayFault::Interrupted));
                }
            }
            self.events += 1;
            if index == leftovers {
                self.pass_reserved_bytes = 0;
            }
            let served = self.play_one(contender, event, slots);
            if !served.map_err(|fault| (index, fault))? {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    /// Whether the event was served.
    fn play_one(
        &mut self,
        contender: &mut dyn Contender,
        event: &Event,
        slots: &mut [Slot],
    ) -> Result<bool, ReplayFault> {
        let mut served = true;
        match *event {
            Event::Alloc { id, bytes } => match contender.alloc(bytes) {
                Some(slot) => {
                    slots[id as usize] = slot;
                    self.live.insert(id, slot.address, bytes)?;
                    self.allocations += 1;
                }
                None => served = false,
            },
            Event::Free { id } => {
                contender.free(slots[id as usize]);
                self.live.remove(slots[id as usize].address);
            }
            Event::Step { .. } => contender.end_step(),
        }
        if let Some(rule) = contender.broken_rule() {
            return Err(ReplayFault::BrokenRule(rule));
        }
        if served {
            self.note(contender.reserved_bytes())?;
            if let Some(history) = &mut self.history {
                history.note(event, slots, contender);
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
