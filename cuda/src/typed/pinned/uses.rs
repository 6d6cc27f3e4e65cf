//! [`PinnedUses`]: the streams that use a buffer of host memory, tracked by events.
//!
//! The host may write memory again as soon as a copy is done, long before the stream has finished. So each
//! use is a point in its stream's order, an event. For a copy made here it is recorded right after the copy;
//! for one that cudarc makes it can be recorded only on the first query, and covers the work queued on the
//! stream by then.
//!
//! PINUSE1 a use without an event covers all work queued on its stream; the stream is held.
//! PINUSE2 a write by a device comes after all other uses, and only then are those dropped; a read comes
//! after the write. Uses that the host has waited for are dropped.
//! PINUSE3 threads may queue reads at the same time, even on one stream. Each copy made here records its end
//! after itself, so the last record covers all. Copies of cudarc are noted separately: their event is
//! recorded only when all of them are queued.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_cuda_abi::{Code, StreamHandle};

use super::pool::Events;
use crate::driver::owed::Unwaited;
use crate::{CaptureStatus, DriverError, Event};

/// A stream's work with a buffer.
struct UsedOn {
    stream: Arc<CudaStream>,
    event: Option<Event>,
    /// Whether the device writes.
    write: bool,
    /// Whether the copy itself records its end (PINUSE3).
    ends: bool,
}

/// All uses of one buffer.
#[derive(Default)]
pub(super) struct PinnedUses(Vec<UsedOn>);

impl PinnedUses {
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Orders work that is queued on the stream next. No driver call if only this stream used the buffer, or
    /// if it reads again.
    ///
    /// # Errors
    /// If both the order and a wait on the host are refused; the uses are unchanged.
    pub(super) fn order(
        &mut self,
        events: &Events,
        stream: &CudaStream,
        write: bool,
        is_captured: bool,
    ) -> Result<(), DriverError> {
        let again = |used: &UsedOn| is_same(&used.stream, stream);
        if !write && self.0.iter().any(again) {
            return Ok(());
        }
        for used in &mut self.0 {
            if is_same(&used.stream, stream) || !(write || used.write) {
                continue;
            }
            let event = used.point(events)?;
            if is_captured || event.wait_on(stream).is_err() {
                event.synchronize()?;
            }
        }
        // A capture queues nothing that covers the stream's earlier work.
        if write && !is_captured {
            self.forget(events, |_| true);
        }
        Ok(())
    }

    /// Notes ordered work; `ends` if its end will be recorded.
    pub(super) fn note(
        &mut self,
        events: &Events,
        stream: &Arc<CudaStream>,
        write: bool,
        ends: bool,
    ) {
        let mut known = self.0.iter_mut();
        match known.find(|used| used.stream == *stream && used.ends == ends) {
            Some(used) => {
                used.write |= write;
                events.give_some(used.event.take());
            }
            None => self.0.push(UsedOn {
                stream: stream.clone(),
                event: None,
                write,
                ends,
            }),
        }
    }

    /// Records the end of a noted copy, now queued (PINUSE3). If that is refused it is recorded later.
    pub(super) fn end(&mut self, events: &Events, stream: &CudaStream) {
        let mut noted = self.0.iter_mut();
        if let Some(used) = noted.find(|used| *used.stream == *stream && used.ends) {
            events.give_some(used.event.take());
            let _ = used.point(events);
        }
    }

    /// Waits on the host for all uses, or for those that write.
    ///
    /// # Errors
    /// If the driver refuses, as it does while a stream captures whose use has no event; the uses are
    /// unchanged.
    pub(super) fn wait(&mut self, events: &Events, for_reads: bool) -> Result<(), DriverError> {
        for used in &mut self.0 {
            if for_reads || used.write {
                used.point(events)?.synchronize()?;
            }
        }
        self.forget(events, |used| for_reads || used.write);
        Ok(())
    }

    /// Returns whether all uses are over. A stream in `busy` is not queried, since it was found busy a moment
    /// ago. A stream found busy now is added.
    pub(super) fn are_over(&mut self, events: &Events, busy: &mut Vec<Arc<CudaStream>>) -> bool {
        let are_over = self.0.iter_mut().all(|used| {
            if busy.iter().any(|stream| Arc::ptr_eq(stream, &used.stream)) {
                return false;
            }
            let is_over = used.point(events).and_then(Event::query) == Ok(true);
            if !is_over {
                busy.push(used.stream.clone());
            }
            is_over
        });
        if are_over {
            self.forget(events, |_| true);
        }
        are_over
    }

    /// Records events for the uses that have none, as far as that is possible now.
    pub(super) fn end_all(&mut self, events: &Events) {
        for used in &mut self.0 {
            // Retried later.
            let _ = used.point(events);
        }
    }

    /// Converts to the work that could not be waited for.
    pub(super) fn into_unwaited(self) -> impl Iterator<Item = Unwaited> {
        self.0.into_iter().map(|used| match used.event {
            Some(event) => Unwaited::Event(event.into_handle()),
            None => Unwaited::Stream(used.stream),
        })
    }

    fn forget(&mut self, events: &Events, which: impl Fn(&UsedOn) -> bool) {
        for used in self.0.extract_if(.., |used| which(used)) {
            events.give_some(used.event);
        }
    }
}

impl UsedOn {
    /// Returns its event, recorded now if there is none (PINUSE1).
    fn point(&mut self, events: &Events) -> Result<&Event, DriverError> {
        match &mut self.event {
            Some(event) => Ok(event),
            none => {
                if captures(events, &self.stream) {
                    return Err(DriverError::Call {
                        function: "cuEventRecord",
                        code: Code::STREAM_CAPTURE_UNSUPPORTED,
                    });
                }
                let event = events.take()?;
                if let Err(error) = event.record(&self.stream) {
                    events.give(event);
                    return Err(error);
                }
                Ok(none.insert(event))
            }
        }
    }
}

/// Returns whether work queued on the stream becomes part of a graph.
fn captures(events: &Events, stream: &CudaStream) -> bool {
    let status = events.context().capture_status(stream);
    status.is_ok_and(|status| status != CaptureStatus::None)
}

/// Returns whether two are the same stream for any thread.
fn is_same(one: &CudaStream, other: &CudaStream) -> bool {
    one == other && other.cu_stream().addr() != StreamHandle::PER_THREAD.0
}
