//! Queued work: operations, their dependencies, and the order in which they run.
//!
//! `stream` and `event` are the objects · `submit` puts an operation into a stream · `run` chooses the next operation
//! and waits · `work` does an operation's work · `time` is the device's time, for kernels that take time.
//!
//! QUEUE1 an operation that is not in `WorkQueue::ops` is done, or was never queued.
//!
//! QUEUE2 a stream's queue holds its operations in the order they were submitted; only the first may
//! run.
//!
//! QUEUE3 an operation waits only for operations with smaller numbers, so that some operation can
//! always run.

mod event;
mod run;
mod stream;
mod submit;
mod time;
mod work;

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::time::Duration;

pub(crate) use event::SimEvent;
pub(crate) use stream::SimStream;

use crate::clock::{Moment, VectorClock};
use crate::module::SimLaunch;
use crate::random::Random;
use time::Time;

/// Number of an operation; later ones have larger numbers.
pub(crate) type OpId = u64;

/// One end of a copy.
#[derive(Clone, Debug)]
pub(crate) enum CopyEnd {
    /// An address that the driver knows: device, pinned or managed memory.
    Known(u64),
    /// An address that the driver knows, accessed by the device that owns the memory.
    Peer(u64),
    /// Pageable host memory. Used only within a call that waits for the copy, and in graphs.
    Host(usize),
    /// Bytes copied from pageable memory when the work was submitted.
    Staged(Vec<u8>),
}

/// A host function, as C passes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostCall {
    pub(crate) function: unsafe extern "C" fn(*mut c_void),
    /// A pointer that only the function dereferences.
    pub(crate) data: usize,
}

/// The work of an operation.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// No work, for a wait or a barrier.
    Nothing,
    Copy {
        to: CopyEnd,
        from: CopyEnd,
        bytes: u64,
    },
    /// Repeats a pattern of 1, 2 or 4 bytes.
    Set {
        to: u64,
        pattern: Vec<u8>,
        count: u64,
    },
    Host(HostCall),
    Kernel(Box<SimLaunch>),
    /// Begins the life of a pool's block.
    PoolAlloc {
        at: u64,
        bytes: u64,
    },
    /// Ends the life of a pool's block, which the operation `made` began.
    PoolFree {
        at: u64,
        made: OpId,
    },
    /// Frees memory of `cuMemAlloc`.
    PlainFree {
        at: u64,
    },
    /// Gives an event its time, unless the event has been recorded again.
    Record {
        event: usize,
        record: u64,
    },
}

/// One queued operation.
#[derive(Debug)]
pub(crate) struct QueuedOp {
    pub(crate) stream: usize,
    pub(crate) context: usize,
    /// Number of operations that this one still waits for, in addition to the previous one in its
    /// stream.
    waits: usize,
    /// Operations that wait for this one.
    followers: Vec<OpId>,
    /// Clock of the operations ordered before this one, including this one.
    pub(crate) clock: VectorClock,
    pub(crate) moment: Moment,
    /// Duration of the work, and the earliest time at which it may run (its end), in nanoseconds of
    /// the device's time.
    takes: u64,
    ends: u64,
    pub(crate) work: Work,
}

/// When queued work runs.
#[derive(Clone, Debug)]
pub(crate) enum Schedule {
    /// Work runs as soon as its dependencies are done.
    Eager,
    /// Work runs when a call forces it, and occasionally by chance, in random order.
    Deferred(Random),
}

/// All operations that are not done.
#[derive(Debug)]
pub(crate) struct WorkQueue {
    pub(crate) ops: BTreeMap<OpId, QueuedOp>,
    last: OpId,
    /// Operations that may run, with their streams, sorted (by QUEUE2 at most one for each stream). A running operation
    /// is not among them.
    ready: Vec<(usize, OpId)>,
    pub(crate) schedule: Schedule,
    /// Time that the deferred schedule waits for a host function before it lets other streams run;
    /// `None` until the function returns, so that the same seed gives the same order.
    pub(crate) host_patience: Option<Duration>,
    pub(crate) time: Time,
}

/// Default patience. It ends because host functions may wait for work of other streams.
pub(crate) const HOST_PATIENCE: Duration = Duration::from_millis(50);

impl WorkQueue {
    /// Creates a queue with the deferred schedule if there is a seed, otherwise the eager one.
    pub(crate) fn new(seed: Option<u64>) -> Self {
        Self {
            ops: BTreeMap::new(),
            last: 0,
            ready: Vec::new(),
            schedule: seed.map_or(Schedule::Eager, |seed| {
                Schedule::Deferred(Random::new(seed))
            }),
            host_patience: Some(HOST_PATIENCE),
            time: Time::new(),
        }
    }

    /// Continues after the operation numbers of `other`, because host functions of the earlier queue may still run, and
    /// threads may still wait for its operations by number.
    pub(crate) const fn continue_from(&mut self, other: &Self) {
        self.last = other.last;
    }

    /// Lets the first operation of a stream run, if it waits for nothing else.
    fn make_ready(&mut self, stream: usize, op: OpId) {
        if let Some(entry) = self.ops.get_mut(&op)
            && entry.waits == 0
            && let Err(index) = self.ready.binary_search(&(stream, op))
        {
            entry.ends = self.time.end_of(entry.takes);
            self.ready.insert(index, (stream, op));
        }
    }

    /// Removes a running or finished operation from the ready list.
    fn take_ready(&mut self, stream: usize, op: OpId) {
        if let Ok(index) = self.ready.binary_search(&(stream, op)) {
            self.ready.remove(index);
        }
    }

    /// Returns whether an operation is done (QUEUE1).
    pub(crate) fn done(&self, op: OpId) -> bool {
        !self.ops.contains_key(&op)
    }
}
