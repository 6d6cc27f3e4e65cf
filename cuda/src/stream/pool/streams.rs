//! The streams of one allocator by number, and the events that show how much of their work is done.
//!
//! Each stream that allocates has a number in the core. A free carries the number of the stream's *open*
//! event, which is not recorded yet, since memory that its own stream reuses needs no event. The event is
//! recorded when another stream needs such memory, or when memory is short. All frees since the last recorded
//! event share it.
//!
//! STREAM1 an event is recorded after the next number has been opened ([`OpenEvent`]), under the stream's
//! lock. A free reads the open number without that lock. So the event comes after all work that was queued
//! before a free with its number: the driver puts the work of one stream in one order.
//! STREAM2 a stream's events are sorted by number, and the newest number is `recorded`. A number up to
//! `recorded` is covered by the first event in the list with that number or a later one; if there is none,
//! the work is done.
//!
//! STREAM3 a number belongs to one stream as long as that stream has a holder besides the allocators. After
//! that, an event is recorded after everything queued on the stream, and the stream is released; once its
//! work is done, the next stream may take the number. So memory that was freed or used under the number
//! before is no longer in use for its later owner.
//! STREAM4 the driver reuses handles, but while we hold a cudarc value its stream stays the same: an
//! allocation's stream has a number if it is the same value, or otherwise if `cuStreamGetId` agrees. A stream
//! that is being captured is not queried, since the query would end the capture (seen on an H200 with driver
//! 580): its handle decides. A stream that was first seen during a capture, and comes as another value later,
//! counts as another stream.
//! STREAM5 no event is recorded for memory on a stream with an open window. Its thread may begin the capture
//! between the check of the capture status and the recording of the event, which would then belong to the
//! graph: a query of such an event invalidates the capture.
//!
//! A stream's lock is held while an event is recorded. Under it only the lock of the spare events is taken.
//! The lock for adding and releasing streams is taken before it.

mod events;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use cudarc::driver::CudaStream;
use larder_core::sync::{AtomicUsize, OpenEvent, Ordering};
use larder_core::{EventNumber, StreamId};
use larder_cuda_abi::StreamHandle;

use super::held::HeldStream;
use super::{ByStream, StreamCounts};
use crate::driver::{Code, locked};
use crate::{Context, DeviceAllocError, DriverError, Event};

/// Number of the first event. Smaller numbers count as done.
const FIRST: u64 = 1;

/// Marks a slot whose stream was released.
const LEFT: usize = usize::MAX;

/// The reason for recording an event (STREAM5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WantedBy {
    /// The program requested the event, and knows what the stream is doing.
    Program,
    /// The allocator needs memory, at a moment unknown to the program.
    Memory,
}

/// The stream that has a number. Both fields are 0 before the number is first used.
#[derive(Default)]
struct Key {
    /// Address of the cudarc value that the slot holds; 0 if it holds none.
    value: AtomicUsize,
    /// The stream's handle plus one, or [`LEFT`].
    handle: AtomicUsize,
}

/// The state of one stream.
struct StreamState {
    /// The stream, kept so that its events can always be recorded.
    stream: Option<Arc<HeldStream>>,
    /// The driver's own number for the stream, if the driver reports one.
    driver_id: Option<u64>,
    /// Number of streams that had this number before.
    before: u64,
    /// Recorded events whose work may not be done yet, with their numbers (STREAM2).
    events: VecDeque<(u64, Event)>,
    /// The newest recorded event.
    recorded: u64,
    /// The newest event that was seen to be done.
    done: u64,
    /// The newest event that was reported to the core as done.
    reported: u64,
    /// Number of times that the stream was made to wait.
    waits: u64,
    /// Number of events recorded on the stream.
    records: u64,
    /// By stream, the newest event of that stream that this stream already waits for.
    waited: BTreeMap<u8, u64>,
    /// Whether a capture may begin at any moment (STREAM5).
    may_capture: bool,
}

/// A stream's state, which threads share, on cache lines of its own because other threads use the other
/// slots. The fields that every allocation and free reads come first.
#[repr(C, align(128))]
struct StreamSlot {
    key: Key,
    open: OpenEvent,
    counts: StreamCounts,
    queue: Mutex<StreamState>,
}

