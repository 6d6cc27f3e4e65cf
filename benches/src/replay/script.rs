//! What is played: a trace once, and then a part of it again and again.
//!
//! Which blocks are live is known beforehand, so that repetitions are worked out once: from the
//! second pass on, each pass begins with the same blocks live and plays the same events.

use std::num::NonZeroU32;

use clap::ValueEnum;

use crate::trace::{Event, Trace};

/// What the passes after the first one play.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Repeat {
    /// What stands between the last two step marks, as a loop does; the whole trace if it has fewer
    /// than two
    LastStep,
    /// The whole trace, after everything live was freed
    Trace,
}

/// A trace and its repetitions.
pub(super) struct Script<'t> {
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

impl<'t> Script<'t> {
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
            let from = match repeat {
                Repeat::LastStep => last_step(trace.events()),
                Repeat::Trace => {
                    script.free_all(&mut live);
                    script.leftovers = script.again.len();
                    0
                }
            };
            script.repeat_from(from, &mut live);
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

    /// The trace from an event on. A block that is still live is freed right before it comes again,
    /// as a loop that overwrites its variables does; one that is not live is not freed once more.
    fn repeat_from(&mut self, from: usize, live: &mut [bool]) {
        for (index, &event) in self.first.iter().enumerate().skip(from) {
            let number = index as u64 + 1;
            match event {
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

/// Index of the first event behind the last step mark but one. The last mark ends the trace.
fn last_step(events: &[Event]) -> usize {
    let marks = events.iter().enumerate().rev();
    let mut marks = marks.filter(|(_, event)| matches!(event, Event::Step { .. }));
    marks.nth(1).map_or(0, |(index, _)| index + 1)
}
