//! [`Earlier`]: the counters of an allocator before they were cleared, so that the peak of an interval can be
//! taken while no counter decreases.
//!
//! Everything is read and written under the lock of the pool that the counters belong to.

use larder_core::Stats;
use larder_core::sync::{AtomicU64, Ordering};

/// The counters up to the last time that they were cleared.
#[derive(Default)]
pub(crate) struct Earlier {
    allocations: AtomicU64,
    peak_live_bytes: AtomicU64,
    peak_reserved_bytes: AtomicU64,
    largest_bytes: AtomicU64,
}

impl Earlier {
    /// Adds the counters, which the caller then clears. Returns their peak of live bytes.
    pub(crate) fn take(&self, stats: &Stats) -> u64 {
        // Relaxed, all: the pool's lock orders them.
        let order = Ordering::Relaxed;
        self.allocations.fetch_add(stats.allocations, order);
        self.peak_live_bytes.fetch_max(stats.peak_live_bytes, order);
        self.peak_reserved_bytes
            .fetch_max(stats.peak_reserved_bytes, order);
        self.largest_bytes.fetch_max(stats.largest_bytes, order);
        stats.peak_live_bytes
    }

    /// Returns the counters, combined with the earlier ones.
    pub(crate) fn with(&self, mut stats: Stats) -> Stats {
        let largest = |kept: &AtomicU64, now: u64| kept.load(Ordering::Relaxed).max(now);
        let allocations = self.allocations.load(Ordering::Relaxed);
        stats.allocations = stats.allocations.saturating_add(allocations);
        stats.peak_live_bytes = largest(&self.peak_live_bytes, stats.peak_live_bytes);
        stats.peak_reserved_bytes = largest(&self.peak_reserved_bytes, stats.peak_reserved_bytes);
        stats.largest_bytes = largest(&self.largest_bytes, stats.largest_bytes);
        stats
    }

    /// Clears the earlier counters.
    pub(crate) fn clear(&self) {
        for kept in [
            &self.allocations,
            &self.peak_live_bytes,
            &self.peak_reserved_bytes,
            &self.largest_bytes,
        ] {
            kept.store(0, Ordering::Relaxed);
        }
    }
}
