//! Streams as lanes: which work memory still waits for, in events.
//!
//! Each stream that allocates is a lane of the core. A free carries the lane's *open* epoch. No event
//! stands for that one yet: memory that comes back to its own stream needs none. An epoch is closed,
//! by recording an event, when another stream wants memory of it, or when memory is short; all frees
//! since the last closing share it.
//!
//! S1 an epoch's event is recorded after the next epoch was opened ([`OpenEpoch`]), under the lane's
//! lock. A free reads the open epoch without it. So the event comes behind all work that was queued
//! before a free of its epoch: the driver puts work of one stream in one order.
//! S2 a lane's events stand in the order of their epochs, and the newest one that was recorded is
//! `recorded`. What is not above that and has no event any more is done, up to `done`.
//!
//! A lane's lock is held while an event is recorded. Whoever holds it wants no other lock of ours but
//! that of the spare events.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use cudarc::driver::CudaStream;
use larder_core::sync::{AtomicUsize, OpenEpoch, Ordering};
use larder_core::{Epoch, Lane, Stamp};
use larder_cuda_abi::StreamHandle;

use super::DeviceAllocError;
use crate::driver::locked;
use crate::{CaptureStatus, Context, DriverError, Event, EventConfig};

/// The first epoch; what has a smaller one counts as done.
const FIRST: u64 = 1;

/// One stream.
struct Queue {
    /// Kept, so that its events can always be recorded.
    stream: Option<Arc<CudaStream>>,
    /// Closed epochs whose work may not be done (S2).
    events: VecDeque<(u64, Event)>,
    /// The newest epoch that an event was recorded for.
    recorded: u64,
    /// The newest epoch whose event was seen done.
    done: u64,
    /// The same as the core was told.
    told: u64,
    /// Times the stream was made to wait, and events recorded in it.
    waits: u64,
    records: u64,
    /// For each other lane: up to which epoch of it this stream waits already.
    waited: BTreeMap<u8, u64>,
}

/// What threads share of a lane; on cache lines of its own, as each is used by other threads.
#[repr(align(128))]
struct Shared {
    open: OpenEpoch,
    queue: Mutex<Queue>,
}

impl Shared {
    fn new() -> Self {
        Self {
            open: OpenEpoch::new(Epoch::new(FIRST)),
            queue: Mutex::new(Queue {
                stream: None,
                events: VecDeque::new(),
                recorded: FIRST - 1,
                done: FIRST - 1,
                told: FIRST - 1,
                waits: 0,
                records: 0,
                waited: BTreeMap::new(),
            }),
        }
    }
}

/// Where a stream's lane is looked for first. Handles are addresses: the low bits say little.
#[inline]
const fn home_of(handle: usize) -> u8 {
    // As many as there are lanes.
    ((handle >> 4) ^ (handle >> 12)) as u8
}

/// All streams of one allocator.
pub(crate) struct Streams {
    context: Context,
    /// The context's handle, as streams know theirs.
    own: usize,
    /// By lane: the stream's handle and one, or 0. A lane is found by hashing the handle; none is
    /// ever taken out.
    keys: Vec<AtomicUsize>,
    lanes: Vec<Shared>,
    /// Held while a lane is taken.
    adding: Mutex<()>,
    /// Events whose work is done.
    spare: Mutex<Vec<Event>>,
}

impl Streams {
    pub(crate) fn new(context: &Context) -> Self {
        Self {
            context: context.clone(),
            own: context.cudarc().cu_ctx().addr(),
            keys: (0..Lane::COUNT).map(|_| AtomicUsize::new(0)).collect(),
            lanes: (0..Lane::COUNT).map(|_| Shared::new()).collect(),
            adding: Mutex::new(()),
            spare: Mutex::default(),
        }
    }

    /// The lane of a stream. O(1) but for the first time.
    #[inline]
    pub(crate) fn lane(&self, stream: &Arc<CudaStream>) -> Result<Lane, DeviceAllocError> {
        let handle = stream.cu_stream().addr();
        let at = home_of(handle);
        let key = self.keys.get(usize::from(at));
        // Acquire: what is the lane's was made ready before the key was set.
        let at_home = key.is_some_and(|key| key.load(Ordering::Acquire) == handle.wrapping_add(1));
        if at_home && stream.context().cu_ctx().addr() == self.own {
            return Ok(Lane::new(at));
        }
        self.lane_elsewhere(stream)
    }

