//! [`StreamPool`]: the core's best fit over a source of memory, in the order of streams.
//!
//! Streams have numbers ([`Streams`]). A block is freed in the order of a stream: it is given again at once
//! on that stream, and to another one after a wait that the device makes, never the host. Nothing on the way
//! of an allocation that fits, or of a free, calls the driver, but for that wait.
//!
//! # When nothing fits that the stream may use at once
//! 1. What the stages [above](Above) do not use comes back, and the search is made again.
//! 2. What another stream used last is given, and the stream waits for it on the device.
//! 3. What events have passed counts as free for all, and the search is made again.
//! 4. The source is called: it gives regions, or pages move or are created.
//! 5. If that fails while freed memory is pending, above too, the host waits for it, if it may
//!    ([`HostWait`]), and all is tried once more.
//! 6. An error with the numbers.
//!
//! # Locks
//! That of the core for bookkeeping; those of the streams, also while an event is recorded. No thread holds
//! both.

mod bounded;
mod counts;
mod peaks;
mod shrink;
pub(crate) mod streams;

use core::ops::Deref;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_core::{
    AllocError, Block, BlockAllocator, EventNumber, FreeRejected, Grant, Memory, Request, StreamId,
    StreamPoint,
};

pub(crate) use bounded::{Bounded, Core, PoolSource};
pub(crate) use counts::{CountsByStream, StreamCounts};
pub(crate) use streams::Streams;

use crate::{Context, DeviceAllocError, DeviceFreeRejected};

/// Whether an allocation may keep the host waiting for work: a block may; a piece of an arena not, nor a
/// block that can be had elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HostWait {
    Waits,
    GoesOn,
    HasOther,
}

/// A block that several streams used comes back in the order of its first stream, and a piece of an arena
/// that is free then comes back in the order of the arena's stream: so memory whose work is done is found by
/// looking twice.
const ROUNDS: usize = 2;

/// How often an allocation waits for what is pending: what it finds then, another thread may take.
const MAX_WAITS: u32 = 8;

/// The stages above a pool. What they hold is in use to the pool.
pub(crate) trait Above {
    /// Gives back what they do not use, without a wait. Whether there was any.
    fn give_back(&self, host: HostWait) -> bool;

    /// The work of a stream up to an event is done.
    fn completed(&self, stream_id: StreamId, number: EventNumber);

    /// All streams were asked what they have done.
    fn polled(&self);

    /// Whether they have, or had a moment ago, memory that only waits for work.
    fn holds_pending(&self) -> bool;

    /// Bytes that no block has.
    fn idle_bytes(&self) -> u64;

    /// Bytes that the program has freed and that are not free yet.
    fn deferred_bytes(&self) -> u64;
}

/// No stages.
impl Above for () {
    fn give_back(&self, _: HostWait) -> bool {
        false
    }

    fn completed(&self, _: StreamId, _: EventNumber) {}

    fn polled(&self) {}

    fn holds_pending(&self) -> bool {
        false
    }

    fn idle_bytes(&self) -> u64 {
        0
    }

    fn deferred_bytes(&self) -> u64 {
        0
    }
}

/// Memory in the order of streams.
pub(crate) struct StreamPool<S: PoolSource<M>, M: Memory> {
    context: Context,
    pub(crate) streams: Streams,
    /// What each stream was given and gave back.
    pub(crate) counts: CountsByStream,
    core: Bounded<S, M>,
}

impl<S: PoolSource<M>, M: Memory> StreamPool<S, M> {
    pub(crate) fn new(context: &Context, core: Bounded<S, M>) -> Self {
        Self {
            context: context.clone(),
            streams: Streams::new(context),
            counts: CountsByStream::new(),
            core,
        }
    }

    pub(crate) const fn context(&self) -> &Context {
        &self.context
    }

    /// Memory that is held, fits, and needs no wait.
    // A block that comes back through memory is read before it is written out.
    #[inline(always)]
    pub(crate) fn find_at_once(&self, request: &Request) -> Option<Block> {
        self.core.with(|bfc| {
            let block = bfc.alloc_at_once(&request.without_wait())?;
            self.counts.allocated(request.stream, block.bytes());
            Some(block)
        })
    }

    /// Memory that is held and fits, after a wait if need be.
    fn find(
        &self,
        request: &Request,
        above: &impl Above,
    ) -> Result<Option<Grant>, DeviceAllocError> {
        let found = self.core.with(|bfc| {
            let found = bfc.alloc_now(request);
            if let Ok(Some(grant)) = &found {
                self.counts.allocated(request.stream, grant.block.bytes());
            }
            found
        });
        found.map_err(|reason| self.core.refusal(reason, above))
    }

