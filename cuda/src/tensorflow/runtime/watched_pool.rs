//! [`WatchedPool`]: best fit over whole regions that visitors see, with tables of its own.

use core::fmt;
use core::mem::ManuallyDrop;
use std::sync::Arc;

use larder_core::{
    AllocError, BestFit, Block, BlockAllocator, ConfigError, RegionConfig, RegionPool, Rejected,
    Request, Shared, Stats, SubAllocator,
};

use super::cpu_memory::{Binding, CpuMemory};
use super::host::HostBlocks;
use super::watch::{RegionReporter, WatchedSource};
use crate::lock_wait::Yield;
use crate::stream::allocator::{BlockInfo, Live, StreamAllocator};
use crate::with_tables::WithTables;
use crate::{Context, CudaStream, DeviceAllocError, DeviceFreeError, ManagedMemory, PinnedMemory};

/// Maximum number of blocks and gaps between them. Their records take 4 MiB, touched as they are used.
const CHUNKS: usize = 1 << 17;

/// A best fit that owns its tables. If it is dropped with blocks in use, it leaks their regions and its
/// tables.
pub(super) struct WatchedPool<S: SubAllocator> {
    /// Dropped in `drop`.
    pool: ManuallyDrop<WithTables<Shared<RegionPool<'static>, WatchedSource<S>, Yield>>>,
}

impl<S: SubAllocator> WatchedPool<S> {
    /// Makes a pool that holds nothing yet, and never more than `limit_bytes`. If `collects` is true,
    /// entirely free regions are released before an allocation fails.
    pub(super) fn new(
        source: S,
        watch: RegionReporter,
        limit_bytes: u64,
        collects: bool,
    ) -> Result<Self, ConfigError> {
        let config = RegionConfig {
            collect_regions: collects,
            ..RegionConfig::new(limit_bytes)
        };
        let source = WatchedSource::new(source, watch);
        // Fails only for an invalid configuration or table, and both are fixed.
        let pool = WithTables::regions(config, CHUNKS, source)?;
        Ok(Self {
            pool: ManuallyDrop::new(pool),
        })
    }

    fn source(&self) -> &S {
        self.pool.source().source()
    }

    /// Returns the number of blocks in use.
    fn live_blocks(&self) -> u64 {
        self.pool.with(|bfc| u64::from(bfc.report().used_chunks))
    }
}

impl<S: SubAllocator> Drop for WatchedPool<S> {
    fn drop(&mut self) {
        if self.live_blocks() > 0 {
            return;
        }
        // SAFETY: dropped once, here, and not used again.
        unsafe { ManuallyDrop::drop(&mut self.pool) };
    }
}

impl HostBlocks for WatchedPool<CpuMemory> {
    fn blocks(&self) -> &dyn BlockAllocator {
        &**self.pool
    }

    fn live_blocks(&self) -> u64 {
        self.live_blocks()
    }

    fn trim(&self) -> u64 {
        self.pool.trim()
    }

    fn binding(&self) -> Binding {
        self.source().binding()
    }
}

impl HostBlocks for WatchedPool<PinnedMemory> {
    fn blocks(&self) -> &dyn BlockAllocator {
        &**self.pool
    }

    fn live_blocks(&self) -> u64 {
        self.live_blocks()
    }

    fn trim(&self) -> u64 {
        self.pool.trim()
    }

    fn pinned(&self) -> Option<&PinnedMemory> {
        Some(self.source())
    }
}

/// A free waits for its stream, since the host may use managed memory too.
impl StreamAllocator for WatchedPool<ManagedMemory> {
    fn context(&self) -> &Context {
        self.source().context()
    }

    /// Allocates a block that no work uses.
    fn alloc_as(&self, _: &Arc<CudaStream>, request: &Request) -> Result<Block, DeviceAllocError> {
        match self.pool.alloc(request) {
            Ok(grant) => Ok(grant.block),
            Err(reason) => {
                let driver = match reason {
                    AllocError::OutOfMemory(_) => self.source().last_error(),
                    _ => None,
                };
                Err(DeviceAllocError::Memory { reason, driver })
            }
        }
    }

    fn free(
        &self,
        stream: &Arc<CudaStream>,
        block: Block,
    ) -> Result<(), Rejected<DeviceFreeError>> {
        let block = self.context().wait_before_free(stream, block)?;
        self.pool.free(block).map_err(DeviceFreeError::from_core)
    }

    fn info(&self, block: &Block) -> Option<BlockInfo> {
        let requested_bytes = self.pool.requested_bytes(block)?;
        Some(BlockInfo {
            allocation_id: self.pool.allocation_id(block),
            ..BlockInfo::of_device(requested_bytes)
        })
    }

    fn stats(&self) -> Stats {
        self.pool.stats()
    }

    fn clear_stats(&self) {
        self.pool.clear_stats();
    }

    fn live(&self) -> Live {
        Live {
            blocks: self.live_blocks(),
            bytes: self.pool.stats().live_bytes,
        }
    }
}

impl<S: SubAllocator> fmt::Debug for WatchedPool<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchedPool")
            .field("stats", &self.pool.stats())
            .finish_non_exhaustive()
    }
}
