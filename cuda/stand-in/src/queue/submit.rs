//! Puts operations into streams.

use larder_cuda_abi::Code;

use super::{Op, OpId, Work};
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
        let implied = self.implied(stream, context)?;
        let mut clock = self.streams.get(stream)?.clock.clone();
        clock.join(&self.host);
        for other in implied {
            let other = self.streams.get(other)?;
            clock.join(&other.clock);
            after.push(other.newest);
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

    /// A call that is not allowed while a stream captures.
    pub(crate) fn unsafe_call(&mut self) -> Result<(), Code> {
        Ok(())
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
