//! Events: when they are recorded, which have completed, and waits for them on a device or the host.

use cudarc::driver::CudaStream;
use larder_core::{EventNumber, StreamId, StreamPoint};

use super::{StreamSlot, StreamState, StreamTable, WantedBy, is_default};
use crate::driver::owed::Unwaited;
use crate::driver::{Code, locked};
use crate::{CaptureStatus, DriverError, Event, EventConfig};

impl StreamTable {
    /// Returns the point that a free carries if it is made now.
    #[inline]
    pub(crate) fn point(&self, stream_id: StreamId) -> StreamPoint {
        StreamPoint {
            stream: stream_id,
            event: self.slots[stream_id].open.for_free(),
        }
    }

    /// Makes later work of the stream, whose number is `stream_id`, wait for a point. Costs at most four
    /// driver calls with their contexts, and none if the stream already waits for the point. Returns `false`
    /// if a capture of either stream, or a capture that may begin, forbids the wait.
    pub(crate) fn order(
        &self,
        stream: &CudaStream,
        stream_id: StreamId,
        after: StreamPoint,
        by: WantedBy,
    ) -> Result<bool, DriverError> {
        let wanted = after.event.number();
        let (behind, before) = (&self.slots[stream_id], &self.slots[after.stream]);
        let from = after.stream.number();
        let waits = locked(&behind.queue).waited.get(&from).copied();
        if stream_id == after.stream || waits.is_some_and(|number| number >= wanted) {
            return Ok(true);
        }
        if self.captures(stream)? {
            return Ok(false);
        }
        let mut queue = locked(&before.queue);
        if wanted > queue.recorded && !self.close(before, &mut queue, by)? {
            return Ok(false);
        }
        // The first event at or after the point; none if the point is done.
        let found = queue.events.iter().find(|(number, _)| *number >= wanted);
        let Some((number, event)) = found else {
            return Ok(true);
        };
        let number = *number;
        event.wait_on(stream)?;
        drop(queue);
        let mut queue = locked(&behind.queue);
        let waited = queue.waited.entry(from).or_default();
        *waited = number.max(*waited);
        queue.waits += 1;
        Ok(true)
    }

    /// Returns whether work queued on a stream becomes part of a graph. Costs one driver call, with its
    /// context.
    pub(crate) fn captures(&self, stream: &CudaStream) -> Result<bool, DriverError> {
        Ok(self.context.capture_status(stream)? != CaptureStatus::None)
    }

    /// Returns whether memory allocated for a stream now becomes part of a graph. Costs one driver call, or
    /// none for a default stream, which is never captured.
    #[inline]
    pub(crate) fn makes_graph(&self, stream: &CudaStream) -> Result<bool, DriverError> {
        let is_default = is_default(stream.cu_stream().addr());
        Ok(!is_default && self.context.status_of_own(stream)? != CaptureStatus::None)
    }

    /// Records the open event of a stream (STREAM1). Returns `false` if the stream is being captured, or may
    /// be at any moment (STREAM5), since the event would belong to the graph.
    pub(super) fn close(
        &self,
        shared: &StreamSlot,
        queue: &mut StreamState,
        by: WantedBy,
    ) -> Result<bool, DriverError> {
        let Some(stream) = queue.stream.clone() else {
            // Nothing has been queued since the stream was released, so its last event covers this number,
            // too.
            queue.recorded = shared.open.close().number();
            match queue.events.back_mut() {
                Some((number, _)) => *number = queue.recorded,
                None => queue.done = queue.recorded,
            }
            return Ok(true);
        };
        let leaves = by == WantedBy::Memory && queue.may_capture;
        if leaves || self.captures(&stream)? {
            return Ok(false);
        }
        let mut spare = locked(&self.spare).pop();
        if spare.is_none() {
            self.drain_events(queue);
            spare = locked(&self.spare).pop();
        }
        let event = match spare {
            Some(event) => event,
            None => Event::new(&self.context, EventConfig::default())?,
        };
        let closed = shared.open.close();
        if let Err(error) = event.record(&stream) {
            shared.open.reopen();
            locked(&self.spare).push(event);
            return Err(error);
        }
        queue.recorded = closed.number();
        queue.records += 1;
        queue.events.push_back((queue.recorded, event));
        Ok(true)
    }

