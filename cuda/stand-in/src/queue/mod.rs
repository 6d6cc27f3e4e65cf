//! Queued work: operations, what each waits for, and in what order they run.
//!
//! `stream` and `event` are the objects · `submit` puts an operation into a stream · `run` chooses
//! what runs next and waits · `work` does it ·
//! `time` is the device's, if kernels take time.
//!
//! QUEUE1 an operation that is not in `Queue::ops` is done, or was never queued.
//!
//! QUEUE2 a stream's queue holds its operations in the order they were submitted; only the first may
//! run.
//!
//! QUEUE3 an operation waits only for operations with smaller numbers, so some first one can always
//! run.

mod event;
mod run;
mod stream;
mod submit;
mod time;
mod work;

use std::collections::BTreeMap;
use std::ffi::c_void;

pub(crate) use event::Event;
pub(crate) use stream::Stream;

use crate::clock::{Clock, Moment};
use crate::module::Launch;
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
    /// Pageable host memory: only inside a call that waits for the copy, and in graphs.
    Host(usize),
    /// Bytes copied from pageable memory when the work was submitted.
    Staged(Vec<u8>),
}

/// A host function, as C gives it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostCall {
    pub(crate) function: unsafe extern "C" fn(*mut c_void),
    /// A pointer that only the function dereferences.
    pub(crate) data: usize,
}

/// What an operation does.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// No work: a wait or a barrier.
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
    Kernel(Box<Launch>),
    /// Makes a pool's block alive.
    PoolAlloc {
        at: u64,
        bytes: u64,
    },
    /// Ends the life of a pool's block that the operation `made` began.
    PoolFree {
        at: u64,
        made: OpId,
    },
    /// Ends memory of `cuMemAlloc`.
    PlainFree {
        at: u64,
    },
    /// Gives an event its time, if it was not recorded again.
    Record {
        event: usize,
        record: u64,
    },
}

/// One queued operation.
#[derive(Debug)]
pub(crate) struct Op {
    pub(crate) stream: usize,
    pub(crate) context: usize,
    /// How many operations it still waits for besides the one before it in its stream.
    waits: usize,
    /// Operations that wait for this one.
    followers: Vec<OpId>,
    /// What is ordered before it, itself included.
    pub(crate) clock: Clock,
    pub(crate) moment: Moment,
    /// How long it takes, and from when it may run when it is over, in the device's time.
    takes: u64,
    ends: u64,
    pub(crate) work: Work,
}

/// When queued work runs.
#[derive(Clone, Debug)]
pub(crate) enum Schedule {
    /// Work runs as soon as its dependencies are done.
    Eager,
    /// Work runs when something forces it, and now and then by chance; the order is drawn.
    Deferred(Random),
}

/// All operations that are not done.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) ops: BTreeMap<OpId, Op>,
    last: OpId,
    /// Operations that may run, with their streams, in order (QUEUE2: at most one a stream). One that
    /// runs is not here.
    ready: Vec<(usize, OpId)>,
    pub(crate) schedule: Schedule,
    pub(crate) time: Time,
}

impl Queue {
    /// The deferred schedule if there is a seed.
    pub(crate) fn new(seed: Option<u64>) -> Self {
        Self {
            ops: BTreeMap::new(),
            last: 0,
            ready: Vec::new(),
            schedule: seed.map_or(Schedule::Eager, |seed| {
                Schedule::Deferred(Random::new(seed))
            }),
            time: Time::new(),
        }
    }

    /// Gives no operation a number that one of the other queue had: host functions may still run, and threads
    /// wait for operations by their numbers.
    pub(crate) const fn continue_from(&mut self, other: &Self) {
        self.last = other.last;
    }

    /// The first operation of a stream may run if it waits for nothing else.
    fn make_ready(&mut self, stream: usize, op: OpId) {
        if let Some(entry) = self.ops.get_mut(&op)
            && entry.waits == 0
            && let Err(index) = self.ready.binary_search(&(stream, op))
        {
            entry.ends = self.time.end_of(entry.takes);
            self.ready.insert(index, (stream, op));
        }
    }

    /// Notes that an operation runs or is over.
    fn take_ready(&mut self, stream: usize, op: OpId) {
        if let Ok(index) = self.ready.binary_search(&(stream, op)) {
            self.ready.remove(index);
        }
    }

    /// Whether an operation is done (QUEUE1).
    pub(crate) fn done(&self, op: OpId) -> bool {
        !self.ops.contains_key(&op)
    }
}
