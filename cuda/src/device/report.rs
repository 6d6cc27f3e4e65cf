//! Counters and contents of an allocator, as plain values.

use larder_core::pages::PageStats;
use larder_core::{AddrRange, BestFit, Block, ChunkState, Stats, StreamId};

use super::{DeviceAllocator, DeviceInner};
use crate::{StreamStats, VirtualCalls};

/// One chunk of an allocator's addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DeviceChunk {
    /// The chunk's addresses.
    pub range: AddrRange,
    /// The chunk's state. Pieces of arenas count as in use.
    pub state: ChunkState,
}

/// The contents of an allocator at one moment; the counters of arenas and streams are read a moment later.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct DeviceSnapshot {
    /// Counters of the allocator.
    pub stats: Stats,
    /// Counters of pages.
    pub pages: PageStats,
    /// Counts of driver calls for memory.
    pub calls: VirtualCalls,
    /// Blocks and free chunks, in the order of their addresses.
    pub chunks: Vec<DeviceChunk>,
    /// The streams that use the allocator.
    pub streams: Vec<StreamStats>,
}

impl DeviceAllocator {
    /// Returns the counters. Unused memory of arenas does not count as live, but `requested_bytes` and the
    /// peak of live bytes include it, and `allocations` leaves out blocks of arenas
    /// ([`streams`](Self::streams) has them). O(streams).
    pub fn stats(&self) -> Stats {
        self.0.stats()
    }

    /// Returns the peak of live bytes since the last call, or since the allocator was made, and begins
    /// the next interval. [`stats`](Self::stats) is not affected.
    pub fn take_peak(&self) -> u64 {
        self.0.pool.take_peak()
    }

    /// Restarts [these counters](Self::stats); see [`Stats::clear`](larder_core::Stats::clear). The counters
    /// of streams and pages are not affected.
    pub fn clear_stats(&self) {
        self.0.pool.clear_stats();
    }

    /// Returns the bytes requested for a block ([`Block::bytes`] returns the granted bytes); `None` if the
    /// block is not one of this allocator's.
    pub fn requested_bytes(&self, block: &Block) -> Option<u64> {
        self.0.requested_bytes(block)
    }

    /// Returns the counters of pages; zeros if memory comes in [regions](super::DeviceBacking::Regions).
    pub fn page_stats(&self) -> PageStats {
        let pages = self.0.pool.pages();
        pages.map_or_else(PageStats::default, |pages| pages.shared().page_stats())
    }

    /// Calls `watch` for memory mapped from now on. The allocator must hold no memory yet.
    pub(crate) fn watch(&self, watch: Box<dyn crate::source::virtual_memory::RegionWatch>) {
        self.0.pool.watch(watch);
    }

    /// Returns the counts of driver calls that created, mapped or released virtual memory, by kind.
    pub fn driver_calls(&self) -> VirtualCalls {
        self.0.pool.calls()
    }

    /// Returns each stream's counters, in no particular order.
    pub fn streams(&self) -> Vec<StreamStats> {
        let inner = &*self.0;
        let stream_ids = inner.pool.streams().ids();
        stream_ids
            .filter_map(|(stream_id, handle)| Some(inner.stream_stats(stream_id, handle?)))
            .collect()
    }

    /// Returns all contents, for inspection. O(chunks), under the allocator's lock: threads that allocate
    /// wait.
    pub fn snapshot(&self) -> DeviceSnapshot {
        let inner = &*self.0;
        // Reserved before the lock is taken, under which the host allocates only for chunks added in between.
        let count = inner.pool.report();
        let count = count.used_chunks as usize + count.free_chunks as usize;
        let mut chunks = Vec::with_capacity(2 * count + 16);
        let (stats, pages) = inner.pool.list(&mut chunks);
        DeviceSnapshot {
            stats: inner.without_idle(stats),
            pages,
            calls: self.driver_calls(),
            chunks,
            streams: self.streams(),
        }
    }
}

impl DeviceInner {
    pub(super) fn requested_bytes(&self, block: &Block) -> Option<u64> {
        if block.is_of(self.id) {
            return self.pool.blocks().requested_bytes(block);
        }
        match self.arenas.owner(block) {
            Some((_, arena)) => arena.with(|pool| pool.requested_bytes(block)),
            None => self.windows.find(|pool| pool.requested_bytes(block)),
        }
    }

    pub(super) fn stats(&self) -> Stats {
        self.without_idle(self.pool.stats())
    }

    /// Subtracts unused memory of arenas, which only the core counts as live.
    fn without_idle(&self, mut stats: Stats) -> Stats {
        stats.live_bytes = stats.live_bytes.saturating_sub(self.arenas.free_bytes());
        stats
    }

    fn stream_stats(&self, stream_id: StreamId, stream: usize) -> StreamStats {
        let (waits, events) = self.pool.streams().counts(stream_id);
        let mut stats = StreamStats {
            stream,
            waits,
            events,
            ..StreamStats::default()
        };
        self.pool.streams().account(stream_id).add_to(&mut stats);
        if let Some(arena) = self.arenas.of(stream_id) {
            arena.account().add_to(&mut stats);
            stats.arena_bytes = arena.held_bytes();
        }
        stats
    }
}
