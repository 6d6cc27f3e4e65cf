//! The counters and records of [`Tracked`](super::Tracked).
//!
//! # Invariants
//! * STATE1 `live_blocks` is the number of blocks in use, and `live_bytes` is the sum of their bytes, or 0 if sizes are
//!   not tracked.
//! * STATE2 an allocation is counted once the allocator below has returned the block. The bytes of a freed block are
//!   subtracted before the allocator below is called, because it may allocate the memory again at once. They are added
//!   back if it refuses the free. So `live_bytes` and the high water mark never exceed the bytes in use in the
//!   allocator below, and `live_blocks` counts a block until its free has succeeded.
//! * STATE3 the ring holds the newest records, in the order of their sequence numbers.
//! * STATE4 `under_way` is the number of allocations that were admitted and have not returned yet.

use super::rows::{RowEntry, Rows};
use crate::block::Block;
use crate::error::ConfigError;
use crate::table::ring::Ring;
use crate::units::Addr;

/// The source of the sizes of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tracking {
    /// The allocator below tracks the sizes.
    Below,
    /// A table in the decorator tracks the sizes.
    Local,
    /// Sizes are not tracked: allocations are counted as requested, and frees are not counted.
    Nobody,
}

/// The record of one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TrackRecord {
    /// Bytes allocated; negative for bytes freed.
    pub bytes: i64,
    /// The time, from the clock.
    pub tick: u64,
    /// The record's number; the first record has number 1. The ticks of concurrent calls may be in a different order.
    pub sequence: u64,
}

/// The current counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct TrackStats {
    /// Bytes ever allocated.
    pub total_bytes: u64,
    /// Largest value of `live_bytes`.
    pub high_water_bytes: u64,
    /// Bytes of the blocks in use; 0 under [`Tracking::Nobody`].
    pub live_bytes: u64,
    /// Number of blocks in use.
    pub live_blocks: u64,
    /// Number of allocations refused.
    pub failures: u64,
    /// Records lost because the ring was full.
    pub dropped_records: u64,
}

/// A block tracked here, in the table of [`Tracked::local`](super::Tracked::local).
#[derive(Debug)]
pub(super) struct TrackedBlock {
    pub(super) inner: Block,
    pub(super) requested: u64,
    pub(super) id: u64,
}

impl RowEntry for TrackedBlock {
    fn addr(&self) -> Addr {
        self.inner.addr()
    }
}

/// The counters and the records.
pub(super) struct TrackState {
    pub(super) ring: Ring<TrackRecord>,
    /// Rows of blocks, used under [`Tracking::Local`] only.
    pub(super) rows: Rows<TrackedBlock>,
    pub(super) stats: TrackStats,
    /// Records made so far.
    pub(super) sequence: u64,
    /// Blocks numbered here so far.
    pub(super) ids: u64,
    /// Allocations under way (STATE4).
    under_way: u64,
    /// Whether the records were taken, after which no block is allocated.
    pub(super) taken: bool,
}

impl TrackState {
    pub(super) fn new(records: usize, rows: usize) -> Result<Self, ConfigError> {
        Ok(Self {
            ring: Ring::new(records)?,
            rows: Rows::new(rows)?,
            stats: TrackStats::default(),
            sequence: 0,
            ids: 0,
            under_way: 0,
            taken: false,
        })
    }

    fn record(&mut self, bytes: i64, tick: u64) {
        if self.taken {
            return;
        }
        self.sequence += 1;
        let record = TrackRecord {
            bytes,
            tick,
            sequence: self.sequence,
        };
        if self.ring.len() == self.ring.capacity() {
            self.ring.pop();
            self.stats.dropped_records += 1;
        }
        // A ring without places drops even this record.
        let _ = self.ring.push(record);
    }

    /// Admits an allocation, unless the records were taken. Returns whether the allocation was admitted.
    pub(super) const fn begin(&mut self) -> bool {
        if !self.taken {
            self.under_way += 1;
        }
        !self.taken
    }

    /// Counts a refused allocation.
    pub(super) const fn failed(&mut self) {
        self.under_way -= 1;
        self.stats.failures += 1;
    }

    /// Returns whether no block is in use or about to be allocated, and none will be allocated later.
    pub(super) const fn is_done(&self) -> bool {
        self.taken && self.under_way == 0 && self.stats.live_blocks == 0
    }

    /// Counts an allocated block.
    pub(super) fn given(&mut self, tracking: Tracking, bytes: u64, tick: u64) {
        self.under_way -= 1;
        let stats = &mut self.stats;
        stats.total_bytes = stats.total_bytes.saturating_add(bytes);
        stats.live_blocks += 1;
        if tracking != Tracking::Nobody {
            stats.live_bytes = stats.live_bytes.saturating_add(bytes);
            stats.high_water_bytes = stats.high_water_bytes.max(stats.live_bytes);
        }
        self.record(signed(bytes), tick);
    }

    /// Subtracts the bytes of a block that is about to be freed. Returns the number subtracted: it is less than the
    /// block's size only if the block was not allocated through this decorator.
    pub(super) fn leaving(&mut self, bytes: u64) -> u64 {
        let counted = bytes.min(self.stats.live_bytes);
        self.stats.live_bytes -= counted;
        counted
    }

    /// Adds back the bytes that [`leaving`](Self::leaving) subtracted, because the free was refused and the block is
    /// still in use.
    pub(super) const fn stays(&mut self, counted: u64) {
        self.stats.live_bytes = self.stats.live_bytes.saturating_add(counted);
    }

    /// Counts a freed block.
    pub(super) fn freed(&mut self, tracking: Tracking, bytes: u64, tick: u64) {
        self.stats.live_blocks = self.stats.live_blocks.saturating_sub(1);
        if tracking != Tracking::Nobody {
            self.record(-signed(bytes), tick);
        }
    }
}

/// Returns the bytes of one block as a signed number, for a record.
fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