    /// Sets whether a capture of the stream may begin at any moment (STREAM5).
    pub(crate) fn set_may_capture(&self, stream_id: StreamId, may_capture: bool) {
        locked(&self.slots[stream_id].queue).may_capture = may_capture;
    }

    /// Records all open events that frees carry, except those that the driver refuses.
    pub(crate) fn close_all(&self) {
        for (_, shared) in self.slots.iter() {
            if shared.open.has_freed() {
                // After a refusal the memory stays pending and is not reused yet.
                let _ = self.close(shared, &mut locked(&shared.queue), WantedBy::Memory);
            }
        }
    }

    /// Takes the events that are done out of the list.
    pub(super) fn drain_events(&self, queue: &mut StreamState) {
        while let Some((number, event)) = queue.events.front() {
            if event.query() != Ok(true) {
                return;
            }
            queue.done = *number;
            if let Some((_, event)) = queue.events.pop_front() {
                locked(&self.spare).push(event);
            }
        }
    }

    /// Calls `done` with each stream that has reached a further recorded event since the last poll. Costs one
    /// driver call for each event that is done, and one for each stream whose next event is not.
    pub(crate) fn poll(&self, mut done: impl FnMut(StreamId, EventNumber)) {
        for (stream_id, _) in self.ids() {
            let shared = &self.slots[stream_id];
            let mut queue = locked(&shared.queue);
            self.drain_events(&mut queue);
            let passed = queue.done;
            let news = passed > queue.reported;
            drop(queue);
            if news {
                done(stream_id, EventNumber::new(passed));
                // Marked as reported only now. Otherwise another thread that is short of memory would rely on
                // a report that is still to come.
                let mut queue = locked(&shared.queue);
                queue.reported = passed.max(queue.reported);
            }
        }
    }

    /// Returns the number of times that a stream was made to wait, and the number of events recorded on it.
    pub(crate) fn counts(&self, stream_id: StreamId) -> (u64, u64) {
        let queue = locked(&self.slots[stream_id].queue);
        (queue.waits, queue.records)
    }

    /// Returns whether the work before a point was done at the last poll of its stream.
    pub(crate) fn is_done(&self, point: StreamPoint) -> bool {
        locked(&self.slots[point.stream].queue).done >= point.event.number()
    }

    /// Waits on the host, before the end, for all work queued on any of the streams. Returns the work that
    /// could not be waited for: that of streams that are being captured, or whose wait the driver refuses.
    pub(crate) fn wait_for_all(&mut self) -> Vec<Unwaited> {
        let mut unwaited = Vec::new();
        for (_, shared) in self.slots.iter() {
            let mut queue = locked(&shared.queue);
            let events = core::mem::take(&mut queue.events);
            match &queue.stream {
                Some(stream) => {
                    let waits = || {
                        self.captures(stream) == Ok(false) && self.context.wait_for(stream).is_ok()
                    };
                    // Tried twice, since a refusal may be temporary.
                    if !waits() && !waits() {
                        unwaited.push(Unwaited::Stream(stream.arc().clone()));
                    }
                }
                None => unwaited.extend(events.into_iter().filter_map(|(_, event)| {
                    let is_over = event.synchronize().is_ok();
                    (!is_over).then(|| Unwaited::Event(event.into_handle()))
                })),
            }
        }
        unwaited
    }

    /// Waits on the host for all work of the context, including streams that only use memory of other
    /// streams.
    ///
    /// # Errors
    /// If a known stream is being captured: the wait would invalidate the capture, so it is not made. If the
    /// driver refuses, or work failed.
    pub(crate) fn wait_for_context(&self) -> Result<(), DriverError> {
        for stream in self.ids().filter_map(|(id, _)| self.stream(id)) {
            match self.captures(&stream) {
                // The stream's owner has destroyed it.
                Err(error) if error.code() == Some(Code::INVALID_HANDLE) => {}
                captures if captures? => {
                    return Err(DriverError::Call {
                        function: "cuCtxSynchronize",
                        code: Code::STREAM_CAPTURE_UNSUPPORTED,
                    });
                }
                _ => {}
            }
        }
        self.context.synchronize()
    }

    /// Waits on the host for the last recorded event of a stream. Returns whether there was one.
    pub(crate) fn wait_for(&self, stream_id: StreamId) -> Result<bool, DriverError> {
        let queue = locked(&self.slots[stream_id].queue);
        match queue.events.back() {
            Some((_, event)) => event.synchronize().map(|()| true),
            None => Ok(false),
        }
    }
}
