//! [`VmemHost`]: memory of the host that devices use, in the order of streams.
//!
//! The core's best fit over pinned or managed regions, with streams by number, as the device's allocator
//! has them: only devices use these blocks, so what a stream freed may be given to the same stream at
//! once, and to another one after a wait that the device makes.
//!
//! H1 the address of a block is good for the device: pinned memory has one address on both sides where
//! addresses are unified and it is not write-combined, managed memory has one always.
//!
//! # When nothing fits that the stream may use at once
//! What another stream used last is given, and the stream waits for it; what events have passed counts
//! as free for all; regions are got from the driver; and if that fails while freed memory is pending, the
//! host waits for it.
//!
//! # Locks
//! The core's for bookkeeping; the streams', also while an event is recorded. No thread holds both.

use core::fmt;
use core::mem::ManuallyDrop;
use std::sync::{Arc, Weak};

use cudarc::driver::CudaStream;
use larder_core::{
    AllocError, Bfc, BfcAllocator, BfcConfig, Block, BlockAllocator, Chunk, ConfigError, Grant,
    NoIndex, Placement, Request, Stats, StreamId,
};

use super::HostSide;
use crate::allocator::streams::Streams;
use crate::limits::shrinking::Shrinking;
use crate::limits::{self, Budget, TreeNode};
use crate::managed::ManagedSource;
use crate::owning::Owning;
use crate::peaks::Earlier;
use crate::pinned::PinnedSource;
use crate::ranges::{RangeSource, Ranges};
use crate::stream_allocator::{BlockInfo, Live, StreamAllocator};
use crate::waiting::Yield;
use crate::{Context, DeviceAllocError, DeviceFreeRejected, DriverError, PinnedConfig};

/// Blocks and gaps between them, at most.
const CHUNKS: usize = 1 << 14;

/// How often an allocation waits for what is pending: what it finds then, another thread may take.
const MAX_WAITS: u32 = 8;

/// Pinned or managed regions.
type Regions = Ranges<Box<dyn RangeSource>>;

type RegionPool = Owning<BfcAllocator<'static, Regions, NoIndex, Yield>>;

pub(super) struct VmemHost {
    pub(super) earlier: Earlier,
    pub(super) streams: Streams,
    /// What is held is charged to it.
    pub(super) node: Arc<TreeNode>,
    pub(super) shrinking: Shrinking,
    /// Taken apart in `drop`.
    pub(super) pool: ManuallyDrop<RegionPool>,
}

