//! Counters of an allocator, as plain values.
//!
//! The first four fields of [`Stats`] are TensorFlow's tuple; everything is in bytes or counts.

use core::fmt;

use crate::byte_count::ByteCount;
use crate::error::Limit;

/// Counters of an allocator. `*_bytes` are in bytes, the rest are counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Successful allocations since construction or [`clear`](Stats::clear).
    pub allocations: u64,
    /// Bytes of the chunks in use, as granted rather than as requested.
    pub live_bytes: u64,
    /// Largest value `live_bytes` has had.
    pub peak_live_bytes: u64,
    /// Largest single chunk granted.
    pub largest_bytes: u64,
    /// Bytes requested for the blocks in use; `live_bytes - requested_bytes` is lost to rounding.
    pub requested_bytes: u64,
    /// Bytes held from the sub-allocator.
    pub reserved_bytes: u64,
    /// Largest value `reserved_bytes` has had.
    pub peak_reserved_bytes: u64,
    /// The bound on `reserved_bytes`.
    pub limit_bytes: u64,
}

/// Formats as one line:
/// `live 2 MiB (most 5 MiB), held 8 MiB (most 8 MiB), no limit; 12 allocations, the largest 3 MiB`.
impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "live {} (most {}), held {} (most {}), {}; {} allocations, the largest {}",
            ByteCount(self.live_bytes),
            ByteCount(self.peak_live_bytes),
            ByteCount(self.reserved_bytes),
            ByteCount(self.peak_reserved_bytes),
            Limit(self.limit_bytes),
            self.allocations,
            ByteCount(self.largest_bytes),
        )
    }
}

impl Stats {
    /// Resets these counters: allocations and largest to 0, peaks to the current values. Live and reserved bytes and
    /// the limit stay. An allocator's own counters are reset by its `clear_stats`.
    pub fn clear(&mut self) {
        self.allocations = 0;
        self.peak_live_bytes = self.live_bytes;
        self.peak_reserved_bytes = self.reserved_bytes;
        self.largest_bytes = 0;
    }
}

/// The held bytes, and the bytes down to which a limit could be lowered right now (AntMan's pool statistics).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PoolStats {
    /// Bytes held from the sub-allocator.
    pub pool_bytes: u64,
    /// Bytes that cannot be released now because a block, queued work or a pin uses part of their region or page: the
    /// lowest limit that can be met at once.
    pub stable_bytes: u64,
}
