//! What is played: a trace once, and then a part of it again and again.
//!
//! Which blocks are live is known beforehand, so that repetitions are worked out once: from the
//! second pass on, each pass begins with the same blocks live and plays the same events.

use std::num::NonZeroU32;
use std::ops::Range;

use clap::ValueEnum;

use larder_trace::{Event, Trace};

/// What the passes after the first one play.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Repeat {
    /// The last step, as a loop does: what stands between two step marks; the whole trace if it has
    /// fewer than two
    LastStep,
    /// The whole trace, after everything live was freed
    Trace,
}

/// A trace and its repetitions.
pub(super) struct ReplayScript<'t> {
    first: &'t [Event],
    /// The events of each further pass; empty if there is none.
    again: Vec<Event>,
    /// For each of them its number in the trace, counted from 1. A free that stands for none has
    /// that of the event before which it was put.
    numbers: Vec<u64>,
    passes: NonZeroU32,
    /// Frees at the start of each further pass of what the one before left.
    leftovers: usize,
}

impl<'t> ReplayScript<'t> {
    pub(super) fn new(trace: &'t Trace, passes: NonZeroU32, repeat: Repeat) -> Self {
        let mut script = Self {
            first: trace.events(),
            again: Vec::new(),
            numbers: Vec::new(),
            passes,
            leftovers: 0,
        };
        if passes.get() > 1 {
            let mut live = live_at_end(trace);
            let range = match repeat {
                Repeat::LastStep => last_step(trace),
                Repeat::Trace => {
                    script.free_all(&mut live);
                    script.leftovers = script.again.len();
                    0..trace.events().len()
                }
            };
            script.repeat(range, &mut live);
        }
        script
    }

    /// The events of each pass; passes are counted from 1.
    pub(super) fn passes(&self) -> impl Iterator<Item = (u32, &[Event])> {
        (1..=self.passes.get()).map(|pass| (pass, if pass == 1 { self.first } else { &self.again }))
    }

    /// How many events at the start of a pass only free what the one before left.
    pub(super) fn leftovers(&self, pass: u32) -> usize {
        if pass == 1 { 0 } else { self.leftovers }
    }

    /// Events of all passes.
    pub(super) fn events(&self) -> usize {
        let repetitions = self.passes.get() as usize - 1;
        self.first.len() + repetitions.saturating_mul(self.again.len())
    }

    /// The number in the trace of a pass's event, counted from 1.
    pub(super) fn number(&self, pass: u32, index: usize) -> u64 {
        match pass {
            1 => index as u64 + 1,
            _ => self.numbers[index],
        }
    }

    fn free_all(&mut self, live: &mut [bool]) {
        for (id, live) in (0..).zip(live) {
            if std::mem::take(live) {
                self.push(Event::Free { id }, 1);
            }
        }
    }

    /// A part of the trace. A block that is still live is freed right before it comes again, as a loop
    /// that overwrites its variables does; one that is not live is not freed once more. What the
    /// trace frees behind the part is freed there, so that the next pass begins with the same blocks.
    fn repeat(&mut self, range: Range<usize>, live: &mut [bool]) {
        for (index, &event) in self.first.iter().enumerate().skip(range.start) {
            let number = index as u64 + 1;
            match event {
                Event::Alloc { .. } | Event::Step { .. } if index >= range.end => {}
                Event::Alloc { id, .. } => {
                    if std::mem::replace(&mut live[id as usize], true) {
                        self.push(Event::Free { id }, number);
                    }
                    self.push(event, number);
                }
                Event::Free { id } => {
                    if std::mem::take(&mut live[id as usize]) {
                        self.push(event, number);
                    }
                }
                Event::Step { .. } => self.push(event, number),
            }
        }
    }

    fn push(&mut self, event: Event, number: u64) {
        self.again.push(event);
        self.numbers.push(number);
    }
}

fn live_at_end(trace: &Trace) -> Vec<bool> {
    let mut live = vec![false; trace.allocations() as usize];
    for event in trace.events() {
        match *event {
            Event::Alloc { id, .. } => live[id as usize] = true,
            Event::Free { id } => live[id as usize] = false,
            Event::Step { .. } => {}
        }
    }
    live
}

/// From the first event of the last step to the mark that ends it, included. The last mark of a trace
/// starts nothing.
fn last_step(trace: &Trace) -> Range<usize> {
    let events = trace.events().iter().enumerate().rev();
    let mut marks = events.filter_map(|(index, event)| match *event {
        Event::Step { number } => Some((index, number)),
        _ => None,
    });
    let mut end = marks.next().map(|(index, _)| index + 1);
    for (index, number) in marks {
        if !trace.is_between_steps(number) {
            return index + 1..end.unwrap_or(index);
        }
        end = Some(index + 1);
    }
    0..trace.events().len()
}
