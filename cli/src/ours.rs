//! Larder's own contender: `larder-core`'s BFC over a simulated device.
//!
//! The algorithm and its policies are the real ones; only the device is simulated. It returns
//! consecutive addresses, as a reserved range of virtual addresses does.

use std::cell::Cell;

use larder_core::{
    Addr, AddrRange, BestFit, BlockAllocator, Chunk, ChunkInfo, ChunkState, FixedRange,
    GrowRequest, RegionConfig, RegionPool, Shared, SubAllocError, SubAllocator,
};

use crate::replay::{Contender, ContenderBlock, Spare};
use crate::snapshot::Span;
use crate::streams::StreamOrder;

/// Number of records lent to each allocator: a table of 4 MiB, for far more chunks than any trace
/// has live.
const RECORDS: usize = 1 << 17;

/// First address of the simulated device. It is not 0, so that a forgotten base shows.
const BASE: u64 = 1 << 32;

/// Bytes of a device without a limit.
const UNLIMITED_BYTES: u64 = 1 << 62;

/// Builds Larder without moving pages, over one range that grows by the missing bytes, in units of
/// 2 MiB.
pub(crate) fn no_moves(device_bytes: Option<u64>) -> Box<dyn Contender> {
    let config = RegionConfig::new(device_bytes.unwrap_or(u64::MAX));
    Box::new(CoreContender::new(config))
}

/// A BFC of the core with any policies, as a contender.
pub(crate) struct CoreContender {
    /// `None` only while the value is dropped.
    pool: Option<Shared<RegionPool<'static>, CountedRange>>,
    streams: StreamOrder,
}

impl CoreContender {
    /// Builds a new allocator with these policies on a device without a limit. The policies must
    /// not contradict each other.
    #[expect(clippy::expect_used, reason = "constants of this program")]
    pub(crate) fn new(config: RegionConfig) -> Self {
        let pool = RegionPool::new(config, TABLES.take(table)).expect("the policies agree");
        let range = AddrRange::new(Addr::new(BASE), UNLIMITED_BYTES);
        let device = CountedRange {
            range: FixedRange::new(range.expect("ends below 2^64")),
            grown: Cell::new(0),
            released: Cell::new(0),
        };
        Self {
            pool: Some(Shared::new(pool, device)),
            streams: StreamOrder::new(RECORDS),
        }
    }
}

impl CoreContender {
    fn next_operation(&mut self) {
        if let (Some(done), Some(pool)) = (self.streams.next_operation(), &mut self.pool) {
            pool.get_mut().complete(done.stream, done.event);
        }
    }
}

impl Drop for CoreContender {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take() {
            TABLES.give(pool.into_parts().0.into_table());
        }
    }
}

impl Contender for CoreContender {
    fn alloc(&mut self, bytes: u64) -> Option<ContenderBlock> {
        self.alloc_on(0, bytes)
    }

    fn alloc_on(&mut self, stream: u8, bytes: u64) -> Option<ContenderBlock> {
        self.next_operation();
        let pool = self.pool.as_mut()?;
        let request = StreamOrder::request(stream, bytes);
        let mut given = pool.get_mut().try_alloc_now(&request);
        if given.is_none() {
            given = pool.alloc(&request).ok();
        }
        if given.is_none() {
            for done in self.streams.wait() {
                pool.get_mut().complete(done.stream, done.event);
            }
            given = pool.alloc(&request).ok();
        }
        let grant = given?;
        let slot = ContenderBlock::of(grant.block);
        self.streams.came(slot, stream);
        Some(slot)
    }

    fn free(&mut self, slot: ContenderBlock) {
        self.next_operation();
        let point = self.streams.freed(slot);
        let freed = self
            .pool
            .as_mut()
            .zip(slot.raw())
            .is_some_and(|(pool, raw)| {
                let pool = pool.get_mut();
                let block = pool.block_from_raw(raw);
                block.is_ok_and(|block| match point {
                    Some(point) => pool.free_after(block, point).is_ok(),
                    None => pool.free(block).is_ok(),
                })
            });
        assert!(freed, "the replay frees only live blocks");
    }

    fn reserved_bytes(&self) -> u64 {
        let pool = self.pool.as_ref();
        pool.map_or(0, |pool| pool.stats().reserved_bytes)
    }

    fn driver_allocations(&self) -> u64 {
        let pool = self.pool.as_ref();
        pool.map_or(0, |pool| pool.source().grown.get())
    }

    fn driver_frees(&self) -> u64 {
        let pool = self.pool.as_ref();
        pool.map_or(0, |pool| pool.source().released.get())
    }

    fn held(&self) -> Option<Vec<Span>> {
        let mut held = Vec::new();
        let pool = self.pool.as_ref()?;
        let mut hold = |chunk: ChunkInfo| held.extend(backed(chunk.range, chunk.state));
        pool.with(|pool| pool.for_each_chunk(&mut hold));
        Some(held)
    }
}

/// Returns the addresses of a chunk, or `None` if it has no memory.
pub(crate) fn backed(range: AddrRange, state: ChunkState) -> Option<Span> {
    let unmapped = matches!(state, ChunkState::Unmapped);
    (!unmapped).then(|| range.start().get()..range.end().get())
}

/// A range of device addresses that counts how often it grew and shrank.
struct CountedRange {
    range: FixedRange,
    grown: Cell<u64>,
    released: Cell<u64>,
}

impl SubAllocator for CountedRange {
    fn grow(&self, request: GrowRequest) -> Result<AddrRange, SubAllocError> {
        let range = self.range.grow(request)?;
        self.grown.set(self.grown.get() + 1);
        Ok(range)
    }

    fn release(&self, range: AddrRange) -> Result<(), SubAllocError> {
        self.range.release(range)?;
        self.released.set(self.released.get() + 1);
        Ok(())
    }
}

/// Spare chunk tables of [`RECORDS`] records each.
pub(crate) static TABLES: Spare<&'static mut [Chunk]> = Spare::new();

pub(crate) fn table() -> &'static mut [Chunk] {
    vec![Chunk::VACANT; RECORDS].leak()
}
