//! What [`Tracked`](super::Tracked) counts and records.
//!
//! # Invariants
//! * STATE1 `live_blocks` is the number of blocks out; `live_bytes` the sum of their bytes, and 0 where
//!   nobody tracks sizes.
//! * STATE2 an allocation is counted when the allocator below has answered. The bytes of a free are counted
//!   off before it is asked, since it may give them again at once, and on again if it refuses. So
//!   `live_bytes` and the high water mark are never more than what is in use below; `live_blocks` counts
//!   a block until it is gone.
//! * STATE3 the ring holds the newest records, in the order of their sequence numbers.
//! * STATE4 `under_way` is the number of allocations that were let in and have no answer yet.

use super::rows::{RowEntry, Rows};
use crate::block::Block;
use crate::error::ConfigError;
use crate::table::ring::Ring;
use crate::units::Addr;

/// Where the sizes of blocks come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tracking {
    /// The allocator below tracks them.
    Below,
    /// A table of our own.
    Local,
    /// Nobody tracks them: what is allocated is counted as requested, frees are not.
    Nobody,
}

/// One call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TrackRecord {
    /// Bytes given, or minus the bytes taken back.
    pub bytes: i64,
    /// When, by the clock.
    pub tick: u64,
    /// Its number among all records, from 1 up. Threads that call at once may have their ticks in
    /// another order.
    pub sequence: u64,
}

/// What was counted so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct TrackStats {
    /// Bytes ever given.
    pub total_bytes: u64,
    /// The largest that `live_bytes` has been.
    pub high_water_bytes: u64,
    /// Bytes of the blocks out; 0 under [`Tracking::Nobody`].
    pub live_bytes: u64,
    /// Blocks out.
    pub live_blocks: u64,
    /// Allocations refused.
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

/// What is counted, and the records.
pub(super) struct TrackState {
    pub(super) ring: Ring<TrackRecord>,
    /// Rows of blocks; none are used but under [`Tracking::Local`].
    pub(super) rows: Rows<TrackedBlock>,
    pub(super) stats: TrackStats,
    /// Records made so far.
    pub(super) sequence: u64,
    /// Blocks numbered here so far.
    pub(super) ids: u64,
    /// STATE4.
    under_way: u64,
    /// The reader has taken the records, and nothing is given any more.
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
        // Without any places there is none for this one either.
        let _ = self.ring.push(record);
    }

    /// Lets an allocation in; not after the records were taken.
    pub(super) const fn begin(&mut self) -> bool {
        if !self.taken {
            self.under_way += 1;
        }
        !self.taken
    }

    /// An allocation was refused.
    pub(super) const fn failed(&mut self) {
        self.under_way -= 1;
        self.stats.failures += 1;
    }

    /// Nobody holds a block or is about to be given one, and none will be.
    pub(super) const fn is_done(&self) -> bool {
        self.taken && self.under_way == 0 && self.stats.live_blocks == 0
    }

    /// A block was given.
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

    /// A block is on its way back: counts its bytes off and says how many those were. Less than it has
    /// only if it was given past this decorator.
    pub(super) fn leaving(&mut self, bytes: u64) -> u64 {
        let counted = bytes.min(self.stats.live_bytes);
        self.stats.live_bytes -= counted;
        counted
    }

    /// It did not go: the bytes that [`leaving`](Self::leaving) counted off are in use, as they were all
    /// the time.
    pub(super) const fn stays(&mut self, counted: u64) {
        self.stats.live_bytes = self.stats.live_bytes.saturating_add(counted);
    }

    /// It came back.
    pub(super) fn freed(&mut self, tracking: Tracking, bytes: u64, tick: u64) {
        self.stats.live_blocks = self.stats.live_blocks.saturating_sub(1);
        if tracking != Tracking::Nobody {
            self.record(-signed(bytes), tick);
        }
    }
}

/// Bytes of one block as a record has them.
fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
