//! Counts of a stream's allocations and frees: [`StreamCounts`], and [`StreamStats`] for programs to read.

use core::fmt;

use larder_core::ByteCount;
use larder_core::sync::{AtomicU64, Ordering};

/// One stream's use of an allocator, since the stream was first used with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct StreamStats {
    /// The driver's handle for the stream; 0 is the default stream.
    pub stream: usize,
    /// Blocks allocated.
    pub allocations: u64,
    /// Bytes of the allocated blocks, as granted.
    pub allocated_bytes: u64,
    /// Blocks freed in the order of the stream, on whichever stream they were allocated.
    pub frees: u64,
    /// Bytes of the freed blocks.
    pub freed_bytes: u64,
    /// Bytes of the stream's arena for small blocks; 0 if it has none.
    pub arena_bytes: u64,
    /// Number of times that the stream was made to wait, on the device, for another stream.
    pub waits: u64,
    /// Number of events recorded on the stream.
    pub events: u64,
}

/// Prints one line: `stream 0x7f00: 12 allocations of 3 MiB, 11 frees of 2 MiB, an arena of 2 MiB, 3 waits, 4
/// events`.
impl fmt::Display for StreamStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "stream {:#x}: {} allocations of {}, {} frees of {}, an arena of {}, {} waits, {} events",
            self.stream,
            self.allocations,
            ByteCount(self.allocated_bytes),
            self.frees,
            ByteCount(self.freed_bytes),
            ByteCount(self.arena_bytes),
            self.waits,
            self.events,
        )
    }
}

/// Adds to a counter that only one thread at a time changes.
#[inline]
fn add(counter: &AtomicU64, by: u64) {
    let sum = counter.load(Ordering::Relaxed).wrapping_add(by);
    counter.store(sum, Ordering::Relaxed);
}

/// Counters that change only under one lock.
#[derive(Default)]
pub(crate) struct StreamCounts {
    allocations: AtomicU64,
    allocated_bytes: AtomicU64,
    frees: AtomicU64,
    freed_bytes: AtomicU64,
}

impl StreamCounts {
    /// Counts an allocated block.
    #[inline]
    pub(crate) fn allocated(&self, bytes: u64) {
        add(&self.allocations, 1);
        add(&self.allocated_bytes, bytes);
    }

    /// Takes back the count of a block that was not handed out, or that went to an arena.
    pub(crate) fn withdrawn(&self, bytes: u64) {
        add(&self.allocations, 1_u64.wrapping_neg());
        add(&self.allocated_bytes, bytes.wrapping_neg());
    }

    /// Counts a freed block.
    #[inline]
    pub(crate) fn freed(&self, bytes: u64) {
        add(&self.frees, 1);
        add(&self.freed_bytes, bytes);
    }

    /// Restarts the counters, for the next stream with the same number.
    pub(crate) fn clear(&self) {
        for counter in [
            &self.allocations,
            &self.allocated_bytes,
            &self.frees,
            &self.freed_bytes,
        ] {
            counter.store(0, Ordering::Relaxed);
        }
    }

    pub(crate) fn add_to(&self, stats: &mut StreamStats) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        stats.allocations += read(&self.allocations);
        stats.allocated_bytes += read(&self.allocated_bytes);
        stats.frees += read(&self.frees);
        stats.freed_bytes += read(&self.freed_bytes);
    }
}
