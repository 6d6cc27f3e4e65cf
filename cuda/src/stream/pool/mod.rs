//! [`StreamPool`]: the core's best fit over a source of memory, in the order of streams.
//!
//! Streams have numbers ([`Streams`]). A block is freed in the order of a stream: it is given again at once
//! on that stream, and to another one after a wait that the device makes, never the host. Nothing on the way
//! of an allocation that fits, or of a free, calls the driver, but for that wait.
//!
//! `when_short` has what is tried when nothing fits at once, `shrink` what a lowered limit does.
//!
//! # Locks
//! That of the core for bookkeeping; those of the streams, also while an event is recorded. No thread holds
//! both.

mod budgeted_pool;
mod by_stream;
mod counts;
mod held;
mod peaks;
mod shrink;
pub(crate) mod streams;
mod when_short;

use std::sync::{Arc, OnceLock, Weak};

use cudarc::driver::CudaStream;
use larder_core::{
    AllocError, BestFit, Block, BlockAllocator, EventNumber, FreeError, Grant, Rejected, Request,
    StreamId, StreamPoint,
};

pub(crate) use budgeted_pool::{BudgetedPool, Core, PoolSource};
pub(crate) use by_stream::ByStream;
pub(crate) use counts::StreamCounts;
pub use counts::StreamStats;
pub(crate) use streams::{Streams, WantedBy};

use crate::DeviceAllocError;

/// Whether an allocation may keep the host waiting for work: a block may; a piece of an arena not, nor a
/// block that can be had elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HostWait {
    MayBlock,
    MustNotBlock,
    HasFallback,
}

/// The tiers above a pool. What they hold is in use to the pool.
pub(crate) trait UpperTiers: Send + Sync {
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

    /// Bytes of the device whose memory it is.
    fn device_bytes(&self) -> u64;
}

/// Memory in the order of streams.
pub(crate) struct StreamPool<S: PoolSource<P>, P: BestFit> {
    /// In front of the streams: their work may use it until it is gone.
    pub(crate) memory: BudgetedPool<S, P>,
    pub(crate) streams: Streams,
    /// Set once; never for a pool by itself.
    upper: OnceLock<Weak<dyn UpperTiers>>,
}

impl<S: PoolSource<P>, P: BestFit> StreamPool<S, P> {
    pub(crate) fn new(memory: BudgetedPool<S, P>) -> Self {
        Self {
            streams: Streams::new(memory.context()),
            memory,
            upper: OnceLock::new(),
        }
    }

    /// The core's allocator, which knows nothing of counters by stream.
    #[inline]
    pub(crate) fn shared(&self) -> &Core<S, P> {
        self.memory.shared()
    }

    /// Stands below these tiers from now on.
    pub(crate) fn stand_below(&self, tiers: Weak<dyn UpperTiers>) {
        let set = self.upper.set(tiers);
        debug_assert!(set.is_ok(), "a pool has the tiers that it was made for");
    }

    /// The tiers above, if it has any.
    fn upper(&self) -> Option<Arc<dyn UpperTiers>> {
        self.upper.get()?.upgrade()
    }

    /// Has the tiers above give back what they do not use. Whether there was any.
    fn give_back_above(&self, host: HostWait) -> bool {
        self.upper().is_some_and(|upper| upper.give_back(host))
    }

    /// The error of an allocation.
    pub(crate) fn refusal(&self, reason: AllocError) -> DeviceAllocError {
        let upper = self.upper();
        let idle_bytes = upper.as_ref().map_or(0, |upper| upper.idle_bytes());
        let device_bytes = || upper.map_or(u64::MAX, |upper| upper.device_bytes());
        self.memory.refusal(reason, idle_bytes, device_bytes)
    }

    /// Memory that is held, fits, and needs no wait.
    // A block that comes back through memory is read before it is written out.
    #[inline(always)]
    pub(crate) fn find_at_once(&self, request: &Request) -> Option<Block> {
        self.shared().with(|bfc| {
            let block = bfc.try_alloc_now(&request.without_wait())?.block;
            self.streams
                .account(request.stream)
                .allocated(block.bytes());
            Some(block)
        })
    }

    /// Memory that is held and fits, after a wait if need be.
    fn find(&self, request: &Request) -> Option<Grant> {
        self.shared().with(|bfc| {
            let grant = bfc.try_alloc_now(request)?;
            self.streams
                .account(request.stream)
                .allocated(grant.block.bytes());
            Some(grant)
        })
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
        let ordered = self
            .streams
            .order(stream, stream_id, point, WantedBy::Memory);
        if ordered == Ok(true) {
            return Ok(Some(grant.block));
        }
        // The block goes back as it was: still in use by the other stream.
        let bytes = grant.block.bytes();
        let _ = self.shared().free_after(grant.block, point);
        self.shared()
            .with(|_| self.streams.account(stream_id).withdrawn(bytes));
        ordered?;
        Ok(None)
    }

    /// Takes a block back in the order of a point.
    #[inline]
    pub(crate) fn free_at(
        &self,
        block: Block,
        point: StreamPoint,
    ) -> Result<(), Rejected<FreeError>> {
        self.shared().with(|bfc| {
            let bytes = block.bytes();
            bfc.free_after(block, point)?;
            self.streams.account(point.stream).freed(bytes);
            Ok(())
        })
    }
}

impl<S: PoolSource<P>, P: BestFit> Drop for StreamPool<S, P> {
    fn drop(&mut self) {
        // Blocks that were never freed may be in use too.
        let unwaited = self.streams.wait_for_all();
        self.memory.ends_behind(unwaited);
    }
}
