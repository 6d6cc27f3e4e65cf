//! The streams of one allocator by number, and which of their work memory still waits for, in events.
//!
//! Each stream that allocates has a number in the core. A free carries the number of the stream's
//! *open* event, which is not recorded yet: memory that comes back to its own stream needs none. The
//! event is recorded when another stream wants such memory, or when memory is short. All frees since
//! the last recorded event share it.
//!
//! STREAM1 an event is recorded after the next number was opened ([`OpenEvent`]), under the stream's lock. A
//! free reads the open number without that lock. So the event comes behind all work that was queued
//! before a free with its number: the driver puts work of one stream in one order.
//! STREAM2 a stream's events stand in the order of their numbers, and the newest one is `recorded`. Numbers up
//! to `recorded` without an event in the list are done, up to `done`.
//!
//! A stream's lock is held while an event is recorded. Whoever holds it wants no other lock of ours but
//! that of the spare events.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use cudarc::driver::CudaStream;
use larder_core::sync::{AtomicUsize, OpenEvent, Ordering};
use larder_core::{EventNumber, StreamId, StreamPoint};
use larder_cuda_abi::StreamHandle;

use super::ByStream;
use crate::driver::locked;
use crate::{CaptureStatus, Context, DeviceAllocError, DriverError, Event, EventConfig};

/// The first event's number; what has a smaller one counts as done.
const FIRST: u64 = 1;

/// One stream.
struct Queue {
    /// Kept, so that its events can always be recorded.
    stream: Option<Arc<CudaStream>>,
    /// Recorded events whose work may not be done, with their numbers (STREAM2).
    events: VecDeque<(u64, Event)>,
    /// The newest recorded event.
    recorded: u64,
    /// The newest event that was seen done.
    done: u64,
    /// The newest event that was reported to the core as done.
    reported: u64,
    /// Times the stream was made to wait, and events recorded in it.
    waits: u64,
    records: u64,
    /// For each other stream: the newest of its events that this stream waits for already.
    waited: BTreeMap<u8, u64>,
}

/// What threads share of a stream; on cache lines of its own, as each is used by other threads.
#[repr(align(128))]
struct StreamSlot {
    open: OpenEvent,
    queue: Mutex<Queue>,
}

impl Default for StreamSlot {
    fn default() -> Self {
        Self {
            open: OpenEvent::new(EventNumber::new(FIRST)),
            queue: Mutex::new(Queue {
                stream: None,
                events: VecDeque::new(),
                recorded: FIRST - 1,
                done: FIRST - 1,
                reported: FIRST - 1,
                waits: 0,
                records: 0,
                waited: BTreeMap::new(),
            }),
        }
    }
}

/// Where a stream's number is looked for first. Handles are addresses: the low bits say little.
#[inline]
const fn first_id_of(handle: usize) -> StreamId {
    StreamId::new(((handle >> 4) ^ (handle >> 12)) as u8)
}

/// All streams of one allocator.
pub(crate) struct Streams {
    context: Context,
    /// The context's handle, as streams know theirs.
    own: usize,
    /// The stream's handle and one, or 0. A stream is found by hashing the handle; none is
    /// ever taken out.
    keys: ByStream<AtomicUsize>,
    shared: ByStream<StreamSlot>,
    /// Held while a number is taken.
    adding: Mutex<()>,
    /// Events whose work is done.
    spare: Mutex<Vec<Event>>,
}

impl Streams {
    pub(crate) fn new(context: &Context) -> Self {
        Self {
            context: context.clone(),
            own: context.cudarc().cu_ctx().addr(),
            keys: ByStream::default(),
            shared: ByStream::default(),
            adding: Mutex::new(()),
            spare: Mutex::default(),
        }
    }

    /// The number of a stream. O(1) but for the first time.
    #[inline]
    pub(crate) fn id(&self, stream: &Arc<CudaStream>) -> Result<StreamId, DeviceAllocError> {
        let handle = stream.cu_stream().addr();
        let first = first_id_of(handle);
        // Acquire: what is the stream's was made ready before the key was set.
        let is_first = self.keys[first].load(Ordering::Acquire) == handle.wrapping_add(1);
        if is_first && stream.context().cu_ctx().addr() == self.own {
            return Ok(first);
        }
        self.id_elsewhere(stream)
    }

    #[cold]
    fn id_elsewhere(&self, stream: &Arc<CudaStream>) -> Result<StreamId, DeviceAllocError> {
        match self.known(stream)? {
            Some(stream_id) => Ok(stream_id),
            None => self.add(stream),
        }
    }

    /// The number of a stream that has one.
    ///
    /// The handle names the stream: so it must be one of our context, as all default streams have the
    /// same, and not that of the calling thread's own default stream.
    pub(crate) fn known(&self, stream: &CudaStream) -> Result<Option<StreamId>, DeviceAllocError> {
        let handle = stream.cu_stream().addr();
        let is_ours = stream.context().cu_ctx().addr() == self.own;
        if !is_ours || handle == StreamHandle::PER_THREAD.0 {
            return Err(DeviceAllocError::Stream);
        }
        Ok(match self.probe(handle) {
            Some((stream_id, true)) => Some(stream_id),
            _ => None,
        })
    }

    /// The place of a stream, which is its number, and whether it is there already.
    fn probe(&self, handle: usize) -> Option<(StreamId, bool)> {
        let first = first_id_of(handle).number();
        (0..=u8::MAX).find_map(|step| {
            let stream_id = StreamId::new(first.wrapping_add(step));
            // Acquire: the queue was made ready before the key was set.
            match self.keys[stream_id].load(Ordering::Acquire) {
                0 => Some((stream_id, false)),
                key if key == handle.wrapping_add(1) => Some((stream_id, true)),
                _ => None,
            }
        })
    }

