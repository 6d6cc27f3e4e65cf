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
//! STREAM3 a number is one stream's as long as anybody but the allocators holds that stream. Then everything
//! queued on it is recorded, and the stream let go; once that work is done, the number is the next
//! stream's. So what was freed or used under a number before is out of use for whoever has it later.
//! STREAM4 handles are given again by the driver, values of cudarc that we hold are not: an allocation's
//! stream is the one of a number if it is the same value, or else by `cuStreamGetId`. Of a stream that captures
//! that is not asked, for the question would end the capture (seen on an H200 with driver 580): it is taken for
//! what its handle says. One that was seen first so, and comes by another value later, counts as another.
//! STREAM5 no event is recorded for memory on a stream that a window is open for. The thread that has it may begin the
//! capture between the question whether it captures and the event, which would be the graph's then: whoever
//! asks for such an event spoils the capture.
//!
//! A stream's lock is held while an event is recorded. Whoever holds it wants no other lock of ours but
//! that of the spare events. The lock of those who add or let go streams comes first.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use cudarc::driver::CudaStream;
use larder_core::sync::{AtomicUsize, OpenEvent, Ordering};
use larder_core::{EventNumber, StreamId, StreamPoint};
use larder_cuda_abi::StreamHandle;

use super::held::HeldStream;
use super::{ByStream, StreamCounts};
use crate::driver::owed::Unwaited;
use crate::driver::{Code, locked};
use crate::{CaptureStatus, Context, DeviceAllocError, DriverError, Event, EventConfig};

/// The first event's number; what has a smaller one counts as done.
const FIRST: u64 = 1;

/// A place whose stream was let go.
const LEFT: usize = usize::MAX;

/// Who wants an event to be recorded (STREAM5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WantedBy {
    /// The program, which knows what the stream does.
    Program,
    /// The allocator, for memory, at a moment that no program knows.
    Memory,
}

/// Which stream has a number; `0` in both before the first.
#[derive(Default)]
struct Key {
    /// The address of the value of cudarc that the number's slot holds; 0 without one.
    value: AtomicUsize,
    /// The stream's handle and one, or [`LEFT`].
    handle: AtomicUsize,
}

/// One stream.
struct Queue {
    /// Kept, so that its events can always be recorded.
    stream: Option<Arc<HeldStream>>,
    /// The driver's own number of the stream, if the driver tells it.
    driver_id: Option<u64>,
    /// How many streams had this number before.
    before: u64,
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
    /// A capture may begin at any moment (STREAM5).
    may_capture: bool,
}

/// What threads share of a stream; on cache lines of its own, as each is used by other threads. What every
/// allocation and every free reads stands together.
#[repr(C, align(128))]
struct StreamSlot {
    key: Key,
    open: OpenEvent,
    counts: StreamCounts,
    queue: Mutex<Queue>,
}

impl Default for StreamSlot {
    fn default() -> Self {
        Self {
            key: Key::default(),
            open: OpenEvent::new(EventNumber::new(FIRST)),
            counts: StreamCounts::default(),
            queue: Mutex::new(Queue {
                stream: None,
                driver_id: None,
                before: 0,
                events: VecDeque::new(),
                recorded: FIRST - 1,
                done: FIRST - 1,
                reported: FIRST - 1,
                waits: 0,
                records: 0,
                waited: BTreeMap::new(),
                may_capture: false,
            }),
        }
    }
}

/// Where a stream's number is looked for first. Handles are addresses: the low bits say little.
#[inline]
const fn first_id_of(handle: usize) -> StreamId {
    StreamId::new(((handle >> 4) ^ (handle >> 12)) as u8)
}

/// Whether a handle names a default stream: these have no end, and their handles no other meaning.
const fn is_default(handle: usize) -> bool {
    handle == StreamHandle::NULL.0 || handle == StreamHandle::LEGACY.0
}

/// All streams of one allocator.
pub(crate) struct Streams {
    context: Context,
    /// The context's handle, as streams know theirs.
    own: usize,
    /// By number. A stream is found by hashing the handle.
    slots: ByStream<StreamSlot>,
    /// Held while a number is taken or given up.
    adding: Mutex<()>,
    /// Events whose work is done.
    spare: Mutex<Vec<Event>>,
}