    #[cold]
    fn lane_elsewhere(&self, stream: &Arc<CudaStream>) -> Result<Lane, DeviceAllocError> {
        match self.known(stream)? {
            Some(lane) => Ok(lane),
            None => self.add(stream),
        }
    }

    /// The lane of a stream that has one.
    ///
    /// The handle names the stream: so it must be one of our context, as all default streams have the
    /// same, and not that of the calling thread's own default stream.
    pub(crate) fn known(&self, stream: &CudaStream) -> Result<Option<Lane>, DeviceAllocError> {
        let handle = stream.cu_stream().addr();
        let is_ours = stream.context().cu_ctx().addr() == self.own;
        if !is_ours || handle == StreamHandle::PER_THREAD.0 {
            return Err(DeviceAllocError::Stream);
        }
        Ok(match self.probe(handle) {
            Some((lane, true)) => Some(lane),
            _ => None,
        })
    }

    /// Where a stream's lane is, or would be: its lane, and whether it is there.
    fn probe(&self, handle: usize) -> Option<(Lane, bool)> {
        let start = usize::from(home_of(handle));
        let lanes = self.keys.len();
        (0..lanes).find_map(|step| {
            let at = (start + step) % lanes;
            // Acquire: the queue was made ready before the key was set.
            let key = self.keys.get(at)?.load(Ordering::Acquire);
            let lane = Lane::new(u8::try_from(at).ok()?);
            match key {
                0 => Some((lane, false)),
                key if key == handle.wrapping_add(1) => Some((lane, true)),
                _ => None,
            }
        })
    }

    #[cold]
    fn add(&self, stream: &Arc<CudaStream>) -> Result<Lane, DeviceAllocError> {
        let handle = stream.cu_stream().addr();
        let _adding = locked(&self.adding);
        let (lane, known) = self.probe(handle).ok_or(DeviceAllocError::Streams)?;
        if !known {
            let at = usize::from(lane.number());
            if let (Some(shared), Some(key)) = (self.lanes.get(at), self.keys.get(at)) {
                locked(&shared.queue).stream = Some(stream.clone());
                key.store(handle.wrapping_add(1), Ordering::Release);
            }
        }
        Ok(lane)
    }

    fn shared(&self, lane: Lane) -> Option<&Shared> {
        self.lanes.get(usize::from(lane.number()))
    }

    /// The stream of a lane.
    pub(crate) fn stream(&self, lane: Lane) -> Option<Arc<CudaStream>> {
        locked(&self.shared(lane)?.queue).stream.clone()
    }

    /// The lanes that have a stream.
    pub(crate) fn lanes(&self) -> impl Iterator<Item = (Lane, usize)> {
        self.keys.iter().enumerate().filter_map(|(at, key)| {
            let handle = key.load(Ordering::Acquire).checked_sub(1)?;
            Some((Lane::new(u8::try_from(at).ok()?), handle))
        })
    }

    /// What a free at this moment must carry.
    #[inline]
    pub(crate) fn stamp(&self, lane: Lane) -> Stamp {
        let shared = self.shared(lane);
        Stamp {
            lane,
            epoch: shared.map_or(Epoch::new(FIRST), |shared| shared.open.stamp()),
        }
    }