impl Default for StreamSlot {
    fn default() -> Self {
        Self {
            key: Key::default(),
            open: OpenEvent::new(EventNumber::new(FIRST)),
            counts: StreamCounts::default(),
            queue: Mutex::new(StreamState {
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

/// Returns the number at which the search for a handle starts. Handles are addresses, so the low bits carry
/// little information.
#[inline]
const fn first_id_of(handle: usize) -> StreamId {
    StreamId::new(((handle >> 4) ^ (handle >> 12)) as u8)
}

/// Returns whether a handle names a default stream, which never ends and whose handle has no other meaning.
const fn is_default(handle: usize) -> bool {
    handle == StreamHandle::NULL.0 || handle == StreamHandle::LEGACY.0
}

/// All streams of one allocator.
pub(crate) struct StreamTable {
    context: Context,
    /// Handle of the context, to compare with the contexts of streams.
    own: usize,
    /// Slots by number. A stream is found by hashing the handle.
    slots: ByStream<StreamSlot>,
    /// Locked while a number is taken or released.
    adding: Mutex<()>,
    /// Events whose work is done, for reuse.
    spare: Mutex<Vec<Event>>,
}

impl StreamTable {
    pub(crate) fn new(context: &Context) -> Self {
        Self {
            context: context.clone(),
            own: context.cudarc().cu_ctx().addr(),
            slots: ByStream::default(),
            adding: Mutex::new(()),
            spare: Mutex::default(),
        }
    }

    /// Returns the number of a stream. O(1) except for a new stream, or if several cudarc values of one
    /// stream alternate.
    #[inline]
    pub(crate) fn id(&self, stream: &Arc<CudaStream>) -> Result<StreamId, DeviceAllocError> {
        let first = first_id_of(stream.cu_stream().addr());
        // Acquire: the stream's state was made ready before the key was set.
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

    /// Returns the number of a stream if it has one. Costs one driver call if another cudarc value has the
    /// number.
    ///
    /// The stream must belong to our context, as default streams have the same handle in every context, and
    /// must not be the calling thread's own default stream.
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

    /// Returns whether the stream is the one with this number, given that their handles are equal (STREAM4).
    fn is_same(&self, stream_id: StreamId, stream: &CudaStream) -> Result<bool, DriverError> {
        let known = locked(&self.slots[stream_id].queue).driver_id;
        if self.captures(stream)? {
            return Ok(true);
        }
        // A driver before 12.0 reports no number, so the handle decides.
        match known {
            Some(known) => Ok(self.context.stream_number(stream)? == known),
            // The stream was first seen in a capture and now comes as another value, so it may be another
            // stream.
            None => Ok(self.context.stream_number(stream).is_err()),
        }
    }

    /// Iterates over the numbers in the order in which a handle is searched for.
    fn numbers(handle: usize) -> impl Iterator<Item = StreamId> {
        let first = first_id_of(handle).number();
        (0..=u8::MAX).map(move |step| StreamId::new(first.wrapping_add(step)))
    }

    /// Returns the number of the stream with this handle.
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

    /// Gives a stream a number, after releasing the streams that only allocators hold.
    #[cold]
    fn add(&self, stream: &Arc<CudaStream>) -> Result<StreamId, DeviceAllocError> {
        let handle = stream.cu_stream().addr();
        let adding = locked(&self.adding);
        // Another thread may have added the stream first.
        if let Some(stream_id) = self.known(stream)? {
            return Ok(stream_id);
        }
        if let Some(stream_id) = self.place_of(handle) {
            // The owner of a borrowed stream has destroyed it, and the driver has reused the handle.
            self.let_go_destroyed(stream_id)?;
        }
        self.release_unheld();
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

    /// Releases the streams that only allocators hold.
    fn release_unheld(&self) {
        for (stream_id, handle) in self.ids() {
            let stream = locked(&self.slots[stream_id].queue).stream.clone();
            let is_unheld = stream.is_some_and(|stream| stream.others() == 0);
            if handle.is_some() && is_unheld {
                // A stream that is being captured, or whose event is refused, is retried with the next new
                // stream.
                let _ = self.release_slot(stream_id);
            }
        }
    }

    /// Records an event after the work of a stream and releases the stream (STREAM3). The caller holds `adding`.
    fn release_slot(&self, stream_id: StreamId) -> Result<(), DeviceAllocError> {
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

    /// Releases a stream that its owner has destroyed. No event can be recorded on it, so the host waits for
    /// the whole context, which is refused while a known stream is being captured. The caller holds `adding`.
    fn let_go_destroyed(&self, stream_id: StreamId) -> Result<(), DeviceAllocError> {
        // Nothing more can be queued on it, so the wait covers all of its work.
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

    /// Leaves the number to the next stream, once the work of this stream is done.
    fn vacate(&self, stream_id: StreamId, mut queue: MutexGuard<'_, StreamState>) {
        let key = &self.slots[stream_id].key;
        // No thread finds the number through the stream any more, and a thread that found it earlier holds
        // the stream.
        key.value.store(0, Ordering::Release);
        key.handle.store(LEFT, Ordering::Release);
        let stream = queue.stream.take();
        drop(queue);
        // If this is the last holder, the stream is destroyed, under none of our locks except `adding`.
        drop(stream);
    }

    /// Returns whether the work of a released stream is done.
    fn is_over(&self, stream_id: StreamId) -> bool {
        let mut queue = locked(&self.slots[stream_id].queue);
        self.drain_events(&mut queue);
        queue.events.is_empty()
    }

    /// Releases a stream that its owner is about to destroy. The owner passes its last cudarc value of the
    /// stream.
    ///
    /// # Errors
    /// [`DeviceAllocError::StreamHeld`] if the stream has another holder; [`DeviceAllocError::Capturing`]; if
    /// the driver refuses.
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
        self.release_slot(stream_id)
    }

    /// Returns the number of streams that had this number before its present stream.
    pub(crate) fn before(&self, stream_id: StreamId) -> u64 {
        locked(&self.slots[stream_id].queue).before
    }

    /// Returns the stream with a number.
    pub(crate) fn stream(&self, stream_id: StreamId) -> Option<Arc<CudaStream>> {
        let queue = locked(&self.slots[stream_id].queue);
        Some(queue.stream.as_ref()?.arc().clone())
    }

    /// Iterates over the numbers in use, with their streams' handles; `None` for a released stream.
    pub(crate) fn ids(&self) -> impl Iterator<Item = (StreamId, Option<usize>)> {
        self.slots.iter().filter_map(|(stream_id, slot)| {
            let known = slot.key.handle.load(Ordering::Acquire);
            let handle = (known != LEFT).then_some(known.checked_sub(1)?);
            Some((stream_id, handle))
        })
    }

    /// Returns the counts of a stream's allocations and frees in the core. They change under the core's lock.
    #[inline]
    pub(crate) fn account(&self, stream_id: StreamId) -> &StreamCounts {
        &self.slots[stream_id].counts
    }
}
