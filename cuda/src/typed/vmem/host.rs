//! [`VmemHost`]: host memory that devices use in the order of streams.
//!
//! It is the core's best fit over pinned or managed regions, with numbered streams, as in the device's
//! allocator. Only devices use these blocks, so memory that a stream freed can be reused by that stream
//! immediately, and by another stream after a wait on the device.
//!
//! VMHOST1 the address of a block is valid on the device: pinned memory has the same address on both sides if
//! addresses are unified and the memory is not write-combined; managed memory always has the same address.
//!
//! # When the stream may use no fitting memory without a wait
//! The steps, in order: memory that another stream used last is allocated, and the stream waits for it;
//! memory whose events have completed becomes free for all streams; a region is allocated from the driver;
//! and if that fails while freed memory is pending, the host waits for that memory.
//!
//! # Locks
//! The core's lock is held only for bookkeeping; the streams' locks are also held while an event is recorded.
//! No thread holds both at the same time.

use core::fmt;
use std::sync::{Arc, Weak};

use cudarc::driver::CudaStream;
use larder_core::{
    BestFit, Block, BlockAllocator, Placement, RegionConfig, RegionPool, Rejected, Request, Stats,
};

use super::HostSide;
use crate::limits::{self, Budget};
use crate::source::managed::ManagedSource;
use crate::source::pinned::PinnedSource;
use crate::source::ranges::{RangeSource, Ranges};
use crate::stream::allocator::{BlockInfo, Live, StreamAllocator};
use crate::stream::pool::{BudgetedPool, HostWait, StreamPool};
use crate::with_tables::WithTables;
use crate::{Context, DeviceAllocError, DeviceFreeError, DriverError, PinnedConfig};

/// Maximum number of blocks and gaps between them.
const CHUNKS: usize = 1 << 14;

/// Pinned or managed regions.
type HostRanges = Ranges<Box<dyn RangeSource>>;

/// The host's side.
pub(super) type VmemHost = StreamPool<HostRanges, RegionPool<'static>>;

/// Makes a host side that holds nothing yet. Returns `None` for [`HostSide::None`].
pub(super) fn make(
    context: &Context,
    side: HostSide,
    budget: Option<&Budget>,
) -> Result<Option<Arc<VmemHost>>, DeviceAllocError> {
    let (source, limit_bytes): (Box<dyn RangeSource>, u64) = match side {
        HostSide::None => return Ok(None),
        HostSide::Pinned(limit_bytes) => {
            // VMHOST1: addresses must be unified.
            if !context.device_info()?.unified_addressing {
                return Err(DriverError::Unsupported {
                    what: "unified addressing",
                    device: context.ordinal(),
                }
                .into());
            }
            let source = PinnedSource::new(context, PinnedConfig::default());
            (Box::new(source), limit_bytes)
        }
        HostSide::Managed => {
            let source = ManagedSource::new(context)?;
            let max_bytes = source.max_bytes;
            (Box::new(source), max_bytes)
        }
    };
    let node =
        limits::pool_node(budget, "host memory", limit_bytes).map_err(DeviceAllocError::Budgets)?;
    let regions = HostRanges::over(source).charged_to(node.clone());
    let limit_bytes = node.usage().config.hard_bytes;
    let pool = WithTables::regions(RegionConfig::new(limit_bytes), CHUNKS, regions);
    // Fails only for an invalid configuration or table, and both are fixed.
    let pool = pool.map_err(|_| DriverError::Size { bytes: limit_bytes })?;
    let host = Arc::new(VmemHost::new(BudgetedPool::new(context, pool, node)));
    let pool: Weak<VmemHost> = Arc::downgrade(&host);
    limits::enter(pool, &host.memory.node);
    // A budget above may exceed its limit.
    host.memory.refresh_limit();
    Ok(Some(host))
}

impl VmemHost {
    /// Releases idle regions to the driver and returns their bytes.
    pub(super) fn release(&self) -> u64 {
        self.poll_events(HostWait::MayBlock);
        let released = self.shared().trim();
        self.memory.node.shared().notify();
        released
    }
}

impl StreamAllocator for VmemHost {
    fn context(&self) -> &Context {
        self.memory.context()
    }

    fn alloc_as(
        &self,
        stream: &Arc<CudaStream>,
        request: &Request,
    ) -> Result<Block, DeviceAllocError> {
        let request = Request {
            stream: self.streams.id(stream)?,
            freed_by: None,
            ..*request
        };
        let host = HostWait::MayBlock;
        let given = self.alloc_more(stream, request.stream, &request, host);
        self.memory.node.shared().notify();
        given
    }

    /// O(1) and no driver call; the host waits if the stream is of another context or is the per-thread
    /// default stream.
    fn free(
        &self,
        stream: &Arc<CudaStream>,
        block: Block,
    ) -> Result<(), Rejected<DeviceFreeError>> {
        let bytes = block.bytes();
        match self.streams.id(stream) {
            Ok(stream_id) => self
                .free_at(block, self.streams.point(stream_id))
                .map_err(DeviceFreeError::from_core)?,
            Err(_) => {
                let block = self.context().wait_before_free(stream, block)?;
                self.shared()
                    .free(block)
                    .map_err(DeviceFreeError::from_core)?;
            }
        }
        if self.memory.over_limit.is_on() {
            self.freed_over_limit(Some(stream), bytes);
        }
        Ok(())
    }

    fn info(&self, block: &Block) -> Option<BlockInfo> {
        self.shared().with(|pool| {
            Some(BlockInfo {
                requested_bytes: pool.requested_bytes(block)?,
                allocation_id: pool.allocation_id(block),
                placement: Placement::Host,
            })
        })
    }

    fn stats(&self) -> Stats {
        self.memory.stats()
    }

    fn clear_stats(&self) {
        self.memory.clear_stats();
    }

    fn live(&self) -> Live {
        self.shared().with(|pool| Live {
            blocks: u64::from(pool.report().used_chunks),
            bytes: pool.stats().live_bytes,
        })
    }
}

impl fmt::Debug for VmemHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VmemHost")
            .field("context", self.context())
            .field("stats", &self.memory.stats())
            .finish_non_exhaustive()
    }
}
