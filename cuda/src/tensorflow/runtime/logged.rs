//! [`Logged`]: an allocator of host memory with a record of each call.

use std::time::Instant;

use larder_core::decorate::{Ticks, Tracked};
use larder_core::{BlockAllocator, ConfigError};

use crate::lock_wait::Yield;

/// Number of newest records kept.
const RECORDS: usize = 1 << 12;

/// A clock that counts nanoseconds since the allocator was made.
pub(super) struct SinceStart(Instant);

impl Ticks for SinceStart {
    fn now(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// An allocator and its records.
pub(super) type Logged<A> = Tracked<A, SinceStart, Yield>;

/// Records each call of an allocator.
pub(super) fn logged<A: BlockAllocator>(inner: A) -> Result<Logged<A>, ConfigError> {
    let clock = SinceStart(Instant::now());
    // The allocator below tracks the sizes.
    Tracked::with_ticks(inner, clock, RECORDS, None)
}
