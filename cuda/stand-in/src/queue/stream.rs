//! Streams and their handles.

use std::collections::VecDeque;

use larder_cuda_abi::constants::STREAM_NON_BLOCKING;
use larder_cuda_abi::{Code, StreamHandle};

use super::OpId;
use crate::clock::VectorClock;
use crate::driver::SimDriver;
use crate::thread;

/// One stream.
#[derive(Debug)]
pub(crate) struct SimStream {
    pub(crate) context: usize,
    flags: u32,
    /// Whether the stream is the legacy default stream of its context.
    pub(crate) is_legacy: bool,
    /// Whether the driver, not the program, created the stream.
    pub(crate) is_hidden: bool,
    /// Operations, oldest first (QUEUE2).
    pub(crate) queue: VecDeque<OpId>,
    /// The last operation submitted, which may be done.
    pub(crate) newest: OpId,
    pub(crate) clock: VectorClock,
    /// Whether the program destroyed the stream, which is then removed when its operations are
    /// done.
    pub(crate) destroyed: bool,
}

impl SimStream {
    pub(crate) fn new(context: usize, flags: u32) -> Self {
        Self {
            context,
            flags,
            is_legacy: false,
            is_hidden: false,
            queue: VecDeque::new(),
            newest: 0,
            clock: VectorClock::default(),
            destroyed: false,
        }
    }

    pub(crate) fn legacy(context: usize) -> Self {
        Self {
            is_legacy: true,
            is_hidden: true,
            ..Self::new(context, 0)
        }
    }

    /// Creates a thread's default stream.
    fn per_thread(context: usize) -> Self {
        Self {
            is_hidden: true,
            ..Self::new(context, 0)
        }
    }

    /// Returns whether this stream and the legacy default stream wait for each other.
    pub(crate) fn is_blocking(&self) -> bool {
        !self.is_legacy && self.flags & STREAM_NON_BLOCKING == 0
    }
}

impl SimDriver {
    /// Returns the stream of a handle, for the calling thread: null and the special handles name
    /// streams of the current context.
    pub(crate) fn stream(&mut self, handle: StreamHandle) -> Result<usize, Code> {
        match handle {
            StreamHandle::NULL | StreamHandle::LEGACY => {
                let context = self.current()?;
                Ok(self.contexts.get(context)?.legacy)
            }
            StreamHandle::PER_THREAD => {
                let context = self.current()?;
                self.per_thread_stream(context)
            }
            StreamHandle(handle) => {
                let number = self.stream_names.number(handle)?;
                self.alive(self.streams.get(number)?.context)?;
                Ok(number)
            }
        }
    }

    fn per_thread_stream(&mut self, context: usize) -> Result<usize, Code> {
        let thread = thread::number();
        if let Some(stream) = self.contexts.get(context)?.per_thread.get(&thread) {
            return Ok(*stream);
        }
        let stream = self.handles.next();
        self.streams.insert(stream, SimStream::per_thread(context));
        let context = self.contexts.get_mut(context)?;
        context.per_thread.insert(thread, stream);
        Ok(stream)
    }

    /// Destroys a stream for the program. Its queued work still runs.
    pub(crate) fn destroy_stream(&mut self, number: usize) -> Result<(), Code> {
        self.streams.get_mut(number)?.destroyed = true;
        self.stream_names.forget(number);
        self.end_captures_from(number);
        self.remove_idle_stream(number);
        Ok(())
    }

    /// Removes a stream if it is destroyed and has no operations left.
    pub(crate) fn remove_idle_stream(&mut self, number: usize) {
        let over = self
            .streams
            .get(number)
            .is_ok_and(|stream| stream.destroyed && stream.queue.is_empty());
        if over {
            self.remove_stream(number);
        }
    }

    /// Removes a stream. The context keeps the clock of the stream's end.
    pub(crate) fn remove_stream(&mut self, number: usize) {
        let Ok(stream) = self.streams.remove(number) else {
            return;
        };
        self.stream_names.forget(number);
        if let Ok(context) = self.contexts.get_mut(stream.context) {
            context.ended.join(&stream.clock);
            if stream.is_blocking() {
                context.ended_blocking.join(&stream.clock);
            }
        }
        self.forget_streams();
    }

    /// Returns the streams of a context, hidden ones included.
    pub(crate) fn streams_of(&self, context: usize) -> Vec<usize> {
        self.streams.all(|stream| stream.context == context)
    }

    /// Returns the streams of a context that wait for the legacy default stream, and for which it
    /// waits.
    pub(crate) fn blocking_streams(&self, context: usize) -> Vec<usize> {
        self.streams
            .all(|stream| stream.context == context && stream.is_blocking())
    }
}