    /// A block that was found; its stream waits for whoever used it last. `None` if a capture forbids
    /// that: the block is free again then.
    fn settle(
        &self,
        stream: &Arc<CudaStream>,
        stream_id: StreamId,
        grant: Grant,
    ) -> Result<Option<Block>, DeviceAllocError> {
        let Some(point) = grant.wait else {
            return Ok(Some(grant.block));
        };
        let ordered = self.streams.order(stream, stream_id, point);
        if ordered == Ok(true) {
            return Ok(Some(grant.block));
        }
        // The block goes back as it was: still in use by the other stream.
        let bytes = grant.block.bytes();
        let _ = self.core.free_after(grant.block, point);
        self.core.with(|_| self.counts.withdrawn(stream_id, bytes));
        ordered?;
        Ok(None)
    }

    /// Gives memory where nothing fits at once, in the order that the documentation of the folder says.
    #[cold]
    pub(crate) fn alloc_more(
        &self,
        stream: &Arc<CudaStream>,
        stream_id: StreamId,
        request: &Request,
        host: HostWait,
        above: &impl Above,
    ) -> Result<Block, DeviceAllocError> {
        if self.streams.captures(stream)? {
            return Err(DeviceAllocError::Capturing);
        }
        if self.core.shrinking.is_on() {
            self.allocates_while_shrinking(above);
        }
        self.core.source().forget_over_budget();
        if above.give_back(host)
            && let Some(block) = self.find_at_once(request)
        {
            return Ok(block);
        }
        if let Some(grant) = self.find(request, above)?
            && let Some(block) = self.settle(stream, stream_id, grant)?
        {
            return Ok(block);
        }
        self.collect(host, above);
        let found = self.search(request, host, above)?;
        if let Some(block) = self.settle(stream, stream_id, found)? {
            return Ok(block);
        }
        // Another stream captures, so it cannot be waited for.
        let request = request.without_wait();
        let grant = self.search(&request, host, above)?;
        self.settle(stream, stream_id, grant)?
            .ok_or(DeviceAllocError::Capturing)
    }

    /// Gives memory by all means.
    fn search(
        &self,
        request: &Request,
        host: HostWait,
        above: &impl Above,
    ) -> Result<Grant, DeviceAllocError> {
        let mut outcome = self.core.alloc(request);
        let mut rounds = if host == HostWait::Waits {
            MAX_WAITS
        } else {
            0
        };
        while let Err(AllocError::OutOfMemory(out)) = outcome
            && rounds > 0
            && (out.pending_bytes > 0 || above.holds_pending())
        {
            rounds -= 1;
            outcome = self.search_after_waits(request, above)?;
        }
        let grant = outcome.map_err(|reason| self.core.refusal(reason, above))?;
        let bytes = grant.block.bytes();
        self.core
            .with(|_| self.counts.allocated(request.stream, bytes));
        Ok(grant)
    }

    /// Waits on the host for one stream after the other, until there is memory or none is left to wait for.
    #[cold]
    fn search_after_waits(
        &self,
        request: &Request,
        above: &impl Above,
    ) -> Result<Result<Grant, AllocError>, DeviceAllocError> {
        self.streams.close_all();
        for (stream_id, _) in self.streams.ids() {
            if self.streams.wait_for(stream_id)? {
                self.poll(above);
                above.give_back(HostWait::Waits);
                if let Ok(grant) = self.core.alloc(request) {
                    return Ok(Ok(grant));
                }
            }
        }
        // What a thread that waited as well found, or freed.
        self.poll(above);
        above.give_back(HostWait::Waits);
        Ok(self.core.alloc(request))
    }

    /// Makes all memory free that no work uses any more. Nothing is waited for.
    pub(crate) fn collect(&self, host: HostWait, above: &impl Above) {
        for _ in 0..ROUNDS {
            above.give_back(host);
            self.streams.close_all();
            self.poll(above);
        }
    }

    /// Tells the core and the stages above how far the streams are.
    pub(crate) fn poll(&self, above: &impl Above) {
        self.streams.poll(|stream_id, number| {
            self.core.complete(stream_id, number);
            above.completed(stream_id, number);
        });
        above.polled();
    }

    /// Takes a block back in the order of a point.
    #[inline]
    pub(crate) fn free_at(&self, block: Block, point: StreamPoint) -> Result<(), FreeRejected> {
        self.core.with(|bfc| {
            let bytes = block.bytes();
            bfc.free_after(block, point)?;
            self.counts.freed(point.stream, bytes);
            Ok(())
        })
    }

    /// Takes a block back from a stream without a number: what it has queued is waited for.
    pub(crate) fn wait_before_free(
        &self,
        stream: &Arc<CudaStream>,
        block: Block,
    ) -> Result<Block, DeviceFreeRejected> {
        match self.context.wait_for(stream) {
            Ok(()) => Ok(block),
            Err(error) => Err(DeviceFreeRejected::driver(block, error)),
        }
    }
}

impl<S: PoolSource<M>, M: Memory> Deref for StreamPool<S, M> {
    type Target = Bounded<S, M>;

    #[inline]
    fn deref(&self) -> &Bounded<S, M> {
        &self.core
    }
}

impl<S: PoolSource<M>, M: Memory> Drop for StreamPool<S, M> {
    fn drop(&mut self) {
        // Blocks that were never freed may be in use too.
        self.streams.wait_for_all();
    }
}
