//! Streams as lanes: which work memory still waits for, in events.
//!
//! Each stream that allocates is a lane of the core. A free carries the lane's *open* epoch. No event
//! stands for that one yet: memory that comes back to its own stream needs none. An epoch is closed,
//! by recording an event, when another stream wants memory of it, or when memory is short; all frees
//! since the last closing share it.
//!
//! S1 an epoch's event is recorded and the next epoch opened under the lane's lock; a free reads the
//! open epoch under it. So the event comes behind all work that was queued before a free of its epoch.
//! S2 a lane's events stand in the order of their epochs; what is before the first one is completed.
//!
//! A lane's lock is held while an event is recorded. Whoever holds it wants no other lock of ours but
//! that of the spare events.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use cudarc::driver::CudaStream;
use larder_core::sync::{AtomicUsize, Ordering};
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
    open: u64,
    /// Something was freed in the open epoch.
    freed: bool,
    /// Closed epochs whose work may not be done (S2).
    events: VecDeque<(u64, Event)>,
    /// The newest epoch whose event was seen done, until the core is told.
    passed: Option<u64>,
    /// For each other lane: up to which epoch of it this stream waits already.
    waited: BTreeMap<u8, u64>,
}

/// All streams of one allocator.
pub(super) struct Streams {
    context: Context,
    /// By lane: the stream's handle and one, or 0. A lane is found by hashing the handle; none is
    /// ever taken out.
    keys: Vec<AtomicUsize>,
    queues: Vec<Mutex<Queue>>,
    /// Held while a lane is taken.
    adding: Mutex<()>,
    /// Events whose work is done.
    spare: Mutex<Vec<Event>>,
}

impl Streams {
    pub(super) fn new(context: &Context) -> Self {
        let queue = || {
            Mutex::new(Queue {
                stream: None,
                open: FIRST,
                freed: false,
                events: VecDeque::new(),
                passed: None,
                waited: BTreeMap::new(),
            })
        };
        Self {
            context: context.clone(),
            keys: (0..Lane::COUNT).map(|_| AtomicUsize::new(0)).collect(),
            queues: (0..Lane::COUNT).map(|_| queue()).collect(),
            adding: Mutex::new(()),
            spare: Mutex::default(),
        }
    }

    /// The lane of a stream. O(1) but for the first time.
    ///
    /// The handle names the stream: so it must be one of our context, as all default streams have the
    /// same, and not that of the calling thread's own default stream.
    pub(super) fn lane(&self, stream: &Arc<CudaStream>) -> Result<Lane, DeviceAllocError> {
        let handle = stream.cu_stream().addr();
        let is_ours = stream.context().cu_ctx() == self.context.cudarc().cu_ctx();
        if !is_ours || handle == StreamHandle::PER_THREAD.0 {
            return Err(DeviceAllocError::Stream);
        }
        match self.probe(handle) {
            Some((lane, true)) => Ok(lane),
            _ => self.add(stream, handle),
        }
    }

    /// Where a stream's lane is, or would be: its lane, and whether it is there.
    fn probe(&self, handle: usize) -> Option<(Lane, bool)> {
        // Handles are addresses: the low bits say little.
        let start = (handle >> 4) ^ (handle >> 12);
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
    fn add(&self, stream: &Arc<CudaStream>, handle: usize) -> Result<Lane, DeviceAllocError> {
        let _adding = locked(&self.adding);
        let (lane, known) = self.probe(handle).ok_or(DeviceAllocError::Streams)?;
        if !known {
            let at = usize::from(lane.number());
            if let (Some(queue), Some(key)) = (self.queues.get(at), self.keys.get(at)) {
                locked(queue).stream = Some(stream.clone());
                key.store(handle.wrapping_add(1), Ordering::Release);
            }
        }
        Ok(lane)
    }

    fn queue(&self, lane: Lane) -> Option<&Mutex<Queue>> {
        self.queues.get(usize::from(lane.number()))
    }

    /// What a free at this moment must carry.
    pub(super) fn stamp(&self, lane: Lane) -> Stamp {
        let open = self.queue(lane).map_or(FIRST, |queue| {
            let mut queue = locked(queue);
            queue.freed = true;
            queue.open
        });
        Stamp {
            lane,
            epoch: Epoch::new(open),
        }
    }

    /// Makes later work of a stream, whose lane is given, wait for what a stamp says. At most four
    /// driver calls with their contexts, and none if it waits for that already. `false` if a capture
    /// of either stream forbids it.
    pub(super) fn order(
        &self,
        stream: &CudaStream,
        lane: Lane,
        after: Stamp,
    ) -> Result<bool, DriverError> {
        let wanted = after.epoch.number();
        let (Some(behind), Some(before)) = (self.queue(lane), self.queue(after.lane)) else {
            return Ok(true);
        };
        let waits = locked(behind).waited.get(&after.lane.number()).copied();
        if waits.is_some_and(|epoch| epoch >= wanted) {
            return Ok(true);
        }
        if self.captures(stream)? {
            return Ok(false);
        }
        let mut queue = locked(before);
        if wanted >= queue.open && !self.close(&mut queue)? {
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
        let mut queue = locked(behind);
        let waited = queue.waited.entry(after.lane.number()).or_default();
        *waited = epoch.max(*waited);
        Ok(true)
    }

    fn captures(&self, stream: &CudaStream) -> Result<bool, DriverError> {
        Ok(self.context.capture_status(stream)? != CaptureStatus::None)
    }

    /// Ends the open epoch of a lane by an event (S1). Not while its stream captures: the event would
    /// be the graph's.
    fn close(&self, queue: &mut Queue) -> Result<bool, DriverError> {
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
        event.record(&stream)?;
        queue.events.push_back((queue.open, event));
        queue.open += 1;
        queue.freed = false;
        Ok(true)
    }

    /// Ends all epochs in which something was freed, as far as the driver allows.
    pub(super) fn close_all(&self) {
        for queue in &self.queues {
            let mut queue = locked(queue);
            if queue.freed {
                // Memory that stays pending is only not reused.
                let _ = self.close(&mut queue);
            }
        }
    }

    /// Takes the events out that are done.
    fn look(&self, queue: &mut Queue) {
        while let Some((epoch, event)) = queue.events.front() {
            if event.query() != Ok(true) {
                return;
            }
            queue.passed = Some(*epoch);
            if let Some((_, event)) = queue.events.pop_front() {
                locked(&self.spare).push(event);
            }
        }
    }

    /// Calls `done` with each lane that has passed an epoch since it was asked last. One driver call
    /// for each event that is done, and one for each lane whose next is not.
    pub(super) fn poll(&self, mut done: impl FnMut(Lane, Epoch)) {
        for (number, queue) in self.queues.iter().enumerate() {
            let mut queue = locked(queue);
            self.look(&mut queue);
            let passed = queue.passed.take();
            drop(queue);
            if let (Some(epoch), Ok(number)) = (passed, u8::try_from(number)) {
                done(Lane::new(number), Epoch::new(epoch));
            }
        }
    }

    /// Waits on the host for all work that was closed.
    pub(super) fn wait(&self) -> Result<(), DriverError> {
        for queue in &self.queues {
            let queue = locked(queue);
            if let Some((_, event)) = queue.events.back() {
                event.synchronize()?;
            }
        }
        Ok(())
    }
}
