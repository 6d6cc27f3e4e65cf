//! [`Logged`]: an allocator of host memory with a record of each call.

use core::mem::ManuallyDrop;
use std::time::Instant;

use larder_core::BlockAllocator;
use larder_core::decorate::{Record, Ticks, TrackStats, Tracked};

use crate::waiting::Yield;

/// Records that are kept: the newest.
const RECORDS: usize = 1 << 12;

/// Nanoseconds since the allocator was made.
pub(super) struct Clock(Instant);

impl Ticks for Clock {
    fn now(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// An allocator, its records, and the ring that holds them.
///
/// K1 the ring is a box given up to `tracked`, which alone reaches it until it is dropped.
pub(super) struct Logged<A: BlockAllocator> {
    /// Dropped in `drop`, before the ring.
    tracked: ManuallyDrop<Tracked<'static, A, Clock, Yield>>,
    ring: *mut [Option<Record>],
}

// SAFETY: what is tracked is shared as `A` is, and the pointer is used in `drop` only (K1).
unsafe impl<A: BlockAllocator + Send> Send for Logged<A> {}
// SAFETY: what is tracked is shared as `A` is, and the pointer is used in `drop` only (K1).
unsafe impl<A: BlockAllocator + Sync> Sync for Logged<A> {}

impl<A: BlockAllocator> Logged<A> {
    pub(super) fn new(inner: A) -> Self {
        let ring = Box::into_raw(vec![None; RECORDS].into_boxed_slice());
        // SAFETY: K1: it was a box a moment ago, and nobody else has it.
        let lent = unsafe { &mut *ring };
        // Sizes are tracked below, so no rows are needed.
        let tracked = Tracked::with_ticks(inner, Clock(Instant::now()), lent, None);
        Self {
            tracked: ManuallyDrop::new(tracked),
            ring,
        }
    }

    pub(super) fn blocks(&self) -> &dyn BlockAllocator {
        &*self.tracked
    }

    pub(super) fn stats(&self) -> TrackStats {
        self.tracked.track_stats()
    }

    pub(super) fn drain(&self, f: impl FnMut(Record)) {
        self.tracked.drain_records(f);
    }
}

impl<A: BlockAllocator> Drop for Logged<A> {
    fn drop(&mut self) {
        // SAFETY: dropped once, here, and not used again.
        unsafe { ManuallyDrop::drop(&mut self.tracked) };
        // SAFETY: K1: nobody reaches it any more, so this is a box again.
        drop(unsafe { Box::from_raw(self.ring) });
    }
}
