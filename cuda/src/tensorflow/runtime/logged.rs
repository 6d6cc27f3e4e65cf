//! [`Logged`]: an allocator of host memory with a record of each call.

use std::time::Instant;

use larder_core::BlockAllocator;
use larder_core::decorate::{Ticks, TrackRecord, Tracked};

use crate::lock_wait::Yield;
use crate::with_tables::WithTables;

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
pub(super) type Logged<A> = WithTables<Tracked<'static, A, Clock, Yield>>;

/// Records each call of an allocator.
pub(super) fn logged<A: BlockAllocator>(inner: A) -> Logged<A> {
    let clock = Clock(Instant::now());
    // Sizes are tracked below, so no rows are needed.
    // SAFETY: the ring goes into the decorator, which nobody takes apart.
    unsafe {
        WithTables::new(|tables| {
            let ring: &mut [Option<TrackRecord>] = tables.lend(vec![None; RECORDS]);
            Tracked::with_ticks(inner, clock, ring, None)
        })
    }
}
