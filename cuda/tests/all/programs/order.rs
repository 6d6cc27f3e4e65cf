//! The order of a program's own operations: clocks that record which operations happen before which others, and the
//! events that enforce it.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_cuda::{Context, DriverError, Event, EventConfig};

/// Maximum number of streams of a player.
pub(crate) const STREAMS: usize = 4;

/// Maximum number of events of a program. Beyond it, the oldest event is recorded again.
const EVENTS: usize = 6;

/// A vector clock: the number of operations of each stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Clock([u32; STREAMS]);

impl Clock {
    /// Makes the clock of one operation and all before it on its stream.
    pub(crate) fn at(stream: usize, number: u32) -> Self {
        let mut clock = Self::default();
        clock.0[stream] = number;
        clock
    }

    pub(crate) fn streams(&self) -> Vec<usize> {
        (0..STREAMS).filter(|stream| self.0[*stream] > 0).collect()
    }

    pub(crate) fn join(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine = theirs.max(*mine);
        }
    }
}

/// An event, and the operations that have happened once the event has.
struct Recorded {
    event: Event,
    clock: Clock,
}

pub(crate) struct Order {
    context: Context,
    pub(crate) streams: Vec<Arc<CudaStream>>,
    /// The operations queued so far.
    counts: Clock,
    /// The operations that each stream waits for before its next one.
    known: [Clock; STREAMS],
    /// The operations that the host has waited for.
    host: Clock,
    /// The recorded events, the newest last.
    events: Vec<Recorded>,
}

impl Order {
    pub(crate) fn new(context: &Context, streams: Vec<Arc<CudaStream>>) -> Self {
        Self {
            context: context.clone(),
            streams,
            counts: Clock::default(),
            known: [Clock::default(); STREAMS],
            host: Clock::default(),
            events: Vec::new(),
        }
    }

    /// Counts the next operation of a stream, and returns its clock.
    pub(crate) fn step(&mut self, stream: usize) -> Clock {
        self.counts.0[stream] += 1;
        Clock::at(stream, self.counts.0[stream])
    }

    /// Returns the operations that have happened once all queued on a stream have.
    fn clock(&self, stream: usize) -> Clock {
        let mut clock = self.known[stream];
        clock.join(&self.host);
        clock.0[stream] = self.counts.0[stream];
        clock
    }

    /// Orders a stream after the operations for which a use of a block must wait, and counts the use. `wrote` is the
    /// last write; `used` has this write and all uses since.
    pub(crate) fn use_block(
        &mut self,
        stream: usize,
        writes: bool,
        wrote: &mut Clock,
        used: &mut Clock,
    ) -> Result<(), DriverError> {
        let needs = if writes { *used } else { *wrote };
        self.after(stream, &needs)?;
        let at = self.step(stream);
        if writes {
            (*wrote, *used) = (at, at);
        } else {
            used.join(&at);
        }
        Ok(())
    }

    /// Makes later work of a stream wait for all operations of a clock.
    pub(crate) fn after(&mut self, stream: usize, needs: &Clock) -> Result<(), DriverError> {
        for (other, needed) in needs.0.into_iter().enumerate() {
            if needed <= self.clock(stream).0[other] {
                continue;
            }
            let fits = |recorded: &Recorded| recorded.clock.0[other] >= needed;
            let found = match self.events.iter().position(fits) {
                Some(found) => found,
                None => self.record(other)?,
            };
            self.wait_for(stream, found)?;
        }
        Ok(())
    }

    /// Replaces a stream for whose operations nothing has to wait any more, and returns it.
    pub(crate) fn replace(&mut self, stream: usize, new: Arc<CudaStream>) -> Arc<CudaStream> {
        self.known[stream] = Clock::default();
        core::mem::replace(&mut self.streams[stream], new)
    }

    /// Notes that something else made later work of a stream wait for all work queued on another.
    pub(crate) fn ordered(&mut self, stream: usize, after: usize) {
        let clock = self.clock(after);
        self.known[stream].join(&clock);
    }

    pub(crate) fn record(&mut self, stream: usize) -> Result<usize, DriverError> {
        let event = if self.events.len() < EVENTS {
            Event::new(&self.context, EventConfig::default())?
        } else {
            self.events.remove(0).event
        };
        event.record(&self.streams[stream])?;
        let clock = self.clock(stream);
        self.events.push(Recorded { event, clock });
        Ok(self.events.len() - 1)
    }

    fn wait_for(&mut self, stream: usize, place: usize) -> Result<(), DriverError> {
        let recorded = &self.events[place];
        recorded.event.wait_on(&self.streams[stream])?;
        let clock = recorded.clock;
        self.known[stream].join(&clock);
        Ok(())
    }

    /// Returns the index of the event that was recorded `back` events before the newest one.
    fn place(&self, back: usize) -> Option<usize> {
        self.events.len().checked_sub(back + 1)
    }

    pub(crate) fn wait(&mut self, stream: usize, back: usize) -> Result<(), DriverError> {
        self.place(back)
            .map_or(Ok(()), |place| self.wait_for(stream, place))
    }

    pub(crate) fn sync_event(&mut self, back: usize) -> Result<(), DriverError> {
        let Some(place) = self.place(back) else {
            return Ok(());
        };
        self.events[place].event.synchronize()?;
        let clock = self.events[place].clock;
        self.host.join(&clock);
        Ok(())
    }

    pub(crate) fn sync_stream(&mut self, stream: usize) -> Result<(), DriverError> {
        self.context.wait_for(&self.streams[stream])?;
        let clock = self.clock(stream);
        self.host.join(&clock);
        Ok(())
    }
}
