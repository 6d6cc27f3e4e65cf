//! What is tried when nothing fits that the stream may use at once:
//!
//! 1. What the tiers [above](UpperTiers) do not use comes back, and the search is made again.
//! 2. What another stream used last is given, and the stream waits for it on the device.
//! 3. What events have passed counts as free for all, and the search is made again.
//! 4. The source is called: it gives regions, or pages move or are created.
//! 5. If that fails while freed memory is pending, above too, the host waits for it, if it may
//!    ([`HostWait`]), and all is tried once more.
//! 6. An error with the numbers.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_core::{AllocError, BestFit, Block, BlockAllocator, Grant, Request, StreamId};

use super::{HostWait, PoolSource, StreamPool};
use crate::DeviceAllocError;

/// A block that several streams used comes back in the order of its first stream, and a piece of an arena
/// that is free then comes back in the order of the arena's stream: so memory whose work is done is found by
/// looking twice.
const ROUNDS: usize = 2;

/// How often an allocation waits for what is pending: what it finds then, another thread may take.
const MAX_WAITS: u32 = 8;

impl<S: PoolSource<P>, P: BestFit> StreamPool<S, P> {
    /// Gives memory where nothing fits at once, in the order that the head of this file says.
    #[cold]
    pub(crate) fn alloc_more(
        &self,
        stream: &Arc<CudaStream>,
        stream_id: StreamId,
        request: &Request,
        host: HostWait,
    ) -> Result<Block, DeviceAllocError> {
        if self.streams.captures(stream)? {
            return Err(DeviceAllocError::Capturing);
        }
        if self.memory.over_limit.is_on() {
            self.memory
                .allocates_over_limit(|| self.none_live(), || self.shrink());
        }
        self.shared().source().forget_over_budget();
        if self.give_back_above(host)
            && let Some(block) = self.find_at_once(request)
        {
            return Ok(block);
        }
        if let Some(grant) = self.find(request)
            && let Some(block) = self.settle(stream, stream_id, grant)?
        {
            return Ok(block);
        }
        // The calls of a growth, and questions before it, change the thread's capture mode once.
        let driver = self.memory.context().driver();
        driver.relaxed_once(|| self.grow(stream, stream_id, request, host))
    }

    /// Gives memory that events say is free, or that the source has.
    fn grow(
        &self,
        stream: &Arc<CudaStream>,
        stream_id: StreamId,
        request: &Request,
        host: HostWait,
    ) -> Result<Block, DeviceAllocError> {
        self.collect(host);
        let found = self.search(request, host)?;
        if let Some(block) = self.settle(stream, stream_id, found)? {
            return Ok(block);
        }
        // Another stream captures, so it cannot be waited for.
        let request = request.without_wait();
        let grant = self.search(&request, host)?;
        self.settle(stream, stream_id, grant)?
            .ok_or(DeviceAllocError::Capturing)
    }

    /// Gives memory by all means.
    fn search(&self, request: &Request, host: HostWait) -> Result<Grant, DeviceAllocError> {
        let mut outcome = self.shared().alloc(request);
        let mut rounds = if host == HostWait::MayBlock {
            MAX_WAITS
        } else {
            0
        };
        while let Err(AllocError::OutOfMemory(out)) = outcome
            && rounds > 0
            && (out.pending_bytes > 0 || self.upper().is_some_and(|upper| upper.holds_pending()))
        {
            rounds -= 1;
            outcome = self.search_after_waits(request)?;
        }
        let grant = outcome.map_err(|reason| self.refusal(reason))?;
        let bytes = grant.block.bytes();
        self.shared()
            .with(|_| self.streams.account(request.stream).allocated(bytes));
        Ok(grant)
    }

    /// Waits on the host for one stream after the other, until there is memory or none is left to wait for.
    #[cold]
    fn search_after_waits(
        &self,
        request: &Request,
    ) -> Result<Result<Grant, AllocError>, DeviceAllocError> {
        self.streams.close_all();
        for (stream_id, _) in self.streams.ids() {
            if self.streams.wait_for(stream_id)? {
                self.poll();
                self.give_back_above(HostWait::MayBlock);
                if let Ok(grant) = self.shared().alloc(request) {
                    return Ok(Ok(grant));
                }
            }
        }
        // What a thread that waited as well found, or freed.
        self.poll();
        self.give_back_above(HostWait::MayBlock);
        Ok(self.shared().alloc(request))
    }

    /// Makes all memory free that no work uses any more. Nothing is waited for.
    pub(crate) fn collect(&self, host: HostWait) {
        for _ in 0..ROUNDS {
            self.give_back_above(host);
            self.streams.close_all();
            self.poll();
        }
    }

    /// Tells the core and the tiers above how far the streams are.
    pub(crate) fn poll(&self) {
        let upper = self.upper();
        self.streams.poll(|stream_id, number| {
            self.shared().complete(stream_id, number);
            if let Some(upper) = &upper {
                upper.completed(stream_id, number);
            }
        });
        if let Some(upper) = &upper {
            upper.polled();
        }
    }
}
