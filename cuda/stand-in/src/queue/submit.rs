//! Puts operations into streams.

use larder_cuda_abi::Code;

use super::{OpId, QueuedOp, Work};
use crate::clock::VectorClock;
use crate::driver::SimDriver;

impl SimDriver {
    /// Queues work at the end of a stream. The work does not run before this function returns.
    pub(crate) fn submit(&mut self, stream: usize, work: Work) -> Result<OpId, Code> {
        self.submit_after(stream, work, Vec::new())
    }

    /// Queues work at the end of a stream. The work also waits for the operations `after`.
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
        after.sort_unstable();
        after.dedup();
        let moment = clock.tick(stream);
        let to = self.streams.get_mut(stream)?;
        self.queue.last += 1;
        let op = self.queue.last;
        to.clock = clock.clone();
        to.newest = op;
        to.queue.push_back(op);
        let is_first = to.queue.len() == 1;
        let entry = QueuedOp {
            stream,
            context,
            waits: after.len(),
            followers: Vec::new(),
            clock,
            moment,
            takes: self.queue.time.taken_by(&work),
            ends: 0,
            work,
        };
        self.queue.ops.insert(op, entry);
        for other in after {
            if let Some(other) = self.queue.ops.get_mut(&other) {
                other.followers.push(op);
            }
        }
        if is_first {
            self.queue.make_ready(stream, op);
        }
        Ok(op)
    }

    /// Makes later work of a stream wait for the operation `behind` and for all that is ordered
    /// before it. An error leaves the stream's clock unchanged.
    pub(crate) fn submit_behind(
        &mut self,
        stream: usize,
        behind: Option<(OpId, VectorClock)>,
    ) -> Result<OpId, Code> {
        let (after, clock) = behind.unzip();
        let known = self.streams.get_mut(stream)?;
        let old = known.clock.clone();
        if let Some(clock) = &clock {
            known.clock.join(clock);
        }
        let submitted = self.submit_after(stream, Work::Nothing, after.into_iter().collect());
        if submitted.is_err() {
            self.streams.get_mut(stream)?.clock = old;
        }
        submitted
    }

    /// Returns the clock that an operation submitted now would have, without the operation itself.
    pub(crate) fn clock_of_next(&self, stream: usize) -> Result<VectorClock, Code> {
        let to = self.streams.get(stream)?;
        let mut clock = to.clock.clone();
        clock.join(&self.host);
        for other in self.implied(stream, to.context)? {
            clock.join_stream(other, &self.streams.get(other)?.clock);
        }
        if to.is_legacy {
            clock.join(&self.contexts.get(to.context)?.ended_blocking);
        }
        Ok(clock)
    }

    /// Returns the streams whose work so far comes first by the rules of the legacy default stream:
    /// it waits for all blocking streams of its context, and they wait for it.
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
