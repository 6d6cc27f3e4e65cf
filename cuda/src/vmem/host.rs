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

use core::mem::ManuallyDrop;
use std::sync::{Arc, Weak};

use cudarc::driver::CudaStream;
use larder_core::{
    AddrRange, AllocError, Bfc, BfcAllocator, BfcConfig, Block, BlockAllocator, Chunk, Grant,
    GrowRequest, NoIndex, Request, Stats, StreamId, SubAllocError, SubAllocator,
};

use super::HostSide;
use crate::allocator::rejected;
use crate::allocator::streams::Streams;
use crate::limits::shrinking::Shrinking;
use crate::limits::{self, Budget, OverBudget, TreeNode};
use crate::peaks::Earlier;
use crate::waiting::Yield;
use crate::{
    Context, DeviceAllocError, DeviceFreeError, DeviceFreeRejected, DriverError, ManagedMemory,
    PinnedConfig, PinnedMemory,
};

/// Blocks and gaps between them, at most.
const CHUNKS: usize = 1 << 14;

/// How often an allocation waits for what is pending: what it finds then, another thread may take.
const MAX_WAITS: u32 = 8;

/// Where regions come from.
pub(super) enum Regions {
    Pinned(PinnedMemory),
    Managed(ManagedMemory),
}

impl Regions {
    fn last_error(&self) -> Option<DriverError> {
        match self {
            Self::Pinned(memory) => memory.last_error(),
            Self::Managed(memory) => memory.last_error(),
        }
    }

    /// The newest answer about new memory, if it was a budget's refusal.
    pub(super) fn over_budget(&self) -> Option<OverBudget> {
        match self {
            Self::Pinned(memory) => memory.ranges().over_budget(),
            Self::Managed(memory) => memory.ranges().over_budget(),
        }
    }

    fn forget_over_budget(&self) {
        match self {
            Self::Pinned(memory) => memory.ranges().forget_over_budget(),
            Self::Managed(memory) => memory.ranges().forget_over_budget(),
        }
    }

    /// Bytes held for what was given of one region.
    pub(super) fn held_for(&self, range: AddrRange) -> u64 {
        match self {
            Self::Pinned(memory) => memory.ranges().held_for(range),
            Self::Managed(memory) => memory.ranges().held_for(range),
        }
    }

    /// Bytes held and not given.
    pub(super) fn left_out_bytes(&self) -> u64 {
        match self {
            Self::Pinned(memory) => memory.ranges().left_out_bytes(),
            Self::Managed(memory) => memory.ranges().left_out_bytes(),
        }
    }
}

impl SubAllocator for Regions {
    fn grow(&self, request: GrowRequest) -> Result<AddrRange, SubAllocError> {
        match self {
            Self::Pinned(memory) => memory.grow(request),
            Self::Managed(memory) => memory.grow(request),
        }
    }

    fn release(&self, range: AddrRange) -> Result<(), SubAllocError> {
        match self {
            Self::Pinned(memory) => memory.release(range),
            Self::Managed(memory) => memory.release(range),
        }
    }

    fn takes_ends(&self) -> bool {
        false
    }
}

type RegionPool = BfcAllocator<'static, Regions, NoIndex, Yield>;

