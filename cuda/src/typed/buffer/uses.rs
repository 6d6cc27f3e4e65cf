//! [`Uses`]: the streams that use a buffer, and the waits that order another use after theirs.
//!
//! A use is noted before its work is queued, since cudarc asks for the address then; no event is recorded at
//! that time. When another stream uses the buffer later, it waits once for all work queued on the first
//! stream at that time. The borrow checker ensures that this includes the noted work: reads borrow the
//! buffer, and a write borrows it exclusively.
//!
//! USE1 a read comes after all writes: its stream waits for every other stream in `writers`.
//! USE2 a write comes after all writes and all reads. After a write of the whole buffer, the earlier uses are
//! dropped, since a wait for the write covers them.
//! USE3 `seen` is the set of streams that have waited for all writes so far; any write empties it.
//! USE4 `written` is a point after all writes of its stream. It was taken after all noted work was queued.
//! USE5 a use of a view *beside* others (threads may use split parts at the same time and queue their work in
//! any order) drops no earlier use and keeps no point, since some work of the other parts may not be queued
//! yet.
//! USE6 a use that could not be ordered (during a capture, or after a refusal) does not count as ordered for
//! later uses.

use cudarc::driver::{self as cuda, CudaStream};
use larder_core::{StreamId, StreamPoint};

use super::stream_set::StreamSet;
use crate::DeviceAllocator;
use crate::device::Ordered;

/// A use of a buffer by a stream.
#[derive(Clone, Copy)]
pub(super) struct Use<'a> {
    pub(super) memory: &'a DeviceAllocator,
    pub(super) stream: &'a CudaStream,
    /// The stream's number; `None` if the allocator does not know it.
    pub(super) stream_id: Option<StreamId>,
    /// Whether other parts may be used at the same time (USE5).
    pub(super) beside: bool,
}

/// The streams that use a buffer.
#[derive(Debug)]
pub(super) struct Uses {
    writers: StreamSet,
    readers: StreamSet,
    /// Streams that have waited for all writes (USE3).
    seen: StreamSet,
    /// A point after all writes of its stream (USE4).
    written: Option<StreamPoint>,
}

impl Uses {
    /// Makes the uses of a new block, whose memory is ready for work queued on `origin`.
    pub(super) fn new(origin: StreamId) -> Self {
        Self {
            writers: StreamSet::one(origin),
            readers: StreamSet::EMPTY,
            seen: StreamSet::EMPTY,
            written: None,
        }
    }

    /// Notes that a part of the memory is new, and ready for work queued on a stream: other streams wait for that one
    /// before they use the buffer.
    pub(super) fn add_writer(&mut self, stream_id: StreamId) {
        self.writers.insert(stream_id);
        (self.seen, self.written) = (StreamSet::EMPTY, None);
    }

    /// Returns the streams whose work may still use the buffer, except the one it was allocated on.
    pub(super) fn others(&self, origin: StreamId) -> StreamSet {
        self.writers.with(&self.readers).without(origin)
    }

    /// Notes a read by work that is queued next. Makes no driver call if the stream was the last to write, or
    /// reads again.
    ///
    /// # Errors
    /// If the read could not be ordered after the writes; the read is noted nevertheless.
    pub(super) fn read(&mut self, by: Use<'_>) -> Result<(), cuda::DriverError> {
        let Some(stream_id) = by.stream_id else {
            return wait(by.memory, &self.writers);
        };
        self.readers.insert(stream_id);
        if self.seen.has(stream_id) {
            return Ok(());
        }
        let seen = self.after_writers(by, stream_id)?;
        if seen && !by.beside {
            self.seen.insert(stream_id);
        }
        Ok(())
    }

    /// Notes a write by work that is queued next. Makes no driver call if only this stream has used the
    /// buffer since its last write.
    ///
    /// # Errors
    /// If the write could not be ordered after all other uses; the write is noted nevertheless.
    pub(super) fn write(&mut self, by: Use<'_>) -> Result<(), cuda::DriverError> {
        let outcome = match by.stream_id {
            Some(stream_id) => self.after_all(by, stream_id),
            None => wait(by.memory, &self.writers.with(&self.readers)).map(|()| true),
        };
        if outcome == Ok(true) && !by.beside {
            // USE2: the write covers the earlier uses.
            self.writers = StreamSet::EMPTY;
            self.readers = StreamSet::EMPTY;
        }
        self.seen = StreamSet::EMPTY;
        self.written = None;
        if let Some(stream_id) = by.stream_id {
            self.writers.insert(stream_id);
        }
        outcome.map(drop)
    }

    /// Orders a use after all writes (USE1). Returns whether it comes after each of them.
    fn after_writers(
        &mut self,
        by: Use<'_>,
        stream_id: StreamId,
    ) -> Result<bool, cuda::DriverError> {
        let writers = self.writers.without(stream_id);
        all(writers.iter().map(|writer| {
            let noted = self.written.filter(|point| point.stream == writer);
            let point = noted.unwrap_or_else(|| by.memory.known_streams().point(writer));
            if !by.beside {
                self.written = Some(point);
            }
            by.memory.order_stream_id(by.stream, stream_id, point)
        }))
    }

    /// Orders a use after all writes and reads (USE2). Returns whether it comes after each of them.
    fn after_all(&mut self, by: Use<'_>, stream_id: StreamId) -> Result<bool, cuda::DriverError> {
        let readers = self.readers.without(stream_id);
        let after_readers = all(readers.iter().map(|reader| {
            let point = by.memory.known_streams().point(reader);
            by.memory.order_stream_id(by.stream, stream_id, point)
        }));
        // A wait for a reader that has waited for the writers covers the writers.
        let through_readers = self.seen.has(stream_id) || self.seen.meets(&readers);
        let after_writers = if through_readers {
            Ok(true)
        } else {
            self.after_writers(by, stream_id)
        };
        Ok(after_readers? && after_writers?)
    }
}

/// Waits on the host for all of these streams.
fn wait(memory: &DeviceAllocator, stream_ids: &StreamSet) -> Result<(), cuda::DriverError> {
    let waits = stream_ids
        .iter()
        .map(|stream_id| memory.wait_for_stream(stream_id));
    all(waits.map(|waited| waited.map(|()| Ordered::Yes))).map(drop)
}

/// Runs all of `acts`, even after an error. Returns the first error, or whether all are ordered.
fn all(
    acts: impl Iterator<Item = Result<Ordered, cuda::DriverError>>,
) -> Result<bool, cuda::DriverError> {
    let mut outcome = Ok(true);
    for act in acts {
        outcome = match (outcome, act) {
            (Ok(sofar), Ok(ordered)) => Ok(sofar && ordered == Ordered::Yes),
            (Ok(_), Err(error)) => Err(error),
            (refused, _) => refused,
        };
    }
    outcome
}
