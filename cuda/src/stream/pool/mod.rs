//! [`StreamPool`]: the core's best fit over a source of memory, in the order of streams.
//!
//! Streams and their events have numbers ([`StreamTable`]). A freed block carries a point: the number of its
//! stream and the number of the stream's next event:
//!
//! ```text
//! free(block) on stream 3, whose next event is 8: the block carries point (3, 8)
//!    │
//!    ├─ stream 3 allocates ──── reused directly: the stream's queue keeps the order
//!    │
//!    ├─ stream 5 allocates ──── reused after a wait: event 8 is recorded on stream 3,
//!    │                          and stream 5 waits for it on the device, never the host
//!    │
//!    └─ event 8 completes ───── free for all streams, without a point
//! ```
//! Neither a free nor an allocation that fits makes a driver call, except for that wait.
//!
//! `when_short` has the steps of an allocation when nothing fits without a wait, `reserved` commits pages of
//! reserved addresses, and `shrink` has the effects of a lowered limit.
//!
//! # Locks
//! The core's lock is held only for bookkeeping. A stream's lock is also held while an event is recorded. No
//! thread holds both.

mod budgeted_pool;
mod by_stream;
mod counts;
mod held;
mod peaks;
mod reserved;
mod shrink;
pub(crate) mod streams;
mod when_short;

use std::sync::{Arc, OnceLock, Weak};

use cudarc::driver::CudaStream;
use larder_core::{
    AllocError, BestFit, Block, BlockAllocator, EventNumber, FreeError, Grant, Rejected, Request,
    StreamId, StreamPoint,
};

pub(crate) use budgeted_pool::{BudgetedPool, PoolSource, SharedPool};
pub(crate) use by_stream::ByStream;
pub(crate) use counts::StreamCounts;
pub use counts::StreamStats;
pub(crate) use streams::{StreamTable, WantedBy};

use crate::DeviceAllocError;

/// Whether an allocation may block the host until queued work finishes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HostWait {
    /// The host may wait, since only this memory can serve the block.
    MayBlock,
    /// The host must not wait, since the request is for a piece of an arena.
    MustNotBlock,
    /// The host must not wait, since other memory can serve the block.
    HasFallback,
}

/// The tiers above a pool, which counts their memory as in use.
pub(crate) trait UpperTiers: Send + Sync {
    /// Frees unused memory of the tiers without waiting. Returns whether there was any.
    fn give_back(&self, host: HostWait) -> bool;

    /// Marks the work of a stream up to an event as done.
    fn completed(&self, stream_id: StreamId, number: EventNumber);

    /// Called after all streams have been polled.
    fn polled(&self);

    /// Returns whether the tiers have, or had a moment ago, memory that becomes free once work is done.
    fn holds_pending(&self) -> bool;

    /// Returns the bytes of the tiers that no block occupies.
    fn idle_bytes(&self) -> u64;

    /// Returns the bytes of blocks that the program has freed and that are not free yet.
    fn multi_stream_bytes(&self) -> u64;

    /// Returns the size of the device's memory in bytes.
    fn device_bytes(&self) -> u64;
}

/// Memory in the order of streams.
pub(crate) struct StreamPool<S: PoolSource<P>, P: BestFit> {
    /// Declared before the streams so that it is dropped first, since their work may use the memory until
    /// then.
    pub(crate) memory: BudgetedPool<S, P>,
    pub(crate) streams: StreamTable,
    /// The tiers above. Set once, and never for a pool without tiers.
    upper: OnceLock<Weak<dyn UpperTiers>>,
}

impl<S: PoolSource<P>, P: BestFit> StreamPool<S, P> {
    pub(crate) fn new(memory: BudgetedPool<S, P>) -> Self {
        Self {
            streams: StreamTable::new(memory.context()),
            memory,
            upper: OnceLock::new(),
        }
    }

    /// Returns the core's allocator, which does not count by stream.
    #[inline]
    pub(crate) fn shared(&self) -> &SharedPool<S, P> {
        self.memory.shared()
    }

    /// Sets the tiers above.
    pub(crate) fn set_upper_tiers(&self, tiers: Weak<dyn UpperTiers>) {
        let set = self.upper.set(tiers);
        debug_assert!(set.is_ok(), "a pool has the tiers that it was made for");
    }

    /// Returns the tiers above, if there are any.
    fn upper(&self) -> Option<Arc<dyn UpperTiers>> {
        self.upper.get()?.upgrade()
    }

    /// Frees unused memory of the tiers above. Returns whether there was any.
    fn give_back_above(&self, host: HostWait) -> bool {
        self.upper().is_some_and(|upper| upper.give_back(host))
    }

    /// Makes the error of an allocation.
    pub(crate) fn refusal(&self, reason: AllocError) -> DeviceAllocError {
        let upper = self.upper();
        let idle_bytes = upper.as_ref().map_or(0, |upper| upper.idle_bytes());
        let device_bytes = || upper.map_or(u64::MAX, |upper| upper.device_bytes());
        self.memory.refusal(reason, idle_bytes, device_bytes)
    }

    /// Allocates from held memory that fits and needs no wait.
    // Always inlined, since a block returned through memory would be read before the write has completed.
    #[inline(always)]
    pub(crate) fn find_at_once(&self, request: &Request) -> Option<Block> {
        self.shared().with(|locked| {
            let block = locked.try_alloc_now(&request.without_wait())?.block;
            self.streams
                .account(request.stream)
                .allocated(block.bytes());
            Some(block)
        })
    }

    /// Allocates from held memory that fits, after a wait if necessary.
    fn find(&self, request: &Request) -> Option<Grant> {
        self.shared().with(|locked| {
            let grant = locked.try_alloc_now(request)?;
            self.streams
                .account(request.stream)
                .allocated(grant.block.bytes());
            Some(grant)
        })
    }

    /// Makes the stream of a found block wait for the stream that used it last. If a capture forbids that,
    /// frees the block again and returns `None`.
    fn wait_for_last_user(
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
        // The block is freed unchanged, still in use by the other stream.
        let bytes = grant.block.bytes();
        let _ = self.shared().free_after(grant.block, point);
        self.shared()
            .with(|_| self.streams.account(stream_id).withdrawn(bytes));
        ordered?;
        Ok(None)
    }

    /// Frees a block that work may use up to a point.
    #[inline]
    pub(crate) fn free_at(
        &self,
        block: Block,
        point: StreamPoint,
    ) -> Result<(), Rejected<FreeError>> {
        self.shared().with(|locked| {
            let bytes = block.bytes();
            locked.free_after(block, point)?;
            self.streams.account(point.stream).freed(bytes);
            Ok(())
        })
    }
}

impl<S: PoolSource<P>, P: BestFit> Drop for StreamPool<S, P> {
    fn drop(&mut self) {
        // Work may still use blocks that were never freed, too.
        let unwaited = self.streams.wait_for_all();
        self.memory.ends_behind(unwaited);
    }
}
