//! When nothing fits, and memory that goes back.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_core::sync::Ordering;
use larder_core::{AllocError, Block, BlockAllocator, Grant, Lane, Request};

use super::{DeviceAllocError, DeviceAllocator, Inner};

/// What [`DeviceAllocator::release`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Released {
    /// Bytes that the driver has again.
    pub now_bytes: u64,
    /// Bytes that queued work still uses: they go when an event says that it is done, at the end of a
    /// step or when memory is asked for.
    pub later_bytes: u64,
}

impl DeviceAllocator {
    /// Gives idle memory back to the driver. Nothing is waited for: what queued work still uses goes
    /// later. O(chunks) and the calls.
    pub fn release(&self, bytes: u64) -> Released {
        let inner = &*self.0;
        inner.arenas.trim();
        inner.streams.close_all();
        inner.poll();
        let now_bytes = inner.pool.release(bytes);
        let pending = inner.pool.with(|paged| paged.report().pending_bytes);
        let later_bytes = bytes.saturating_sub(now_bytes).min(pending);
        inner.releasing.store(later_bytes, Ordering::Relaxed);
        Released {
            now_bytes,
            later_bytes,
        }
    }

    /// A step of the program ends: what it repeats is counted by these. No driver call, unless a
    /// [release](Self::release) is not over.
    pub fn end_step(&self) {
        self.0.end_step();
    }
}

impl Inner {
    pub(super) fn end_step(&self) {
        self.pool.end_step();
        if self.releasing.load(Ordering::Relaxed) > 0 {
            self.poll();
            self.release_later();
        }
    }

    /// Goes on with a release.
    fn release_later(&self) {
        let wanted = self.releasing.swap(0, Ordering::Relaxed);
        if wanted > 0 {
            let left = wanted.saturating_sub(self.pool.release(wanted));
            let pending = self.pool.with(|paged| paged.report().pending_bytes);
            self.releasing
                .fetch_add(left.min(pending), Ordering::Relaxed);
        }
    }

    #[cold]
    pub(super) fn alloc_more(
        &self,
        stream: &Arc<CudaStream>,
        lane: Lane,
        request: &Request,
    ) -> Result<Block, DeviceAllocError> {
        if self.captures(stream)? {
            return Err(DeviceAllocError::Capturing);
        }
        if self.arenas.trim()
            && let Some(block) = self.find_at_once(lane, request.bytes)
        {
            return Ok(block);
        }
        if let Some(grant) = self.find(request)?
            && let Some(block) = self.settle(stream, lane, grant)?
        {
            return Ok(block);
        }
        self.streams.close_all();
        self.poll();
        let found = self.search(request)?;
        if let Some(block) = self.settle(stream, lane, found)? {
            return Ok(block);
        }
        // Another stream captures, so it cannot be waited for.
        let request = request.without_wait();
        let grant = self.search(&request)?;
        self.settle(stream, lane, grant)?
            .ok_or(DeviceAllocError::Capturing)
    }

    /// Gives memory by all means, in the order above.
    fn search(&self, request: &Request) -> Result<Grant, DeviceAllocError> {
        let outcome = match self.pool.alloc(request) {
            Err(AllocError::OutOfMemory(out))
                if out.pending_bytes > 0 || !self.parked.is_empty() =>
            {
                self.streams.wait()?;
                self.poll();
                self.pool.alloc(request)
            }
            other => other,
        };
        let grant = outcome.map_err(|reason| self.refusal(reason))?;
        let bytes = grant.block.bytes();
        self.pool
            .with(|_| self.accounts.allocated(request.lane, bytes));
        Ok(grant)
    }

    /// Tells the core how far the streams are, and frees what several of them have passed.
    pub(super) fn poll(&self) {
        self.streams.poll(|lane, epoch| {
            self.pool.complete(lane, epoch);
            self.arenas.complete(lane, epoch);
        });
        for (block, home) in self.parked.take(|stamp| self.streams.is_done(stamp)) {
            let freed = self.free_anywhere(block, home);
            debug_assert!(freed.is_ok(), "a block that was ours when it was parked");
        }
    }
}
