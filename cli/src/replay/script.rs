//! The events to play: a whole trace once, and then a part of it repeatedly.
//!
//! The blocks that are live at the end of a trace are known once it has been read, so the
//! repetition is computed only once. Every pass after the first begins with the same live blocks
//! and plays the same events. In a repetition, a block that is live at the end of the trace keeps
//! its place of the first pass. Every other block has a place above all places of the first pass,
//! since two blocks that are live at the same time in a repetition may have had the same place in
//! the first pass, one after the other.

use std::io;
use std::num::NonZeroU32;
use std::ops::Range;

use clap::ValueEnum;

use larder_trace::Trace;

#[cfg(test)]
use super::tape::TapeWriter;
use super::tape::{Played, RecordedTape, Tape, TapeAction};

/// The part that is played in every pass after the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Repeat {
    /// The last step, as a loop does: the events between its two step marks; the whole trace if it
    /// has fewer than two marks
    LastStep,
    /// The whole trace, after all live blocks are freed
    Trace,
}

/// A trace and its repetitions.
pub(crate) struct ReplayScript {
    /// The trace without its events.
    trace: Trace,
    first: Tape,
    /// The events of each further pass; empty if there is none. A free that is not in the trace has
    /// the number of the event before which it was inserted.
    again: Tape,
    passes: NonZeroU32,
    /// Number of events at the start of each further pass that only end the previous pass.
    leftovers: u64,
    places: usize,
    peak_live_bytes: u64,
    streams: u32,
}

impl ReplayScript {
    /// Creates a script from a trace and its events on tape.
    pub(crate) fn new(
        trace: Trace,
        written: RecordedTape,
        passes: NonZeroU32,
        repeat: Repeat,
    ) -> io::Result<Self> {
        let RecordedTape {
            tape: mut first,
            places,
            peak_live_bytes,
            streams,
            kept,
            ..
        } = written;
        let mut again = Again::new(places, &kept);
        let mut leftovers = 0;
        if passes.get() > 1 {
            let range = match repeat {
                Repeat::LastStep => last_step(&trace, &mut first)?,
                Repeat::Trace => {
                    again.free_all(&kept)?;
                    again.write(1, TapeAction::StartOver)?;
                    1..first.events() + 1
                }
            };
            leftovers = again.tape.events();
            again.repeat(&mut first, range)?;
        }
        Ok(Self {
            trace,
            first,
            places: 2 * places,
            peak_live_bytes,
            streams,
            again: again.tape,
            passes,
            leftovers,
        })
    }

    /// Creates a script from a trace that contains its events.
    #[cfg(test)]
    pub(super) fn of(trace: &Trace, passes: NonZeroU32, repeat: Repeat) -> Self {
        let mut writer = TapeWriter::new();
        let events = trace.events().iter();
        events.for_each(|event| writer.write(*event, 0));
        let written = writer.finish().unwrap();
        Self::new(trace.clone(), written, passes, repeat).unwrap()
    }

    pub(crate) const fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Returns the numbers of the passes, from 1.
    pub(super) fn passes(&self) -> impl Iterator<Item = u32> + use<> {
        1..=self.passes.get()
    }

    /// Returns the events of a pass.
    pub(super) fn tape(&mut self, pass: u32) -> &mut Tape {
        if pass == 1 {
            &mut self.first
        } else {
            &mut self.again
        }
    }

    /// Returns the bound below which all places are.
    pub(super) const fn places(&self) -> usize {
        self.places
    }

    /// Returns the maximum live bytes in the trace.
    pub(super) const fn peak_live_bytes(&self) -> u64 {
        self.peak_live_bytes
    }

    /// Returns the number of streams up to the highest one that an allocation uses.
    pub(super) const fn streams(&self) -> u32 {
        self.streams
    }

    /// Returns the number of events at the start of a pass that only end the previous pass.
    pub(super) fn leftovers(&self, pass: u32) -> u64 {
        if pass == 1 { 0 } else { self.leftovers }
    }

