//! [`DevicePool`]: where the blocks of a [`DeviceAllocator`](super::DeviceAllocator) come from. Pages that can move,
//! or regions on a device or a system without virtual memory.
//!
//! What only pages can do asks for [`pages`](DevicePool::pages).

use std::sync::{Arc, Weak};

use cudarc::driver::CudaStream;
use larder_core::pages::{PageConfig, PagePool, PageStats};
use larder_core::{
    AllocError, AllocatorId, BestFit, Block, BlockAllocator, ChunkInfo, ConfigError, FreeError,
    PoolStats, RawBlock, RegionConfig, RegionPool, Rejected, Report, Request, Shared, Stats,
    StreamId, StreamPoint,
};

use super::{DeviceChunk, DeviceConfig, DeviceInner, tables};
use crate::limits::over_limit::OverLimit;
use crate::limits::{LimitedPool, TreeNode};
use crate::source::virtual_memory::RegionWatch;
use crate::stream::pool::{BudgetedPool, HostWait, StreamPool, Streams};
use crate::with_tables::WithTables;
use crate::{
    Context, DeviceAllocError, DeviceMemory, DriverError, VirtualCalls, VirtualConfig,
    VirtualMemory,
};

/// Addresses for each byte of the device. Moving pages leaves holes, which cost addresses only.
const ADDRESSES_A_BYTE: u64 = 8;

/// Most addresses: the core counts 2^32 granules of 256 bytes, less one; this is a little under that.
const MAX_ADDRESSES: u64 = (1 << 40) - (1 << 30);

/// What a [`DeviceAllocator`](super::DeviceAllocator) takes its memory from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DeviceBacking {
    /// Virtual memory: pages that move to where they are needed.
    Pages,
    /// Whole allocations of the driver (`cuMemAlloc`), which stay where they are: the device or the system has
    /// no virtual memory. More memory is held. Nothing sleeps, is exported or shared with peers, and steps are
    /// not planned.
    Regions,
}

/// Pages that can move.
pub(super) type Pages = StreamPool<VirtualMemory, PagePool<'static>>;

/// A device's memory in the order of streams.
#[expect(
    clippy::large_enum_variant,
    reason = "each allocator has one, in its own heap block"
)]
pub(super) enum DevicePool {
    Pages(Pages),
    Regions(StreamPool<DeviceMemory, RegionPool<'static>>),
}

impl DevicePool {
    /// Holds nothing yet.
    pub(super) fn new(
        context: &Context,
        config: &DeviceConfig,
        node: &Arc<TreeNode>,
    ) -> Result<Self, DriverError> {
        match reserve(context, config)? {
            Some(memory) => Self::of_pages(context, config, node, memory),
            None if config.shareable || !config.peers.is_empty() => Err(DriverError::Unsupported {
                what: "virtual memory, which peers and other processes need",
                device: context.ordinal(),
            }),
            None => Self::of_regions(context, config, node),
        }
    }

    fn of_pages(
        context: &Context,
        config: &DeviceConfig,
        node: &Arc<TreeNode>,
        mut memory: VirtualMemory,
    ) -> Result<Self, DriverError> {
        memory.charge_to(node.clone());
        let mut paged = PageConfig::new(memory.addresses(), config.backing);
        paged.page_bytes = memory.page_bytes();
        paged.limit_bytes = config.limit_bytes;
        let bytes = memory.page_bytes();
        // SAFETY: the tables go into the allocator, which nobody takes apart.
        let pool = unsafe {
            WithTables::try_new(|tables| {
                let (chunks, tables) = tables::lend(tables, &paged);
                let paged = PagePool::new(paged, chunks, tables)?;
                Ok::<_, ConfigError>(Shared::with_wait(paged, memory))
            })
        };
        // Only a page that is no multiple of the granule, which no driver has.
        let pool = pool.map_err(|_| DriverError::Size { bytes })?;
        let pool = BudgetedPool::new(context, pool, node.clone());
        Ok(Self::Pages(StreamPool::new(pool)))
    }

    fn of_regions(
        context: &Context,
        config: &DeviceConfig,
        node: &Arc<TreeNode>,
    ) -> Result<Self, DriverError> {
        let regions = DeviceMemory::new(context).charged_to(node.clone());
        let bytes = config.limit_bytes;
        // SAFETY: the table goes into the allocator, which nobody takes apart.
        let pool = unsafe {
            WithTables::try_new(|tables| {
                let table = tables.lend_zeroed(tables::CHUNKS);
                let bfc = RegionPool::new(RegionConfig::new(bytes), table)?;
                Ok::<_, ConfigError>(Shared::with_wait(bfc, regions))
            })
        };
        // Only a configuration or a table that cannot be; both are fixed.
        let pool = pool.map_err(|_| DriverError::Size { bytes })?;
        let pool = BudgetedPool::new(context, pool, node.clone());
        Ok(Self::Regions(StreamPool::new(pool)))
    }

