//! The steps of an allocation when no memory fits that the stream may use without a wait:
//!
//! 1. Unused memory of the tiers [above](super::UpperTiers) is freed, and the search is repeated.
//! 2. Memory that another stream used last is granted, and the stream waits on the device for that use to
//!    end.
//! 3. Memory whose events are done becomes free for all streams, and the search is repeated.
//! 4. The source is called: it grows by regions, or pages are moved or created.
//! 5. If that fails while freed memory is pending, here or above, the host waits for that memory if it may
//!    ([`HostWait`]), and the search is repeated.
//! 6. The allocation fails, with the numbers in the error.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cudarc::driver::CudaStream;
use larder_core::{AllocError, BestFit, Block, BlockAllocator, Cause, Grant, Request, StreamId};

use super::{HostWait, PoolSource, StreamPool};
use crate::DeviceAllocError;

/// Number of rounds in which pending memory is collected. A block that several streams used is freed in the
/// order of its first stream. If that frees a piece of an arena, the piece is freed in the order of the
/// arena's stream. Therefore finding all memory whose work is done takes two rounds.
const ROUNDS: usize = 2;

/// Maximum number of times that an allocation waits for pending memory, since another thread may take the
/// memory that a wait frees.
const MAX_WAITS: u32 = 8;

/// Time between two looks at a given place that another thread's calls of the driver hold.
const PAUSE: Duration = Duration::from_micros(100);

/// Maximum number of looks at such a place: 10 seconds of them, after which a call of the driver has failed for good.
const MAX_PAUSES: u32 = 100_000;

impl<S: PoolSource<P>, P: BestFit> StreamPool<S, P> {
    /// Allocates when nothing fits without a wait, by the steps at the head of this file.
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
        self.begin_short();
        if self.give_back_above(host)
            && let Some(block) = self.find_at_once(request)
        {
            return Ok(block);
        }
        if let Some(grant) = self.find(request)
            && let Some(block) = self.wait_for_last_user(stream, stream_id, grant)?
        {
            return Ok(block);
        }
        // The queries and the calls of a growth share one change of the thread's capture mode.
        let driver = self.memory.context().driver();
        driver.relaxed_once(|| self.grow(stream, stream_id, request, host))
    }

    /// Prepares an allocation that may call the source.
    pub(super) fn begin_short(&self) {
        if self.memory.over_limit.is_on() {
            self.memory
                .allocates_over_limit(|| self.none_live(), || self.shrink());
        }
        self.shared().source().forget_over_budget();
    }

    /// Allocates from memory that events show to be free, or from the source.
    fn grow(
        &self,
        stream: &Arc<CudaStream>,
        stream_id: StreamId,
        request: &Request,
        host: HostWait,
    ) -> Result<Block, DeviceAllocError> {
        self.poll_events(host);
        let alloc = |request: &Request| self.shared().alloc(request);
        let found = self.search(request.stream, host, || alloc(request))?;
        if let Some(block) = self.wait_for_last_user(stream, stream_id, found)? {
            return Ok(block);
        }
        // The memory's last user is being captured, so it cannot be waited for.
        let request = request.without_wait();
        let grant = self.search(request.stream, host, || alloc(&request))?;
        self.wait_for_last_user(stream, stream_id, grant)?
            .ok_or(DeviceAllocError::Capturing)
    }

    /// Allocates with `alloc`, which grows the source; waits on the host if `host` allows that.
    pub(super) fn search(
        &self,
        stream_id: StreamId,
        host: HostWait,
        alloc: impl Fn() -> Result<Grant, AllocError>,
    ) -> Result<Grant, DeviceAllocError> {
        let mut outcome = alloc();
        let mut rounds = if host == HostWait::MayBlock {
            MAX_WAITS
        } else {
            0
        };
        let mut pauses = 0;
        while rounds > 0 {
            outcome = match outcome {
                Err(AllocError::OutOfMemory(out))
                    if out.pending_bytes > 0
                        || out.cause == Cause::Pending
                        || self.upper().is_some_and(|upper| upper.holds_pending()) =>
                {
                    rounds -= 1;
                    self.search_after_waits(&alloc)?
                }
                // Another thread's calls hold what is mapped at the given place.
                Err(AllocError::PlaceTaken) if pauses < MAX_PAUSES => {
                    pauses += 1;
                    thread::sleep(PAUSE);
                    alloc()
                }
                _ => break,
            };
        }
        let grant = outcome.map_err(|reason| self.refusal(reason))?;
        let bytes = grant.block.bytes();
        self.shared()
            .with(|_| self.streams.account(stream_id).allocated(bytes));
        Ok(grant)
    }

    /// Waits on the host for one stream after another, until there is memory or no stream is left to wait
    /// for.
    #[cold]
    fn search_after_waits(
        &self,
        alloc: impl Fn() -> Result<Grant, AllocError>,
    ) -> Result<Result<Grant, AllocError>, DeviceAllocError> {
        self.streams.close_all();
        for (stream_id, _) in self.streams.ids() {
            if self.streams.wait_for(stream_id)? {
                self.poll();
                self.give_back_above(HostWait::MayBlock);
                if let Ok(grant) = alloc() {
                    return Ok(Ok(grant));
                }
            }
        }
        // Another waiting thread may have found or freed memory.
        self.poll();
        self.give_back_above(HostWait::MayBlock);
        Ok(alloc())
    }

    /// Waits on the host until no queued work uses freed memory any more, and frees it. Streams that cannot be waited for
    /// are passed over.
    #[cold]
    pub(crate) fn wait_for_pending(&self) {
        let driver = self.memory.context().driver();
        driver.relaxed_once(|| {
            self.streams.close_all();
            for (stream_id, _) in self.streams.ids() {
                // A refusal leaves the memory pending.
                let _ = self.streams.wait_for(stream_id);
            }
            self.poll();
            self.give_back_above(HostWait::MayBlock);
        });
    }

    /// Frees all memory that no work uses any more. Does not wait.
    pub(crate) fn poll_events(&self, host: HostWait) {
        for _ in 0..ROUNDS {
            self.give_back_above(host);
            self.streams.close_all();
            self.poll();
        }
    }

    /// Reports the progress of the streams to the core and the tiers above.
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
