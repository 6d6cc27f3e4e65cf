//! Puts operations into streams.

use larder_cuda_abi::Code;

use super::{Op, OpId, Work};
use crate::clock::Clock;
use crate::driver::Driver;

impl Driver {
    /// Queues work at the end of a stream. It runs after the call, at the earliest.
    pub(crate) fn submit(&mut self, stream: usize, work: Work) -> Result<OpId, Code> {
        self.submit_after(stream, work, Vec::new())
    }

    /// The same; it waits for further operations.
    pub(crate) fn submit_after(
        &mut self,
        stream: usize,
        work: Work,
        mut after: Vec<OpId>,
    ) -> Result<OpId, Code> {
        let context = self.streams.get(stream)?.context;
        let work = match self.divert(stream, work)? {
            Ok(captured) => return Ok(captured),
            Err(work) => work,
        };
        let mut clock = self.clock_of_next(stream)?;
        for other in self.implied(stream, context)? {
            after.push(self.streams.get(other)?.newest);
        }
        after.retain(|op| !self.queue.done(*op));
        let moment = clock.tick(stream);
        self.queue.last += 1;
        let op = self.queue.last;
        let to = self.streams.get_mut(stream)?;
        to.clock = clock.clone();
        to.newest = op;
        to.queue.push_back(op);
        self.queue.busy.insert(stream);
        let entry = Op {
            stream,
            context,
            after,
            clock,
            moment,
            work,
            running: false,
        };
        self.queue.ops.insert(op, entry);
        Ok(op)
    }

    /// What is ordered before an operation that would be submitted now.
    pub(crate) fn clock_of_next(&self, stream: usize) -> Result<Clock, Code> {
        let to = self.streams.get(stream)?;
        let mut clock = to.clock.clone();
        clock.join(&self.host);
        for other in self.implied(stream, to.context)? {
            clock.join(&self.streams.get(other)?.clock);
        }
        if to.is_legacy {
            clock.join(&self.contexts.get(to.context)?.ended_blocking);
        }
        Ok(clock)
    }

    /// The streams whose work so far comes first because of the legacy default stream's rules: it
    /// waits for all blocking streams of its context, and they wait for it.
    fn implied(&self, stream: usize, context: usize) -> Result<Vec<usize>, Code> {
        let to = self.streams.get(stream)?;
        if to.is_legacy {
            return Ok(self.blocking_streams(context));
        }
        if to.is_blocking() {
            return Ok(vec![self.contexts.get(context)?.legacy]);
        }
        Ok(Vec::new())
    }
}
