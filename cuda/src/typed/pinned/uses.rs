//! [`PinnedUses`]: which streams use a buffer of the host's memory, by events.
//!
//! The host may write memory again as soon as a copy is done, long before the stream has come to its end.
//! So each use is a point in its stream's order, an event. It is recorded right behind a copy that is made
//! here; behind one that cudarc makes it can be recorded only when somebody asks, and covers what was
//! queued on the stream by then.
//!
//! PINUSE1 a use without an event stands for all that its stream has queued; the stream is held.
//! PINUSE2 a write by a device comes after all other uses, and only then are those forgotten; a read comes
//!    after the write. The host waits for whom it must, and those are forgotten.
//! PINUSE3 threads may queue reads at once, on one stream too. Each copy made here records its end behind
//!    itself, so the last record covers all. Copies of cudarc are noted apart: their event is recorded only
//!    when all of them are queued.

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
    /// The device writes.
    write: bool,
    /// PINUSE3.
    ends: bool,
}

/// All uses of one buffer.
#[derive(Default)]
pub(super) struct PinnedUses(Vec<UsedOn>);

impl PinnedUses {
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Orders work that is queued on the stream next. No driver call if only this stream used the buffer,
    /// or it is a further read.
    ///
    /// # Errors
    /// If that is refused, and waiting on the host is as well; the uses are as before.
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
        // A capture queues nothing that stands for the stream's earlier work.
        if write && !is_captured {
            self.forget(events, |_| true);
        }
        Ok(())
    }

    /// Notes work that was ordered; `ends` if its end will be recorded.
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

    /// The copy that was noted is queued (PINUSE3). If its end cannot be recorded now it is later.
    pub(super) fn end(&mut self, events: &Events, stream: &CudaStream) {
        let mut noted = self.0.iter_mut();
        if let Some(used) = noted.find(|used| *used.stream == *stream && used.ends) {
            events.give_some(used.event.take());
            let _ = used.point(events);
        }
    }

    /// The host waits for all uses, or for those that write.
    ///
    /// # Errors
    /// If the driver refuses, as it does while a stream captures whose use has no event; the uses are as
    /// before.
    pub(super) fn wait(&mut self, events: &Events, for_reads: bool) -> Result<(), DriverError> {
        for used in &mut self.0 {
            if for_reads || used.write {
                used.point(events)?.synchronize()?;
            }
        }
        self.forget(events, |used| for_reads || used.write);
        Ok(())
    }

    /// Whether all uses are over. A stream in `busy` is not asked: it was found at work a moment ago. One
    /// that is found so now joins it.
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

    /// Events for the uses that have none, as far as that is possible now.
    pub(super) fn end_all(&mut self, events: &Events) {
        for used in &mut self.0 {
            // Asked for again later.
            let _ = used.point(events);
        }
    }

    /// What could not be waited for.
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
    /// Its event, recorded now if there is none (PINUSE1).
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

/// Whether work queued on the stream becomes part of a graph.
fn captures(events: &Events, stream: &CudaStream) -> bool {
    let status = events.context().capture_status(stream);
    status.is_ok_and(|status| status != CaptureStatus::None)
}

/// Whether two are one stream for any thread.
fn is_same(one: &CudaStream, other: &CudaStream) -> bool {
    one == other && other.cu_stream().addr() != StreamHandle::PER_THREAD.0
}