pub(super) struct VmemHost {
    context: Context,
    earlier: Earlier,
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
        let node_for = |limit_bytes| {
            limits::pool_node(budget, "host memory", limit_bytes).map_err(DeviceAllocError::Budgets)
        };
        let (regions, node) = match side {
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
                let node = node_for(limit_bytes)?;
                let config = PinnedConfig::default();
                let memory = PinnedMemory::charged_to(context, config, Some(node.clone()));
                (Regions::Pinned(memory), node)
            }
            HostSide::Managed => {
                let mut memory = ManagedMemory::new(context)?;
                let node = node_for(memory.max_bytes())?;
                memory.charge_to(node.clone());
                (Regions::Managed(memory), node)
            }
        };
        let limit_bytes = node.usage().config.hard_bytes;
        let table = vec![Chunk::VACANT; CHUNKS].leak();
        // Only a configuration or a table that cannot be; both are fixed.
        let bfc = Bfc::new(BfcConfig::new(limit_bytes), table)
            .map_err(|_| DriverError::Size { bytes: limit_bytes })?;
        let host = Arc::new(Self {
            context: context.clone(),
            streams: Streams::new(context),
            earlier: Earlier::default(),
            node,
            shrinking: Shrinking::default(),
            pool: ManuallyDrop::new(BfcAllocator::with_wait(bfc, regions)),
        });
        let pool: Weak<Self> = Arc::downgrade(&host);
        limits::enter(pool, &host.node);
        // A budget above may be in excess.
        host.take_limit_over();
        Ok(Some(host))
    }

    /// Gives memory for work that is queued on `stream` from now on.
    pub(super) fn alloc(
        &self,
        stream: &Arc<CudaStream>,
        bytes: u64,
    ) -> Result<Block, DeviceAllocError> {
        let given = self.try_alloc(stream, bytes);
        self.node.shared().notify();
        given
    }

    fn try_alloc(&self, stream: &Arc<CudaStream>, bytes: u64) -> Result<Block, DeviceAllocError> {
        let stream_id = self.streams.id(stream)?;
        if self.streams.captures(stream)? {
            return Err(DeviceAllocError::Capturing);
        }
        if self.shrinking.is_on() && !self.look_while_shrinking(stream, 0) {
            self.take_limit_over();
        }
        self.pool.source().forget_over_budget();
        let request = Request::new(bytes).on(stream_id);
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

    /// Takes a block back in the order of a stream. O(1), no driver call; a stream of another context is
    /// waited for.
    pub(super) fn free(
        &self,
        stream: &Arc<CudaStream>,
        block: Block,
    ) -> Result<(), DeviceFreeRejected> {
        let bytes = block.bytes();
        if let Ok(stream_id) = self.streams.id(stream) {
            let point = self.streams.point(stream_id);
            self.pool.free_after(block, point).map_err(rejected)?;
        } else {
            if let Err(error) = self.context.wait_for(stream) {
                let error = DeviceFreeError::Driver(error);
                return Err(DeviceFreeRejected { block, error });
            }
            self.pool.free(block).map_err(rejected)?;
        }
        if self.shrinking.is_on() && self.look_while_shrinking(stream, bytes) {
            self.node.shared().notify();
        }
        Ok(())
    }

    /// Whether the block is one of ours.
    pub(super) fn owns(&self, block: &Block) -> bool {
        self.pool.owns(block)
    }

    /// Bytes that were requested for the block.
    pub(super) fn requested_bytes(&self, block: &Block) -> Option<u64> {
        self.pool.requested_bytes(block)
    }

    pub(super) fn stats(&self) -> Stats {
        self.pool.with(|bfc| self.earlier.with(bfc.stats()))
    }

    pub(super) fn clear_stats(&self) {
        self.pool.with(|bfc| {
            self.earlier.clear();
            bfc.clear_stats();
        });
    }

    /// The most live bytes since this was last asked for.
    pub(super) fn take_peak(&self) -> u64 {
        self.pool.with(|bfc| {
            let peak = self.earlier.take(&bfc.stats());
            bfc.clear_stats();
            peak
        })
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

impl Drop for VmemHost {
    fn drop(&mut self) {
        // Blocks that were never freed may be in use too.
        self.streams.wait_for_all();
        // SAFETY: taken once, here, and the field is not used again.
        let pool = unsafe { ManuallyDrop::take(&mut self.pool) };
        let (bfc, regions) = pool.into_parts();
        drop(regions);
        // SAFETY: the table was leaked as a boxed slice in `new`, and this is the only reference.
        drop(unsafe { Box::from_raw(bfc.into_table()) });
        self.node.shared().notify();
    }
}