    /// Stands below these tiers from now on.
    pub(super) fn stand_below(&self, tiers: Weak<DeviceInner>) {
        match self {
            Self::Pages(pool) => pool.stand_below(tiers),
            Self::Regions(pool) => pool.stand_below(tiers),
        }
    }

    pub(super) const fn backing(&self) -> DeviceBacking {
        match self {
            Self::Pages(_) => DeviceBacking::Pages,
            Self::Regions(_) => DeviceBacking::Regions,
        }
    }

    /// The pages; none where memory comes in regions.
    pub(super) const fn pages(&self) -> Option<&Pages> {
        match self {
            Self::Pages(pages) => Some(pages),
            Self::Regions(_) => None,
        }
    }

    #[inline]
    pub(super) const fn streams(&self) -> &Streams {
        match self {
            Self::Pages(pool) => &pool.streams,
            Self::Regions(pool) => &pool.streams,
        }
    }

    /// What the memory is charged to.
    pub(super) fn node(&self) -> &Arc<TreeNode> {
        match self {
            Self::Pages(pool) => &pool.memory.node,
            Self::Regions(pool) => &pool.memory.node,
        }
    }

    #[inline]
    pub(super) fn over_limit(&self) -> &OverLimit {
        match self {
            Self::Pages(pool) => &pool.memory.over_limit,
            Self::Regions(pool) => &pool.memory.over_limit,
        }
    }

    pub(super) fn context(&self) -> &Context {
        match self {
            Self::Pages(pool) => pool.memory.context(),
            Self::Regions(pool) => pool.memory.context(),
        }
    }

    /// The number that its blocks carry.
    pub(super) fn id(&self) -> AllocatorId {
        match self {
            Self::Pages(pool) => pool.shared().with(|bfc| bfc.id()),
            Self::Regions(pool) => pool.shared().with(|bfc| bfc.id()),
        }
    }

    /// The core's questions about blocks, and frees in no order of a stream.
    pub(super) fn blocks(&self) -> &dyn BlockAllocator {
        match self {
            Self::Pages(pool) => pool.shared(),
            Self::Regions(pool) => pool.shared(),
        }
    }

    /// See [`StreamPool::find_at_once`].
    #[inline(always)]
    pub(super) fn find_at_once(&self, request: &Request) -> Option<Block> {
        match self {
            Self::Pages(pool) => pool.find_at_once(request),
            Self::Regions(pool) => pool.find_at_once(request),
        }
    }

    /// See [`StreamPool::alloc_more`].
    #[cold]
    pub(super) fn alloc_more(
        &self,
        stream: &Arc<CudaStream>,
        stream_id: StreamId,
        request: &Request,
        host: HostWait,
    ) -> Result<Block, DeviceAllocError> {
        match self {
            Self::Pages(pool) => pool.alloc_more(stream, stream_id, request, host),
            Self::Regions(pool) => pool.alloc_more(stream, stream_id, request, host),
        }
    }

    /// Takes a block back in the order of a point.
    #[inline]
    pub(super) fn free_at(
        &self,
        block: Block,
        point: StreamPoint,
    ) -> Result<(), Rejected<FreeError>> {
        match self {
            Self::Pages(pool) => pool.free_at(block, point),
            Self::Regions(pool) => pool.free_at(block, point),
        }
    }

    /// A block that was taken apart, and the bytes that were requested for it.
    pub(super) fn restore(&self, raw: RawBlock) -> Result<(Block, u64), FreeError> {
        let restored = match self {
            Self::Pages(pool) => pool.shared().with(|bfc| {
                let block = bfc.block_from_raw(raw)?;
                Ok((bfc.requested_bytes(&block), block))
            }),
            Self::Regions(pool) => pool.shared().with(|bfc| {
                let block = bfc.block_from_raw(raw)?;
                Ok((bfc.requested_bytes(&block), block))
            }),
        };
        let (bytes, block) = restored?;
        Ok((block, bytes.ok_or(FreeError::Unknown)?))
    }

    /// Changes a stream's counters under the lock that guards them.
    pub(super) fn count(&self, change: impl FnOnce()) {
        match self {
            Self::Pages(pool) => pool.shared().with(|_| change()),
            Self::Regions(pool) => pool.shared().with(|_| change()),
        }
    }

    /// See [`RegionPool::report`].
    pub(super) fn report(&self) -> Report {
        match self {
            Self::Pages(pool) => pool.shared().with(|bfc| bfc.report()),
            Self::Regions(pool) => pool.shared().with(|bfc| bfc.report()),
        }
    }

    /// Appends all chunks, and gives the counters of that moment.
    pub(super) fn list(&self, chunks: &mut Vec<DeviceChunk>) -> (Stats, PageStats) {
        let mut list = |info: ChunkInfo| {
            chunks.push(DeviceChunk {
                range: info.range,
                state: info.state,
            });
        };
        match self {
            Self::Pages(pool) => pool.shared().with(|bfc| {
                bfc.for_each_chunk(&mut list);
                (bfc.stats(), bfc.page_stats())
            }),
            Self::Regions(pool) => pool.shared().with(|bfc| {
                bfc.for_each_chunk(&mut list);
                (bfc.stats(), PageStats::default())
            }),
        }
    }

