//! [`BestFit`]: the core's best fit over whole regions that visitors see, with tables of its own.

use core::fmt;
use core::mem::ManuallyDrop;

use larder_core::{
    AllocError, Bfc, BfcAllocator, BfcConfig, Block, BlockAllocator, Chunk, ConfigError,
    FreeRejected, Grant, NoIndex, Request, Stats, StreamPoint, SubAllocator,
};

use super::watch::{Watch, Watched};
use crate::owning::Owning;
use crate::waiting::Yield;

type RegionPool<S> = Owning<BfcAllocator<'static, Watched<S>, NoIndex, Yield>>;

/// Blocks and gaps between them, at most: 4 MiB of records, touched as they are used.
const CHUNKS: usize = 1 << 17;

/// A best fit that owns its tables. Dropped with blocks in use it leaves their regions and its tables alone for as
/// long as the process lives.
pub(super) struct BestFit<S: SubAllocator> {
    /// Dropped in `drop`.
    pool: ManuallyDrop<RegionPool<S>>,
}

impl<S: SubAllocator> BestFit<S> {
    /// Holds nothing yet, and will never hold more than `limit_bytes`. Wholly free regions go back before an
    /// allocation fails if `collects` says so.
    pub(super) fn new(
        source: S,
        watch: Watch,
        limit_bytes: u64,
        collects: bool,
    ) -> Result<Self, ConfigError> {
        let config = BfcConfig {
            collect_regions: collects,
            ..BfcConfig::new(limit_bytes)
        };
        // SAFETY: the table goes into the pool, which nobody takes apart.
        let pool = unsafe {
            RegionPool::try_new(|tables| {
                // Only a configuration or a table that cannot be, and both are fixed.
                let bfc = Bfc::new(config, tables.lend(vec![Chunk::VACANT; CHUNKS]))?;
                let source = Watched::new(source, watch);
                Ok::<_, ConfigError>(BfcAllocator::with_wait(bfc, source))
            })?
        };
        Ok(Self {
            pool: ManuallyDrop::new(pool),
        })
    }

    pub(super) fn source(&self) -> &S {
        self.pool.source().source()
    }

    /// Gives idle regions back; the bytes.
    pub(super) fn trim(&self) -> u64 {
        self.pool.trim()
    }

    /// Blocks in use.
    pub(super) fn live_blocks(&self) -> u64 {
        self.pool.with(|bfc| u64::from(bfc.report().used_chunks))
    }
}

impl<S: SubAllocator> Drop for BestFit<S> {
    fn drop(&mut self) {
        if self.live_blocks() > 0 {
            return;
        }
        // SAFETY: dropped once, here, and not used again.
        unsafe { ManuallyDrop::drop(&mut self.pool) };
    }
}

impl<S: SubAllocator> BlockAllocator for BestFit<S> {
    fn alloc(&self, request: &Request) -> Result<Grant, AllocError> {
        self.pool.alloc(request)
    }

    fn free(&self, block: Block) -> Result<(), FreeRejected> {
        self.pool.free(block)
    }

    fn free_after(&self, block: Block, point: StreamPoint) -> Result<(), FreeRejected> {
        self.pool.free_after(block, point)
    }

    fn requested_bytes(&self, block: &Block) -> Option<u64> {
        self.pool.requested_bytes(block)
    }

    fn allocation_id(&self, block: &Block) -> Option<u64> {
        self.pool.allocation_id(block)
    }

    fn owns(&self, block: &Block) -> bool {
        self.pool.owns(block)
    }

    fn stats(&self) -> Stats {
        self.pool.stats()
    }

    fn clear_stats(&self) {
        self.pool.clear_stats();
    }

    fn tracks_sizes(&self) -> bool {
        self.pool.tracks_sizes()
    }
}

impl<S: SubAllocator> fmt::Debug for BestFit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BestFit")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