impl VmemHost {
    /// Holds nothing yet; `None` for no host side.
    pub(super) fn new(
        context: &Context,
        side: HostSide,
        budget: Option<&Budget>,
    ) -> Result<Option<Arc<Self>>, DeviceAllocError> {
        let (source, limit_bytes): (Box<dyn RangeSource>, u64) = match side {
            HostSide::None => return Ok(None),
            HostSide::Pinned(limit_bytes) => {
                // H1.
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
        let node = limits::pool_node(budget, "host memory", limit_bytes)
            .map_err(DeviceAllocError::Budgets)?;
        let regions = Regions::over(source).charged_to(node.clone());
        let limit_bytes = node.usage().config.hard_bytes;
        // SAFETY: the table goes into the pool, which nobody takes apart.
        let pool = unsafe {
            RegionPool::try_new(|tables| {
                let table = tables.lend(vec![Chunk::VACANT; CHUNKS]);
                let bfc = Bfc::new(BfcConfig::new(limit_bytes), table)?;
                Ok::<_, ConfigError>(BfcAllocator::with_wait(bfc, regions))
            })
        };
        // Only a configuration or a table that cannot be; both are fixed.
        let pool = pool.map_err(|_| DriverError::Size { bytes: limit_bytes })?;
        let host = Arc::new(Self {
            streams: Streams::new(context),
            earlier: Earlier::default(),
            node,
            shrinking: Shrinking::default(),
            pool: ManuallyDrop::new(pool),
        });
        let pool: Weak<Self> = Arc::downgrade(&host);
        limits::enter(pool, &host.node);
        // A budget above may be in excess.
        host.take_limit_over();
        Ok(Some(host))
    }

    fn try_alloc(
        &self,
        stream: &Arc<CudaStream>,
        request: &Request,
    ) -> Result<Block, DeviceAllocError> {
        let stream_id = self.streams.id(stream)?;
        if self.streams.captures(stream)? {
            return Err(DeviceAllocError::Capturing);
        }
        if self.shrinking.is_on() && !self.look_while_shrinking(stream, 0) {
            self.take_limit_over();
        }
        self.pool.source().forget_over_budget();
        let request = Request {
            stream: stream_id,
            freed_by: None,
            ..*request
        };
        if let Some(grant) = self.held(&request.without_wait()) {
            return Ok(grant.block);
        }
        if let Some(grant) = self.held(&request)
            && let Some(block) = self.settle(stream, stream_id, grant)?
        {
            return Ok(block);
        }
        self.collect();
        let grant = self.search(&request)?;
        if let Some(block) = self.settle(stream, stream_id, grant)? {
            return Ok(block);
        }
        // Another stream captures, so it cannot be waited for.
        let grant = self.search(&request.without_wait())?;
        Ok(grant.block)
    }

    /// Memory that is held and fits.
    fn held(&self, request: &Request) -> Option<Grant> {
        self.pool.with(|bfc| bfc.alloc(request)).ok()
    }

    /// Memory by all means.
    fn search(&self, request: &Request) -> Result<Grant, DeviceAllocError> {
        let mut outcome = self.pool.alloc(request);
        let mut rounds = MAX_WAITS;
        while let Err(AllocError::OutOfMemory(out)) = outcome
            && rounds > 0
            && out.pending_bytes > 0
        {
            rounds -= 1;
            self.streams.close_all();
            for (stream_id, _) in self.streams.ids() {
                self.streams.wait_for(stream_id)?;
            }
            self.poll();
            outcome = self.pool.alloc(request);
        }
        outcome.map_err(|reason| self.refusal(reason))
    }

    /// A block that was found; its stream waits for whoever used it last. `None` if a capture forbids
    /// that: the block is free again then.
    fn settle(
        &self,
        stream: &Arc<CudaStream>,
        stream_id: StreamId,
        grant: Grant,
    ) -> Result<Option<Block>, DeviceAllocError> {
        let Some(point) = grant.wait else {
            return Ok(Some(grant.block));
        };
        let ordered = self.streams.order(stream, stream_id, point);
        if ordered == Ok(true) {
            return Ok(Some(grant.block));
        }
        // As it was: still in use by the other stream.
        let freed = self.pool.free_after(grant.block, point);
        debug_assert!(freed.is_ok(), "a block given just now");
        ordered?;
        Ok(None)
    }

    /// Whether the block is one of ours, by its number.
    pub(super) fn owns(&self, block: &Block) -> bool {
        self.pool.owns(block)
    }

    /// Gives idle regions back to the driver; the bytes.
    pub(super) fn release(&self) -> u64 {
        self.collect();
        let released = self.pool.trim();
        self.node.shared().notify();
        released
    }

    /// Makes all memory free that no work uses any more. Nothing is waited for.
    pub(super) fn collect(&self) {
        self.streams.close_all();
        self.poll();
    }

    fn poll(&self) {
        self.streams
            .poll(|stream_id, number| self.pool.complete(stream_id, number));
    }

    fn refusal(&self, reason: AllocError) -> DeviceAllocError {
        if let Some(refused) = self.budget_refusal(&reason) {
            return DeviceAllocError::Budget(refused);
        }
        let driver = match reason {
            AllocError::OutOfMemory(_) => self.pool.source().last_error(),
            _ => None,
        };
        DeviceAllocError::Memory { reason, driver }
    }
}

impl StreamAllocator for VmemHost {
    fn context(&self) -> &Context {
        self.pool.source().context()
    }

    fn alloc_as(
        &self,
        stream: &Arc<CudaStream>,
        request: &Request,
    ) -> Result<Block, DeviceAllocError> {
        let given = self.try_alloc(stream, request);
        self.node.shared().notify();
        given
    }

    /// O(1), no driver call; a stream of another context is waited for.
    fn free(&self, stream: &Arc<CudaStream>, block: Block) -> Result<(), DeviceFreeRejected> {
        let bytes = block.bytes();
        if let Ok(stream_id) = self.streams.id(stream) {
            let point = self.streams.point(stream_id);
            self.pool.free_after(block, point)?;
        } else {
            if let Err(error) = self.context().wait_for(stream) {
                return Err(DeviceFreeRejected::driver(block, error));
            }
            self.pool.free(block)?;
        }
        if self.shrinking.is_on() && self.look_while_shrinking(stream, bytes) {
            self.node.shared().notify();
        }
        Ok(())
    }

    fn info(&self, block: &Block) -> Option<BlockInfo> {
        self.pool.with(|bfc| {
            Some(BlockInfo {
                requested_bytes: bfc.requested_bytes(block)?,
                allocation_id: bfc.allocation_id(block),
                placement: Placement::Host,
            })
        })
    }

    fn stats(&self) -> Stats {
        self.pool.with(|bfc| self.earlier.with(bfc.stats()))
    }

    fn clear_stats(&self) {
        self.pool.with(|bfc| {
            self.earlier.clear();
            bfc.clear_stats();
        });
    }

    fn live(&self) -> Live {
        self.pool.with(|bfc| Live {
            blocks: u64::from(bfc.report().used_chunks),
            bytes: bfc.stats().live_bytes,
        })
    }
}

impl fmt::Debug for VmemHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VmemHost")
            .field("context", self.context())
            .field("stats", &StreamAllocator::stats(self))
            .finish_non_exhaustive()
    }
}

impl Drop for VmemHost {
    fn drop(&mut self) {
        // Blocks that were never freed may be in use too.
        self.streams.wait_for_all();
        // SAFETY: dropped once, here, and not used again.
        unsafe { ManuallyDrop::drop(&mut self.pool) };
        self.node.shared().notify();
    }
}
