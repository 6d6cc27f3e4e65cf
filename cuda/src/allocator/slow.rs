//! When nothing fits, and memory that goes back.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_core::sync::Ordering;
use larder_core::{AllocError, Block, BlockAllocator, Grant, Request, StreamId};

use super::{DeviceAllocError, DeviceAllocator, DeviceInner};

/// What [`DeviceAllocator::release`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Released {
    /// Bytes that the driver has again.
    pub now_bytes: u64,
    /// Bytes that queued work still uses: they go at the end of a step, or with the next release, once
    /// an event says that it is done. Those of earlier releases that have not gone count too.
    pub later_bytes: u64,
}

/// Whether an allocation may keep the host waiting for work: a block may; a piece of an arena not, nor a
/// block that can be had elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HostWait {
    Waits,
    GoesOn,
    HasOther,
}

/// A block that several streams used comes back in the order of its first stream, and a piece of an arena
/// that is free then comes back to the core in the order of the arena's stream: so memory whose work is done
/// is found by looking twice.
const ROUNDS: usize = 2;

/// How often an allocation waits for what is pending: what it finds then, another thread may take.
const MAX_WAITS: u32 = 8;

impl DeviceAllocator {
    /// Gives so many bytes of idle memory back to the driver, in whole pages, or what there is; [`u64::MAX`]
    /// for all. Nothing is waited for: what queued work still uses goes later. O(chunks) and the calls.
    pub fn release(&self, bytes: u64) -> Released {
        let inner = &*self.0;
        inner.collect(HostWait::Waits);
        let (now_bytes, later_bytes) = inner.release_with_deferred(bytes);
        inner.node.shared().notify();
        Released {
            now_bytes,
            later_bytes,
        }
    }

    /// A step of the program ends: what it repeats is counted by these. No driver call, unless a
    /// [release](Self::release) is not over.
    pub fn end_step(&self) {
        self.0.end_step();
        self.0.node.shared().notify();
    }
}

impl DeviceInner {
    pub(super) fn end_step(&self) {
        self.pool.end_step();
        if self.releasing.load(Ordering::Relaxed) > 0 {
            self.poll();
            self.release_with_deferred(0);
        }
        if self.shrinking.is_on() {
            self.shrink();
        }
    }

    /// Gives back so many bytes more than earlier releases have still to give back. Returns the bytes that
    /// went, and those that are deferred now.
    fn release_with_deferred(&self, bytes: u64) -> (u64, u64) {
        let wanted = self
            .releasing
            .swap(0, Ordering::Relaxed)
            .saturating_add(bytes);
        if wanted == 0 {
            return (0, 0);
        }
        let gone = self.pool.release(wanted);
        let pending = self.pool.with(|paged| paged.report().pending_bytes);
        let later = wanted.saturating_sub(gone).min(pending);
        self.releasing.fetch_add(later, Ordering::Relaxed);
        (gone, later)
    }

    #[cold]
    pub(super) fn alloc_more(
        &self,
        stream: &Arc<CudaStream>,
        stream_id: StreamId,
        request: &Request,
        host: HostWait,
    ) -> Result<Block, DeviceAllocError> {
        if self.streams.captures(stream)? {
            return Err(DeviceAllocError::Capturing);
        }
        if self.shrinking.is_on() {
            self.allocates_while_shrinking();
        }
        self.pool.source().forget_over_budget();
        if self.trim_for(host)
            && let Some(block) = self.find_at_once(request)
        {
            return Ok(block);
        }
        if let Some(grant) = self.find(request)?
            && let Some(block) = self.settle(stream, stream_id, grant)?
        {
            return Ok(block);
        }
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

    /// Gives memory by all means, in the order that the documentation of the folder says.
    fn search(&self, request: &Request, host: HostWait) -> Result<Grant, DeviceAllocError> {
        let mut outcome = self.pool.alloc(request);
        let mut rounds = if host == HostWait::Waits {
            MAX_WAITS
        } else {
            0
        };
        while let Err(AllocError::OutOfMemory(out)) = outcome
            && rounds > 0
            && (out.pending_bytes > 0 || self.holds_pending())
        {
            rounds -= 1;
            outcome = self.search_after_waits(request)?;
        }
        let grant = outcome.map_err(|reason| self.refusal(reason))?;
        let bytes = grant.block.bytes();
        self.pool
            .with(|_| self.accounts.allocated(request.stream, bytes));
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
                self.arenas.trim();
                if let Ok(grant) = self.pool.alloc(request) {
                    return Ok(Ok(grant));
                }
            }
        }
        // What a thread that waited as well found, or freed.
        self.poll();
        self.arenas.trim();
        Ok(self.pool.alloc(request))
    }

    /// Whether memory that the core counts as live, or counted so a moment ago, only waits for work.
    fn holds_pending(&self) -> bool {
        self.arenas.trim() || !self.deferred.is_empty() || self.arenas.holds_pending()
    }

    /// Makes all memory free that no work uses any more. Nothing is waited for.
    pub(super) fn collect(&self, host: HostWait) {
        for _ in 0..ROUNDS {
            self.trim_for(host);
            self.streams.close_all();
            self.poll();
        }
    }

    /// Gives back to the core what arenas do not use (A3). Returns whether there was any.
    fn trim_for(&self, host: HostWait) -> bool {
        match host {
            HostWait::Waits | HostWait::HasOther => self.arenas.trim(),
            HostWait::GoesOn => self.arenas.trim_excess(),
        }
    }

    /// Tells the core how far the streams are, and frees what several of them have passed.
    pub(super) fn poll(&self) {
        self.streams.poll(|stream_id, number| {
            self.pool.complete(stream_id, number);
            self.arenas.complete(stream_id, number);
        });
        let free = |block, freed_on| {
            let freed = self.free_anywhere(block, freed_on);
            debug_assert!(freed.is_ok(), "a block that was ours when it was deferred");
        };
        self.deferred
            .free_passed(|point| self.streams.is_done(point), free);
    }
}
