//! The order that a program makes itself: which of its operations happen before which others, kept in
//! clocks, and the events that enforce it.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_cuda::{Context, DriverError, Event, EventConfig};

/// Most streams of a player.
pub(crate) const STREAMS: usize = 4;

/// Events of a program; the oldest is recorded anew.
const EVENTS: usize = 6;

/// For each stream, a number of its operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Clock([u32; STREAMS]);

impl Clock {
    /// One operation, and all before it on its stream.
    pub(crate) fn at(stream: usize, number: u32) -> Self {
        let mut clock = Self::default();
        clock.0[stream] = number;
        clock
    }

    /// The streams that have operations in it.
    pub(crate) fn streams(&self) -> Vec<usize> {
        (0..STREAMS).filter(|stream| self.0[*stream] > 0).collect()
    }

    pub(crate) fn join(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine = theirs.max(*mine);
        }
    }
}

/// An event, and what is done when it has passed.
struct Recorded {
    event: Event,
    clock: Clock,
}

/// Streams and their order.
pub(crate) struct Order {
    context: Context,
    pub(crate) streams: Vec<Arc<CudaStream>>,
    /// Operations so far.
    counts: Clock,
    /// The operations that each stream waits for before its next one.
    known: [Clock; STREAMS],
    /// The operations that the host has waited for.
    host: Clock,
    /// The newest last.
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

    /// The next operation of a stream.
    pub(crate) fn step(&mut self, stream: usize) -> Clock {
        self.counts.0[stream] += 1;
        Clock::at(stream, self.counts.0[stream])
    }

    /// Returns the operations done once all queued on a stream are.
    fn clock(&self, stream: usize) -> Clock {
        let mut clock = self.known[stream];
        clock.join(&self.host);
        clock.0[stream] = self.counts.0[stream];
        clock
    }

    /// Orders a stream behind what a use of a block must wait for, and counts the use: what wrote it last, and
    /// what used it since, the writing included.
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

    /// Makes later work of a stream wait for all these operations.
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

    /// Puts another stream in the place of one whose operations nobody needs any more; gives that one.
    pub(crate) fn replace(&mut self, stream: usize, new: Arc<CudaStream>) -> Arc<CudaStream> {
        self.known[stream] = Clock::default();
        core::mem::replace(&mut self.streams[stream], new)
    }

    /// Somebody else made later work of a stream wait for all that another has queued.
    pub(crate) fn ordered(&mut self, stream: usize, after: usize) {
        let clock = self.clock(after);
        self.known[stream].join(&clock);
    }

    /// Records an event; gives its place.
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

    /// The `back`-th last event, if there are so many.
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