    /// Makes later work of a stream, whose lane is given, wait for what a stamp says. At most four
    /// driver calls with their contexts, and none if it waits for that already. `false` if a capture
    /// of either stream forbids it.
    pub(crate) fn order(
        &self,
        stream: &CudaStream,
        lane: Lane,
        after: Stamp,
    ) -> Result<bool, DriverError> {
        let wanted = after.epoch.number();
        let (Some(behind), Some(before)) = (self.shared(lane), self.shared(after.lane)) else {
            return Ok(true);
        };
        let from = after.lane.number();
        let waits = locked(&behind.queue).waited.get(&from).copied();
        if lane == after.lane || waits.is_some_and(|epoch| epoch >= wanted) {
            return Ok(true);
        }
        if self.captures(stream)? {
            return Ok(false);
        }
        let mut queue = locked(&before.queue);
        if wanted > queue.recorded && !self.close(before, &mut queue)? {
            return Ok(false);
        }
        // The first that stands for the epoch; none if that is done.
        let found = queue.events.iter().find(|(epoch, _)| *epoch >= wanted);
        let Some((epoch, event)) = found else {
            return Ok(true);
        };
        let epoch = *epoch;
        event.wait_on(stream)?;
        drop(queue);
        let mut queue = locked(&behind.queue);
        let waited = queue.waited.entry(from).or_default();
        *waited = epoch.max(*waited);
        queue.waits += 1;
        Ok(true)
    }

    /// Whether work queued on a stream becomes part of a graph. One driver call and its context.
    pub(crate) fn captures(&self, stream: &CudaStream) -> Result<bool, DriverError> {
        Ok(self.context.capture_status(stream)? != CaptureStatus::None)
    }

    /// Ends the open epoch of a lane by an event (S1). Not while its stream captures: the event would
    /// be the graph's.
    fn close(&self, shared: &Shared, queue: &mut Queue) -> Result<bool, DriverError> {
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

    /// Ends all epochs in which something was freed, as far as the driver allows.
    pub(crate) fn close_all(&self) {
        for shared in self.lanes.iter().filter(|shared| shared.open.has_freed()) {
            // Memory that stays pending is only not reused.
            let _ = self.close(shared, &mut locked(&shared.queue));
        }
    }

    /// Takes the events out that are done.
    fn look(&self, queue: &mut Queue) {
        while let Some((epoch, event)) = queue.events.front() {
            if event.query() != Ok(true) {
                return;
            }
            queue.done = *epoch;
            if let Some((_, event)) = queue.events.pop_front() {
                locked(&self.spare).push(event);
            }
        }
    }

    /// Calls `done` with each lane that has passed an epoch since it was asked last. One driver call
    /// for each event that is done, and one for each lane whose next is not.
    pub(crate) fn poll(&self, mut done: impl FnMut(Lane, Epoch)) {
        for (lane, _) in self.lanes() {
            let Some(shared) = self.shared(lane) else {
                continue;
            };
            let mut queue = locked(&shared.queue);
            self.look(&mut queue);
            let passed = queue.done;
            let news = passed > queue.told;
            drop(queue);
            if news {
                done(lane, Epoch::new(passed));
                // Not before: else another thread that is short would rely on what nobody knows yet.
                let mut queue = locked(&shared.queue);
                queue.told = passed.max(queue.told);
            }
        }
    }

    /// Times a lane's stream was made to wait, and events recorded in it.
    pub(crate) fn counts(&self, lane: Lane) -> (u64, u64) {
        let Some(shared) = self.shared(lane) else {
            return (0, 0);
        };
        let queue = locked(&shared.queue);
        (queue.waits, queue.records)
    }

    /// Whether the work of a stamp was seen done when the lane was looked at last.
    pub(crate) fn is_done(&self, stamp: Stamp) -> bool {
        let shared = self.shared(stamp.lane);
        shared.is_none_or(|shared| locked(&shared.queue).done >= stamp.epoch.number())
    }

    /// Waits on the host for all that is queued on any of the streams; not for one that captures.
    pub(crate) fn wait_for_all(&self) {
        for shared in &self.lanes {
            let stream = locked(&shared.queue).stream.clone();
            if let Some(stream) = stream
                && self.captures(&stream) != Ok(true)
            {
                // What failed on the device can use no memory either.
                let _ = self.context.wait_for(&stream);
            }
        }
    }

    /// Waits on the host for all work of a lane that was closed; whether there was any.
    pub(crate) fn wait_for(&self, lane: Lane) -> Result<bool, DriverError> {
        let Some(shared) = self.shared(lane) else {
            return Ok(false);
        };
        let queue = locked(&shared.queue);
        match queue.events.back() {
            Some((_, event)) => event.synchronize().map(|()| true),
            None => Ok(false),
        }
    }
}
