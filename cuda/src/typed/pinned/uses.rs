//! [`PinnedUses`]: the streams that use a buffer of host memory, tracked by events.
//!
//! The host may write memory again as soon as a copy is done, long before the stream has finished. So each
//! use has an event in its stream's order. For a copy made here, the event is recorded right after the copy;
//! for a copy that cudarc makes, the event can be recorded only on the first query, and covers all work
//! queued on the stream by then.
//!
//! PINUSE1 a use without an event covers all work queued on its stream, which the use keeps alive.
//! PINUSE2 a write by a device is ordered after all other uses, and only then are these dropped; a read is
//! ordered after the writes. Uses that the host has waited for are dropped.
//! PINUSE3 threads may queue reads at the same time, even on one stream. Each copy made here records its end
//! right after it is queued, so the last record covers them all. Copies of cudarc are noted separately, and
//! their event is recorded only when all of them are queued.

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
    /// Whether the end is recorded right after the copy (PINUSE3).
    ends: bool,
}

/// All uses of one buffer.
#[derive(Default)]
pub(super) struct PinnedUses(Vec<UsedOn>);

impl PinnedUses {
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Orders the work that is queued on the stream next. Makes no driver call if only this stream has used
    /// the buffer, or if it reads again.
    ///
    /// # Errors
    /// If the driver refuses both the wait on the device and the wait on the host; the uses are unchanged.
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
        // Captured work is not queued, so it does not cover the stream's earlier work.
        if write && !is_captured {
            self.forget(events, |_| true);
        }
        Ok(())
    }

    /// Notes ordered work; `ends` says whether the end will be recorded right after it.
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

    /// Records the end of a noted copy that is now queued (PINUSE3). If the driver refuses, the end is
    /// recorded later.
    pub(super) fn end(&mut self, events: &Events, stream: &CudaStream) {
        let mut noted = self.0.iter_mut();
        if let Some(used) = noted.find(|used| *used.stream == *stream && used.ends) {
            events.give_some(used.event.take());
            let _ = used.point(events);
        }
    }

    /// Waits on the host for all uses, or only for writes.
    ///
    /// # Errors
    /// If the driver refuses, as it does for a use without an event while its stream is being captured; the
    /// uses are unchanged.
    pub(super) fn wait(&mut self, events: &Events, for_reads: bool) -> Result<(), DriverError> {
        for used in &mut self.0 {
            if for_reads || used.write {
                used.point(events)?.synchronize()?;
            }
        }
        self.forget(events, |used| for_reads || used.write);
        Ok(())
    }

    /// Returns whether all uses are over. Streams in `busy`, which were found busy a moment ago, are not
    /// queried. A stream that is found busy now is added.
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

    /// Records events for the uses that have none, where the driver allows it now.
    pub(super) fn end_all(&mut self, events: &Events) {
        for used in &mut self.0 {
            // If refused, it is retried later.
            let _ = used.point(events);
        }
    }

    /// Converts the uses to work that could not be waited for.
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
    /// Returns the event of the use, recorded now if there is none (PINUSE1).
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

/// Returns whether two streams are the same on every thread.
fn is_same(one: &CudaStream, other: &CudaStream) -> bool {
    one == other && other.cu_stream().addr() != StreamHandle::PER_THREAD.0
}