    /// Returns the number of events of the trace.
    pub(crate) const fn trace_events(&self) -> u64 {
        self.first.events()
    }

    /// Returns the number of events of all passes.
    pub(super) fn events(&self) -> u64 {
        let repetitions = u64::from(self.passes.get()) - 1;
        self.first.events() + repetitions.saturating_mul(self.again.events())
    }
}

/// A repetition being built.
struct Again {
    tape: Tape,
    places: usize,
    /// For each place, the block that is live there at the end of the trace.
    kept: Vec<Option<u32>>,
    /// For each place, whether that block is live.
    live: Vec<bool>,
    /// For each place of the first pass, whether this pass has allocated one of its other blocks.
    came: Vec<bool>,
}

impl Again {
    fn new(places: usize, kept: &[(u32, usize)]) -> Self {
        let mut again = Self {
            tape: Tape::new(),
            places,
            kept: vec![None; places],
            live: vec![false; places],
            came: vec![false; places],
        };
        for &(id, place) in kept {
            again.kept[place] = Some(id);
            again.live[place] = true;
        }
        again
    }

    fn free_all(&mut self, kept: &[(u32, usize)]) -> io::Result<()> {
        for &(_, place) in kept {
            self.live[place] = false;
            self.write(1, TapeAction::Free { place })?;
        }
        Ok(())
    }

    /// Repeats a part of the trace. A block that is still live is freed right before it is
    /// allocated again, as in a loop that overwrites its variables; a block that is not live is not
    /// freed. Frees that the trace makes after the part are made at the end of the part, so that
    /// the next pass begins with the same blocks.
    fn repeat(&mut self, first: &mut Tape, part: Range<u64>) -> io::Result<()> {
        let mut batches = first.batches()?;
        loop {
            let batch = batches.next()?;
            for event in batch.iter().filter(|event| event.number >= part.start) {
                self.repeat_one(event, event.number < part.end)?;
            }
            if batch.is_empty() {
                return Ok(());
            }
        }
    }

    fn repeat_one(&mut self, event: &Played, inside: bool) -> io::Result<()> {
        match event.act {
            TapeAction::Alloc { .. } | TapeAction::Step { .. } | TapeAction::StartOver
                if !inside =>
            {
                Ok(())
            }
            TapeAction::Alloc { id, place, .. } if self.kept[place] == Some(id) => {
                if std::mem::replace(&mut self.live[place], true) {
                    self.write(event.number, TapeAction::Free { place })?;
                }
                self.write(event.number, event.act)
            }
            TapeAction::Alloc {
                id,
                place,
                bytes,
                stream,
            } => {
                self.came[place] = true;
                let place = self.places + place;
                let again = TapeAction::Alloc {
                    id,
                    place,
                    bytes,
                    stream,
                };
                self.write(event.number, again)
            }
            TapeAction::Free { place } => {
                if std::mem::take(&mut self.came[place]) {
                    let place = self.places + place;
                    self.write(event.number, TapeAction::Free { place })?;
                }
                Ok(())
            }
            TapeAction::Step { .. } | TapeAction::StartOver => self.write(event.number, event.act),
        }
    }

    fn write(&mut self, number: u64, act: TapeAction) -> io::Result<()> {
        self.tape.write(Played { number, act })
    }
}

/// Returns the events of the last step, including the mark that ends it. The last mark of a trace
/// starts no step.
fn last_step(trace: &Trace, first: &mut Tape) -> io::Result<Range<u64>> {
    let mut last = 1..first.events() + 1;
    // The first event of the current step, if there is one.
    let mut began = None;
    let mut batches = first.batches()?;
    loop {
        let batch = batches.next()?;
        for event in batch {
            if let TapeAction::Step { number } = event.act {
                let next = event.number + 1;
                last = began.map_or(last, |began| began..next);
                began = (!trace.is_between_steps(number)).then_some(next);
            }
        }
        if batch.is_empty() {
            return Ok(last);
        }
    }
}