impl Streams {
    pub(crate) fn new(context: &Context) -> Self {
        Self {
            context: context.clone(),
            own: context.cudarc().cu_ctx().addr(),
            slots: ByStream::default(),
            adding: Mutex::new(()),
            spare: Mutex::default(),
        }
    }

    /// The number of a stream. O(1) but for the first time, and for values of one stream in turns.
    #[inline]
    pub(crate) fn id(&self, stream: &Arc<CudaStream>) -> Result<StreamId, DeviceAllocError> {
        let first = first_id_of(stream.cu_stream().addr());
        // Acquire: what is the stream's was made ready before the key was set.
        if self.slots[first].key.value.load(Ordering::Acquire) == Arc::as_ptr(stream).addr() {
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

    /// The number of a stream that has one. One driver call if it has it by another value of cudarc.
    ///
    /// The handle must be one of our context, as all default streams have the same, and not that of the
    /// calling thread's own default stream.
    pub(crate) fn known(&self, stream: &CudaStream) -> Result<Option<StreamId>, DeviceAllocError> {
        let handle = stream.cu_stream().addr();
        let is_ours = stream.context().cu_ctx().addr() == self.own;
        if !is_ours || handle == StreamHandle::PER_THREAD.0 {
            return Err(DeviceAllocError::Stream);
        }
        let Some(stream_id) = self.place_of(handle) else {
            return Ok(None);
        };
        let value = self.slots[stream_id].key.value.load(Ordering::Acquire);
        let is_value = value == core::ptr::from_ref(stream).addr();
        if is_value || is_default(handle) || self.is_same(stream_id, stream)? {
            return Ok(Some(stream_id));
        }
        Ok(None)
    }

    /// Whether the stream is the one that has the number and the same handle (STREAM4).
    fn is_same(&self, stream_id: StreamId, stream: &CudaStream) -> Result<bool, DriverError> {
        let known = locked(&self.slots[stream_id].queue).driver_id;
        if self.captures(stream)? {
            return Ok(true);
        }
        // A driver of before 12.0 does not tell: streams are taken for what their handles say.
        match known {
            Some(known) => Ok(self.context.stream_number(stream)? == known),
            // Seen first in a capture, and by another value now: it may be another stream.
            None => Ok(self.context.stream_number(stream).is_err()),
        }
    }

    /// Numbers by their order in a search for a handle.
    fn numbers(handle: usize) -> impl Iterator<Item = StreamId> {
        let first = first_id_of(handle).number();
        (0..=u8::MAX).map(move |step| StreamId::new(first.wrapping_add(step)))
    }

    /// The number that a stream of this handle has.
    fn place_of(&self, handle: usize) -> Option<StreamId> {
        for stream_id in Self::numbers(handle) {
            match self.slots[stream_id].key.handle.load(Ordering::Acquire) {
                0 => return None,
                known if known == handle.wrapping_add(1) => return Some(stream_id),
                _ => {}
            }
        }
        None
    }

    /// Gives a stream a number, after those were let go that nobody else holds any more.
    #[cold]
    fn add(&self, stream: &Arc<CudaStream>) -> Result<StreamId, DeviceAllocError> {
        let handle = stream.cu_stream().addr();
        let adding = locked(&self.adding);
        // Another thread may have been faster.
        if let Some(stream_id) = self.known(stream)? {
            return Ok(stream_id);
        }
        if let Some(stream_id) = self.place_of(handle) {
            // Its owner has destroyed a borrowed stream, and the driver gave the handle again.
            self.let_go_destroyed(stream_id)?;
        }
        self.let_go_unheld();
        let is_free = |stream_id: &StreamId| match self.slots[*stream_id]
            .key
            .handle
            .load(Ordering::Relaxed)
        {
            0 => true,
            LEFT => self.is_over(*stream_id),
            _ => false,
        };
        let stream_id = Self::numbers(handle).find(is_free);
        let stream_id = stream_id.ok_or(DeviceAllocError::Streams)?;
        let key = &self.slots[stream_id].key;
        let driver_id = match !is_default(handle) && self.captures(stream) == Ok(false) {
            true => self.context.stream_number(stream).ok(),
            false => None,
        };
        let mut queue = locked(&self.slots[stream_id].queue);
        queue.stream = Some(HeldStream::of(stream));
        queue.driver_id = driver_id;
        queue.before += u64::from(key.handle.load(Ordering::Relaxed) == LEFT);
        (queue.waits, queue.records) = (0, 0);
        queue.waited.clear();
        drop(queue);
        self.slots[stream_id].counts.clear();
        key.handle.store(handle.wrapping_add(1), Ordering::Release);
        key.value
            .store(Arc::as_ptr(stream).addr(), Ordering::Release);
        drop(adding);
        Ok(stream_id)
    }

    /// Lets go the streams that only allocators hold.
    fn let_go_unheld(&self) {
        for (stream_id, handle) in self.ids() {
            let stream = locked(&self.slots[stream_id].queue).stream.clone();
            let is_unheld = stream.is_some_and(|stream| stream.others() == 0);
            if handle.is_some() && is_unheld {
                // One that captures, or whose event is refused, is tried again with the next stream.
                let _ = self.let_go(stream_id);
            }
        }
    }

    /// Lets a stream go (STREAM3): all that is queued on it is recorded. For whoever holds `adding`.
    fn let_go(&self, stream_id: StreamId) -> Result<(), DeviceAllocError> {
        let shared = &self.slots[stream_id];
        let mut queue = locked(&shared.queue);
        match self.close(shared, &mut queue, WantedBy::Program) {
            Ok(true) => {
                self.vacate(stream_id, queue);
                Ok(())
            }
            Ok(false) => Err(DeviceAllocError::Capturing),
            Err(error) if error.code() == Some(Code::INVALID_HANDLE) => {
                drop(queue);
                self.let_go_destroyed(stream_id)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Lets a stream go that its owner has destroyed. It takes no event: the host waits for the whole context,
    /// which is refused while a known stream captures. For whoever holds `adding`.
    fn let_go_destroyed(&self, stream_id: StreamId) -> Result<(), DeviceAllocError> {
        // Nothing can be queued on it any more, so this covers all that ever was.
        self.wait_for_context()?;
        let shared = &self.slots[stream_id];
        let mut queue = locked(&shared.queue);
        queue.recorded = shared.open.close().number();
        queue.done = queue.recorded;
        let events = queue.events.drain(..).map(|(_, event)| event);
        locked(&self.spare).extend(events);
        self.vacate(stream_id, queue);
        Ok(())
    }

    /// Leaves the number to the next stream, once the work of this one is done.
    fn vacate(&self, stream_id: StreamId, mut queue: MutexGuard<'_, Queue>) {
        let key = &self.slots[stream_id].key;
        // No thread finds the number by the stream any more, and who found it before holds the stream.
        key.value.store(0, Ordering::Release);
        key.handle.store(LEFT, Ordering::Release);
        let stream = queue.stream.take();
        drop(queue);
        // The last one destroys the stream, outside of our locks but `adding`.
        drop(stream);
    }

    /// Whether the work of a stream that was let go is done.
    fn is_over(&self, stream_id: StreamId) -> bool {
        let mut queue = locked(&self.slots[stream_id].queue);
        self.look(&mut queue);
        queue.events.is_empty()
    }

    /// Lets a stream go that its owner is about to destroy; the owner gives the last value of it.
    ///
    /// # Errors
    /// [`DeviceAllocError::StreamHeld`] if somebody else holds it; [`DeviceAllocError::Capturing`]; if the
    /// driver refuses.
    pub(crate) fn forget(&self, stream: Arc<CudaStream>) -> Result<(), DeviceAllocError> {
        let _adding = locked(&self.adding);
        let Some(stream_id) = self.known(&stream)? else {
            return Ok(());
        };
        let held = locked(&self.slots[stream_id].queue).stream.clone();
        let is_last = held.is_none_or(|held| match Arc::ptr_eq(held.arc(), &stream) {
            true => held.others() == 1,
            false => held.others() == 0 && Arc::strong_count(&stream) == 1,
        });
        if !is_last {
            return Err(DeviceAllocError::StreamHeld);
        }
        self.let_go(stream_id)
    }

    /// How many streams had this number before the one that has it now.
    pub(crate) fn before(&self, stream_id: StreamId) -> u64 {
        locked(&self.slots[stream_id].queue).before
    }

    /// The stream with a number.
    pub(crate) fn stream(&self, stream_id: StreamId) -> Option<Arc<CudaStream>> {
        let queue = locked(&self.slots[stream_id].queue);
        Some(queue.stream.as_ref()?.arc().clone())
    }

    /// The numbers that are taken, with their streams' handles; none for a stream that was let go.
    pub(crate) fn ids(&self) -> impl Iterator<Item = (StreamId, Option<usize>)> {
        self.slots.iter().filter_map(|(stream_id, slot)| {
            let known = slot.key.handle.load(Ordering::Acquire);
            let handle = (known != LEFT).then_some(known.checked_sub(1)?);
            Some((stream_id, handle))
        })
    }

    /// What a stream was given of the core and gave back; changed under the core's lock.
    #[inline]
    pub(crate) fn account(&self, stream_id: StreamId) -> &StreamCounts {
        &self.slots[stream_id].counts
    }

    /// What a free at this moment must carry.
    #[inline]
    pub(crate) fn point(&self, stream_id: StreamId) -> StreamPoint {
        StreamPoint {
            stream: stream_id,
            event: self.slots[stream_id].open.for_free(),
        }
    }

    /// Makes later work of a stream, whose number is given, wait for a point. At most four
    /// driver calls with their contexts, and none if it waits for that already. `false` if a capture
    /// of either stream forbids it, or one that may begin.
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

    /// Whether memory that is given to a stream now becomes part of a graph. One driver call, and none for a
    /// default stream, which never captures.
    #[inline]
    pub(crate) fn makes_graph(&self, stream: &CudaStream) -> Result<bool, DriverError> {
        let is_default = is_default(stream.cu_stream().addr());
        Ok(!is_default && self.context.status_of_own(stream)? != CaptureStatus::None)
    }

    /// Records the open event of a stream (STREAM1). Not while its stream captures: the event would
    /// be the graph's.
    fn close(
        &self,
        shared: &StreamSlot,
        queue: &mut Queue,
        by: WantedBy,
    ) -> Result<bool, DriverError> {
        let Some(stream) = queue.stream.clone() else {
            // Nothing was queued since the stream was let go: its last event stands for this number too.
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

    /// Says that a capture of the stream may begin from now on, or no more (STREAM5).
    pub(crate) fn set_may_capture(&self, stream_id: StreamId, may_capture: bool) {
        locked(&self.slots[stream_id].queue).may_capture = may_capture;
    }

    /// Records all open events with which something was freed, as far as the driver allows.
    pub(crate) fn close_all(&self) {
        for (_, shared) in self.slots.iter() {
            if shared.open.has_freed() {
                // Memory that stays pending is only not reused.
                let _ = self.close(shared, &mut locked(&shared.queue), WantedBy::Memory);
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
            let shared = &self.slots[stream_id];
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
        let queue = locked(&self.slots[stream_id].queue);
        (queue.waits, queue.records)
    }

    /// Whether the work of a point was seen done when the stream was looked at last.
    pub(crate) fn is_done(&self, point: StreamPoint) -> bool {
        locked(&self.slots[point.stream].queue).done >= point.event.number()
    }

    /// Waits on the host for all that is queued on any of the streams, for the end. What could not be
    /// waited for comes back: streams that capture, and those for which the driver refuses it.
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
                    // A refusal for no reason may pass.
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

    /// Waits on the host for all work of the context, also of streams that only use what others allocated.
    ///
    /// # Errors
    /// If a known stream captures: the wait would spoil its capture, and is not made. If the driver refuses, or
    /// work failed.
    pub(crate) fn wait_for_context(&self) -> Result<(), DriverError> {
        for stream in self.ids().filter_map(|(id, _)| self.stream(id)) {
            match self.captures(&stream) {
                // Its owner has destroyed it.
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

    /// Waits on the host for the last recorded event of a stream; whether there was any.
    pub(crate) fn wait_for(&self, stream_id: StreamId) -> Result<bool, DriverError> {
        let queue = locked(&self.slots[stream_id].queue);
        match queue.events.back() {
            Some((_, event)) => event.synchronize().map(|()| true),
            None => Ok(false),
        }
    }
}
