//! [`Account`]: counters and a limit for blocks from an allocator that has neither.

use std::sync::atomic::{AtomicU64, Ordering};

use larder_core::{Cause, OutOfMemory, Stats};

use crate::stream::allocator::Live;

/// Invariant: `live_bytes` is the sum of the bytes taken and not returned, and is never above the limit.
#[derive(Debug)]
pub(crate) struct Account {
    limit_bytes: u64,
    live_bytes: AtomicU64,
    blocks: AtomicU64,
    allocations: AtomicU64,
    peak_bytes: AtomicU64,
    largest_bytes: AtomicU64,
}

impl Account {
    pub(crate) const fn new(limit_bytes: u64) -> Self {
        Self {
            limit_bytes,
            live_bytes: AtomicU64::new(0),
            blocks: AtomicU64::new(0),
            allocations: AtomicU64::new(0),
            peak_bytes: AtomicU64::new(0),
            largest_bytes: AtomicU64::new(0),
        }
    }

    /// Charges `bytes` before they are allocated.
    pub(crate) fn take(&self, bytes: u64) -> Result<(), OutOfMemory> {
        // Relaxed: only the number is shared; it publishes no other memory.
        let taken = self
            .live_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |live| {
                let sum = live.checked_add(bytes)?;
                (sum <= self.limit_bytes).then_some(sum)
            });
        taken.map(drop).map_err(|live| {
            let mut out = OutOfMemory::of(Cause::Limit, bytes);
            out.limit_bytes = self.limit_bytes;
            out.live_bytes = live;
            out.reserved_bytes = live;
            out
        })
    }

    /// Counts a block whose `bytes` were taken.
    pub(crate) fn gave(&self, bytes: u64) {
        // Updated here rather than in `take`, so that refused bytes do not raise the peak.
        let live = self.live_bytes.load(Ordering::Relaxed);
        self.peak_bytes.fetch_max(live, Ordering::Relaxed);
        self.blocks.fetch_add(1, Ordering::Relaxed);
        self.allocations.fetch_add(1, Ordering::Relaxed);
        self.largest_bytes.fetch_max(bytes, Ordering::Relaxed);
    }

    /// Returns `bytes` that were taken for an allocation that failed.
    pub(crate) fn refused(&self, bytes: u64) {
        self.live_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Counts a freed block of `bytes`.
    pub(crate) fn freed(&self, bytes: u64) {
        self.live_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.blocks.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the blocks in use.
    pub(crate) fn live(&self) -> Live {
        Live {
            blocks: self.blocks.load(Ordering::Relaxed),
            bytes: self.live_bytes.load(Ordering::Relaxed),
        }
    }

    /// Restarts the counters; see [`Stats::clear`].
    pub(crate) fn clear(&self) {
        let live = self.live_bytes.load(Ordering::Relaxed);
        self.allocations.store(0, Ordering::Relaxed);
        self.peak_bytes.store(live, Ordering::Relaxed);
        self.largest_bytes.store(0, Ordering::Relaxed);
    }

    /// Returns the counters. Reserved bytes equal live bytes, since the allocator that serves the blocks counts
    /// its own reserved memory.
    pub(crate) fn stats(&self) -> Stats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (live, peak) = (read(&self.live_bytes), read(&self.peak_bytes));
        Stats {
            allocations: read(&self.allocations),
            live_bytes: live,
            peak_live_bytes: peak,
            largest_bytes: read(&self.largest_bytes),
            requested_bytes: live,
            reserved_bytes: live,
            peak_reserved_bytes: peak,
            limit_bytes: self.limit_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_met_exactly_and_a_refusal_takes_nothing() {
        let account = Account::new(100);
        account.take(99).unwrap();
        account.gave(99);
        let out = account.take(2).unwrap_err();
        assert_eq!((out.cause, out.live_bytes), (Cause::Limit, 99));
        assert_eq!((out.requested_bytes, out.limit_bytes), (2, 100));
        account.take(1).unwrap();
        account.refused(1);
        assert_eq!(account.stats().peak_live_bytes, 99, "nobody had it");
        account.take(1).unwrap();
        account.gave(1);
        assert_eq!(account.take(u64::MAX).unwrap_err().live_bytes, 100);
        let stats = account.stats();
        assert_eq!((stats.allocations, stats.live_bytes), (2, 100));
        assert_eq!((stats.peak_live_bytes, stats.largest_bytes), (100, 99));
        assert_eq!(account.live().blocks, 2);
        account.freed(99);
        assert_eq!(
            account.live(),
            Live {
                blocks: 1,
                bytes: 1
            }
        );
    }
}
