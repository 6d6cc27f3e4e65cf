//! Memory that goes back to the driver because the program says so.

use larder_core::sync::Ordering;

use crate::stream::pool::HostWait;

use super::{DeviceAllocator, DeviceInner};

/// What [`DeviceAllocator::release`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Released {
    /// Bytes that the driver has again.
    pub now_bytes: u64,
    /// Bytes that queued work still uses: they go at the end of a step, or with the next release, once
    /// an event says that it is done. Those of earlier releases that have not gone count too.
    pub later_bytes: u64,
}

impl DeviceAllocator {
    /// Gives so many bytes of idle memory back to the driver, in whole pages, or what there is; [`u64::MAX`]
    /// for all. Of [regions](super::DeviceBacking::Regions), any number is all that are idle. Nothing is waited for: what queued work still uses goes later. O(chunks) and the calls.
    pub fn release(&self, bytes: u64) -> Released {
        let inner = &*self.0;
        inner.pool.collect(HostWait::MayBlock);
        let (now_bytes, later_bytes) = inner.release_with_deferred(bytes);
        inner.pool.node().shared().notify();
        Released {
            now_bytes,
            later_bytes,
        }
    }

    /// Ends a step of the program: what a [release](Self::release) or a lowered limit still owes goes back, as far
    /// as its work is done. Otherwise no driver call.
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
        let pending = self.pool.report().pending_bytes;
        let later = wanted.saturating_sub(gone).min(pending);
        self.releasing.fetch_add(later, Ordering::Relaxed);
        (gone, later)
    }
}
