//! What an allocator did and holds, as plain values.

use larder_core::pages::PageStats;
use larder_core::{AddrRange, BestFit, Block, ChunkState, Stats, StreamId};

use super::{DeviceAllocator, DeviceInner};
use crate::{StreamStats, VirtualCalls};

/// One piece of an allocator's addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DeviceChunk {
    /// Its addresses.
    pub range: AddrRange,
    /// What it is. What a stream has to itself for small blocks is in use here.
    pub state: ChunkState,
}

/// All that an allocator holds at one moment; what arenas and streams counted, a moment later.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct DeviceSnapshot {
    /// Counters.
    pub stats: Stats,
    /// Counters of pages.
    pub pages: PageStats,
    /// Calls of the driver for memory.
    pub calls: VirtualCalls,
    /// Blocks, and what is free between them, in the order of their addresses.
    pub chunks: Vec<DeviceChunk>,
    /// The streams that use it.
    pub streams: Vec<StreamStats>,
}

impl DeviceAllocator {
    /// Counters now. What streams have to themselves and do not use is not live, but `requested_bytes`
    /// and the peak of live bytes count it, and `allocations` leaves out blocks from there
    /// ([`streams`](Self::streams) has them). O(streams).
    pub fn stats(&self) -> Stats {
        self.0.stats()
    }

    /// The most live bytes since this was last asked for, or since the beginning; now the next interval
    /// begins. [`stats`](Self::stats) counts on as if nobody had asked.
    pub fn take_peak(&self) -> u64 {
        self.0.pool.take_peak()
    }

    /// Starts [these counters](Self::stats) anew; see [`Stats::clear`](larder_core::Stats::clear). Those of streams
    /// and pages count on.
    pub fn clear_stats(&self) {
        self.0.pool.clear_stats();
    }

    /// Bytes that were requested for a block, of which [`Block::bytes`] are granted; `None` if it is not
    /// one of this allocator's.
    pub fn requested_bytes(&self, block: &Block) -> Option<u64> {
        self.0.requested_bytes(block)
    }

    /// Counters of pages; zeros where memory comes in [regions](super::DeviceBacking::Regions).
    pub fn page_stats(&self) -> PageStats {
        let pages = self.0.pool.pages();
        pages.map_or_else(PageStats::default, |pages| pages.shared().page_stats())
    }

    /// Has `watch` called for the memory that is mapped from now on; for an allocator that holds nothing yet.
    pub(crate) fn watch(&self, watch: Box<dyn crate::source::virtual_memory::RegionWatch>) {
        self.0.pool.watch(watch);
    }

    /// Calls of the driver that created, mapped or gave back virtual memory, by kind.
    pub fn driver_calls(&self) -> VirtualCalls {
        self.0.pool.calls()
    }

    /// What each stream did, in no order.
    pub fn streams(&self) -> Vec<StreamStats> {
        let inner = &*self.0;
        let stream_ids = inner.pool.streams().ids();
        stream_ids
            .filter_map(|(stream_id, handle)| Some(inner.stream_stats(stream_id, handle?)))
            .collect()
    }

    /// All that is held now, for people and tools. O(chunks), under the allocator's lock: threads that
    /// allocate wait.
    pub fn snapshot(&self) -> DeviceSnapshot {
        let inner = &*self.0;
        // Room for it before the lock: nothing is asked of the host while it is held, but for what
        // came in between.
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
            Some((_, arena)) => arena.with(|bfc| bfc.requested_bytes(block)),
            None => self.windows.find(|bfc| bfc.requested_bytes(block)),
        }
    }

    pub(super) fn stats(&self) -> Stats {
        self.without_idle(self.pool.stats())
    }

    /// What arenas do not use is in use to the core only.
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
