//! Releases of memory to the driver at the program's request.

use larder_core::sync::Ordering;

use crate::stream::pool::HostWait;

use super::{DeviceAllocator, DeviceInner};

/// Outcome of [`DeviceAllocator::release`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Released {
    /// Bytes released to the driver.
    pub now_bytes: u64,
    /// Bytes that queued work still uses: they are released at the end of a step, or with the next release,
    /// once an event reports that the work is done. Includes pending bytes of earlier releases.
    pub later_bytes: u64,
}

impl DeviceAllocator {
    /// Releases up to `bytes` bytes of idle memory to the driver, in whole pages; [`u64::MAX`] releases all
    /// of it. With [regions](super::DeviceBacking::Regions), any number of bytes above 0 releases all idle
    /// regions. Does not wait: memory that queued work still uses is released later. O(chunks), and the
    /// driver calls.
    pub fn release(&self, bytes: u64) -> Released {
        let inner = &*self.0;
        inner.pool.poll_events(HostWait::MayBlock);
        let (now_bytes, later_bytes) = inner.release_with_deferred(bytes);
        inner.pool.node().shared().notify();
        Released {
            now_bytes,
            later_bytes,
        }
    }

    /// Ends a step of the program: releases the memory that a [release](Self::release) or a lowered limit left
    /// pending, if the work that used it is done. If nothing is pending, makes no driver call.
    pub fn end_step(&self) {
        self.0.end_step();
        self.0.pool.node().shared().notify();
    }
}

impl DeviceInner {
    pub(super) fn end_step(&self) {
        if self.releasing.load(Ordering::Relaxed) > 0 {
            self.pool.poll();
            self.release_with_deferred(0);
        }
        if self.pool.over_limit().is_on() {
            self.pool.shrink();
        }
    }

    /// Releases `bytes` bytes and the remainder of earlier releases. Returns the bytes released, and the
    /// bytes that are now left for later.
    fn release_with_deferred(&self, bytes: u64) -> (u64, u64) {
        let wanted = self
            .releasing
            .swap(0, Ordering::Relaxed)
            .saturating_add(bytes);
        if wanted == 0 {
            return (0, 0);
        }
        let gone = self.pool.release(wanted);
        let pending = self.pool.report().pending_bytes;
        let later = wanted.saturating_sub(gone).min(pending);
        self.releasing.fetch_add(later, Ordering::Relaxed);
        (gone, later)
    }
}