    pub(super) fn stats(&self) -> Stats {
        match self {
            Self::Pages(pool) => pool.memory.stats(),
            Self::Regions(pool) => pool.memory.stats(),
        }
    }

    pub(super) fn clear_stats(&self) {
        match self {
            Self::Pages(pool) => pool.memory.clear_stats(),
            Self::Regions(pool) => pool.memory.clear_stats(),
        }
    }

    pub(super) fn take_peak(&self) -> u64 {
        match self {
            Self::Pages(pool) => pool.memory.take_peak(),
            Self::Regions(pool) => pool.memory.take_peak(),
        }
    }

    /// Calls of the driver for virtual memory.
    pub(super) fn calls(&self) -> VirtualCalls {
        let pages = self.pages();
        pages.map_or_else(VirtualCalls::default, |pages| {
            pages.shared().source().calls()
        })
    }

    /// Has `watch` called for memory that comes and goes from now on.
    pub(super) fn watch(&self, watch: Box<dyn RegionWatch>) {
        match self {
            Self::Pages(pool) => pool.shared().source().watch(watch),
            Self::Regions(pool) => pool.shared().source().watch(watch),
        }
    }

    pub(super) fn refresh_limit(&self) {
        match self {
            Self::Pages(pool) => pool.memory.refresh_limit(),
            Self::Regions(pool) => pool.memory.refresh_limit(),
        };
    }

    pub(super) fn pool_stats(&self) -> PoolStats {
        match self {
            Self::Pages(pool) => LimitedPool::pool_stats(pool),
            Self::Regions(pool) => LimitedPool::pool_stats(pool),
        }
    }

    pub(super) fn shrink(&self) {
        match self {
            Self::Pages(pool) => pool.shrink(),
            Self::Regions(pool) => pool.shrink(),
        }
    }

    /// See [`StreamPool::freed_over_limit`].
    #[cold]
    pub(super) fn freed_over_limit(&self, stream: Option<&CudaStream>, bytes: u64) {
        match self {
            Self::Pages(pool) => pool.freed_over_limit(stream, bytes),
            Self::Regions(pool) => pool.freed_over_limit(stream, bytes),
        }
    }

    /// The error of an allocation.
    pub(super) fn refusal(&self, reason: AllocError) -> DeviceAllocError {
        match self {
            Self::Pages(pool) => pool.refusal(reason),
            Self::Regions(pool) => pool.refusal(reason),
        }
    }

    /// See [`StreamPool::poll`].
    pub(super) fn poll(&self) {
        match self {
            Self::Pages(pool) => pool.poll(),
            Self::Regions(pool) => pool.poll(),
        }
    }

    /// See [`StreamPool::collect`].
    pub(super) fn collect(&self, host: HostWait) {
        match self {
            Self::Pages(pool) => pool.collect(host),
            Self::Regions(pool) => pool.collect(host),
        }
    }

    /// Gives so many idle bytes back to the driver, and of regions all that are idle. Returns the bytes.
    pub(super) fn release(&self, bytes: u64) -> u64 {
        match self {
            Self::Pages(pool) => pool.shared().release(bytes),
            Self::Regions(_) if bytes == 0 => 0,
            Self::Regions(pool) => pool.shared().trim(),
        }
    }
}

/// Reserves the addresses in which a device's memory moves: as many as the configuration says, or else eight for
/// each byte of the device; half of them, and half again, while the system does not give so many, down to
/// five for every four bytes. `None` if the device has no virtual memory, or the system has not even these.
fn reserve(context: &Context, config: &DeviceConfig) -> Result<Option<VirtualMemory>, DriverError> {
    let device = context.device_info()?;
    let (mut bytes, least) = match config.address_bytes {
        0 => {
            let wanted = device.total_bytes.saturating_mul(ADDRESSES_A_BYTE);
            let least = device.total_bytes.saturating_add(device.total_bytes / 4);
            (wanted.min(MAX_ADDRESSES), least)
        }
        bytes if bytes > MAX_ADDRESSES => return Err(DriverError::Size { bytes }),
        bytes => (bytes, bytes),
    };
    if !device.virtual_memory {
        return Ok(None);
    }
    loop {
        let virtual_config = VirtualConfig {
            peers: config.peers.clone(),
            shareable: config.shareable,
            ..VirtualConfig::new(bytes)
        };
        match VirtualMemory::with_config(context, &virtual_config) {
            Err(error) if error.is_out_of_memory() && bytes > least => {
                bytes = (bytes / 2).max(least);
            }
            Err(error) if error.is_out_of_memory() && config.address_bytes == 0 => return Ok(None),
            outcome => return outcome.map(Some),
        }
    }
}