    #[cold]
    fn add(&self, stream: &Arc<CudaStream>) -> Result<StreamId, DeviceAllocError> {
        let handle = stream.cu_stream().addr();
        let _adding = locked(&self.adding);
        let (stream_id, known) = self.probe(handle).ok_or(DeviceAllocError::Streams)?;
        if !known {
            locked(&self.shared[stream_id].queue).stream = Some(stream.clone());
            self.keys[stream_id].store(handle.wrapping_add(1), Ordering::Release);
        }
        Ok(stream_id)
    }

    /// The stream with a number.
    pub(crate) fn stream(&self, stream_id: StreamId) -> Option<Arc<CudaStream>> {
        locked(&self.shared[stream_id].queue).stream.clone()
    }

    /// The numbers that are taken, with their streams' handles.
    pub(crate) fn ids(&self) -> impl Iterator<Item = (StreamId, usize)> {
        self.keys.iter().filter_map(|(stream_id, key)| {
            let handle = key.load(Ordering::Acquire).checked_sub(1)?;
            Some((stream_id, handle))
        })
    }

    /// What a free at this moment must carry.
    #[inline]
    pub(crate) fn point(&self, stream_id: StreamId) -> StreamPoint {
        StreamPoint {
            stream: stream_id,
            event: self.shared[stream_id].open.for_free(),
        }
    }

    /// Makes later work of a stream, whose number is given, wait for a point. At most four
    /// driver calls with their contexts, and none if it waits for that already. `false` if a capture
    /// of either stream forbids it.
    pub(crate) fn order(
        &self,
        stream: &CudaStream,
        stream_id: StreamId,
        after: StreamPoint,
    ) -> Result<bool, DriverError> {
        let wanted = after.event.number();
        let (behind, before) = (&self.shared[stream_id], &self.shared[after.stream]);
        let from = after.stream.number();
        let waits = locked(&behind.queue).waited.get(&from).copied();
        if stream_id == after.stream || waits.is_some_and(|number| number >= wanted) {
            return Ok(true);
        }
        if self.captures(stream)? {
            return Ok(false);
        }
        let mut queue = locked(&before.queue);
        if wanted > queue.recorded && !self.close(before, &mut queue)? {
            return Ok(false);
        }
        // The first at or behind the point; none if that is done.
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

    /// Whether work queued on a stream becomes part of a graph. One driver call and its context.
    pub(crate) fn captures(&self, stream: &CudaStream) -> Result<bool, DriverError> {
        Ok(self.context.capture_status(stream)? != CaptureStatus::None)
    }

    /// Records the open event of a stream (STREAM1). Not while its stream captures: the event would
    /// be the graph's.
    fn close(&self, shared: &StreamSlot, queue: &mut Queue) -> Result<bool, DriverError> {
        let Some(stream) = &queue.stream else {
            return Ok(true);
        };
        if self.captures(stream)? {
            return Ok(false);
        }
        let stream = stream.clone();
        let mut spare = locked(&self.spare).pop();
        if spare.is_none() {
            self.look(queue);
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

    /// Records all open events with which something was freed, as far as the driver allows.
    pub(crate) fn close_all(&self) {
        for (_, shared) in self.shared.iter() {
            if shared.open.has_freed() {
                // Memory that stays pending is only not reused.
                let _ = self.close(shared, &mut locked(&shared.queue));
            }
        }
    }

    /// Takes the events out that are done.
    fn look(&self, queue: &mut Queue) {
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

    /// Calls `done` with each stream that has passed a recorded event since it was asked last. One driver call
    /// for each event that is done, and one for each stream whose next is not.
    pub(crate) fn poll(&self, mut done: impl FnMut(StreamId, EventNumber)) {
        for (stream_id, _) in self.ids() {
            let shared = &self.shared[stream_id];
            let mut queue = locked(&shared.queue);
            self.look(&mut queue);
            let passed = queue.done;
            let news = passed > queue.reported;
            drop(queue);
            if news {
                done(stream_id, EventNumber::new(passed));
                // Not before: else another thread that is short would rely on what nobody knows yet.
                let mut queue = locked(&shared.queue);
                queue.reported = passed.max(queue.reported);
            }
        }
    }

    /// Times a stream was made to wait, and events recorded in it.
    pub(crate) fn counts(&self, stream_id: StreamId) -> (u64, u64) {
        let queue = locked(&self.shared[stream_id].queue);
        (queue.waits, queue.records)
    }

    /// Whether the work of a point was seen done when the stream was looked at last.
    pub(crate) fn is_done(&self, point: StreamPoint) -> bool {
        locked(&self.shared[point.stream].queue).done >= point.event.number()
    }

    /// Waits on the host for all that is queued on any of the streams; not for one that captures.
    pub(crate) fn wait_for_all(&self) {
        for (_, shared) in self.shared.iter() {
            let stream = locked(&shared.queue).stream.clone();
            if let Some(stream) = stream
                && self.captures(&stream) != Ok(true)
            {
                // What failed on the device can use no memory either.
                let _ = self.context.wait_for(&stream);
            }
        }
    }

    /// Waits on the host for the last recorded event of a stream; whether there was any.
    pub(crate) fn wait_for(&self, stream_id: StreamId) -> Result<bool, DriverError> {
        let queue = locked(&self.shared[stream_id].queue);
        match queue.events.back() {
            Some((_, event)) => event.synchronize().map(|()| true),
            None => Ok(false),
        }
    }
}
