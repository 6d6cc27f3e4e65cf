//! [`DevicePool`]: the source of a [`DeviceAllocator`](super::DeviceAllocator)'s blocks, with pages that can
//! move, or with regions on a device or a system without virtual memory.
//!
//! Operations that only pages have go through [`pages`](DevicePool::pages).

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
use crate::stream::pool::{BudgetedPool, HostWait, StreamPool, StreamTable};
use crate::with_tables::WithTables;
use crate::{
    Context, DeviceAllocError, DeviceMemory, DriverError, VirtualCalls, VirtualConfig,
    VirtualMemory,
};

/// Bytes of addresses for each byte of the device's memory. Moving pages leaves holes, which cost only
/// addresses.
const ADDRESSES_A_BYTE: u64 = 8;

/// Maximum bytes of addresses, a little less than the 2^32 - 1 granules of 256 bytes that the core counts.
const MAX_ADDRESSES: u64 = (1 << 40) - (1 << 30);

/// The kind of memory of a [`DeviceAllocator`](super::DeviceAllocator).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DeviceBacking {
    /// Virtual memory, whose pages move to where they are needed.
    Pages,
    /// Whole allocations of the driver (`cuMemAlloc`), which stay in place, for a device or a system without
    /// virtual memory. More memory is held; it cannot sleep, be exported or be shared with peers, and steps
    /// are not planned.
    Regions,
}

/// Pages that can move.
pub(super) type PagedStreamPool = StreamPool<VirtualMemory, PagePool<'static>>;

/// A device's memory in the order of streams.
#[expect(
    clippy::large_enum_variant,
    reason = "each allocator has one, in its own heap block"
)]
pub(super) enum DevicePool {
    Pages(PagedStreamPool),
    Regions(StreamPool<DeviceMemory, RegionPool<'static>>),
}

impl DevicePool {
    /// Makes a pool that holds nothing yet.
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
        // SAFETY: the tables go into the allocator, which is never taken apart.
        let pool = unsafe {
            WithTables::try_new(|tables| {
                let (chunks, tables) = tables::lend(tables, &paged);
                let paged = PagePool::new(paged, chunks, tables)?;
                Ok::<_, ConfigError>(Shared::with_wait(paged, memory))
            })
        };
        // Fails only if a page is not a multiple of the granule. No driver has such pages.
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
        let pool = WithTables::regions(RegionConfig::new(bytes), tables::CHUNKS, regions);
        // Fails only for an invalid configuration or table, and both are fixed.
        let pool = pool.map_err(|_| DriverError::Size { bytes })?;
        let pool = BudgetedPool::new(context, pool, node.clone());
        Ok(Self::Regions(StreamPool::new(pool)))
    }

    pub(super) const fn backing(&self) -> DeviceBacking {
        match self {
            Self::Pages(_) => DeviceBacking::Pages,
            Self::Regions(_) => DeviceBacking::Regions,
        }
    }

    /// Returns the pool of pages; `None` if memory comes in regions.
    pub(super) const fn pages(&self) -> Option<&PagedStreamPool> {
        match self {
            Self::Pages(pages) => Some(pages),
            Self::Regions(_) => None,
        }
    }

    /// Returns the counts of driver calls for virtual memory.
    pub(super) fn calls(&self) -> VirtualCalls {
        let pages = self.pages();
        pages.map_or_else(VirtualCalls::default, |pages| {
            pages.shared().source().calls()
        })
    }

    /// Releases `bytes` bytes of idle memory to the driver, or all idle regions if memory comes in regions.
    /// Returns the bytes released.
    pub(super) fn release(&self, bytes: u64) -> u64 {
        match self {
            Self::Pages(pool) => pool.shared().release(bytes),
            Self::Regions(_) if bytes == 0 => 0,
            Self::Regions(pool) => pool.shared().trim(),
        }
    }

    /// Appends all chunks to `chunks`, and returns the counters at that moment.
    pub(super) fn list(&self, chunks: &mut Vec<DeviceChunk>) -> (Stats, PageStats) {
        let mut list = |info: ChunkInfo| {
            chunks.push(DeviceChunk {
                range: info.range,
                state: info.state,
            });
        };
        match self {
            Self::Pages(pool) => pool.shared().with(|locked| {
                locked.for_each_chunk(&mut list);
                (locked.stats(), locked.page_stats())
            }),
            Self::Regions(pool) => pool.shared().with(|locked| {
                locked.for_each_chunk(&mut list);
                (locked.stats(), PageStats::default())
            }),
        }
    }
}

/// Defines methods that call the pool of either kind.
macro_rules! forward {
    ($(
        $(#[$meta:meta])*
        fn $name:ident(&self $(, $arg:ident: $type:ty)*) $(-> $answer:ty)? => |$pool:ident| $call:expr;
    )*) => {
        impl DevicePool {$(
            $(#[$meta])*
            pub(super) fn $name(&self $(, $arg: $type)*) $(-> $answer)? {
                match self {
                    Self::Pages($pool) => $call,
                    Self::Regions($pool) => $call,
                }
            }
        )*}
    };
}

forward! {
    #[inline]
    fn streams(&self) -> &StreamTable => |pool| &pool.streams;

    #[inline]
    fn over_limit(&self) -> &OverLimit => |pool| &pool.memory.over_limit;

    /// See [`StreamPool::find_at_once`].
    #[inline(always)]
    fn find_at_once(&self, request: &Request) -> Option<Block> => |pool| pool.find_at_once(request);

    /// Frees a block that queued work uses up to a point.
    #[inline]
    fn free_at(&self, block: Block, point: StreamPoint) -> Result<(), Rejected<FreeError>>
        => |pool| pool.free_at(block, point);

    /// See [`StreamPool::alloc_more`].
    #[cold]
    fn alloc_more(
        &self, stream: &Arc<CudaStream>, stream_id: StreamId, request: &Request, host: HostWait
    ) -> Result<Block, DeviceAllocError> => |pool| pool.alloc_more(stream, stream_id, request, host);

    /// Makes the error of an allocation from the core's.
    fn refusal(&self, reason: AllocError) -> DeviceAllocError => |pool| pool.refusal(reason);

    /// See [`StreamPool::poll`].
    fn poll(&self) => |pool| pool.poll();

    /// See [`StreamPool::poll_events`].
    fn poll_events(&self, host: HostWait) => |pool| pool.poll_events(host);

    /// See [`StreamPool::wait_for_pending`].
    fn wait_for_pending(&self) => |pool| pool.wait_for_pending();

    /// Sets the tiers above the pool.
    fn set_upper_tiers(&self, tiers: Weak<DeviceInner>) => |pool| pool.set_upper_tiers(tiers);

    /// Sets the watch on memory that is mapped and unmapped.
    fn watch(&self, watch: Box<dyn RegionWatch>) => |pool| pool.shared().source().watch(watch);

    fn context(&self) -> &Context => |pool| pool.memory.context();

    /// Returns the number that the core's blocks carry.
    fn id(&self) -> AllocatorId => |pool| pool.shared().with(|locked| locked.id());

    /// Returns the core, for queries about blocks, and for frees without a stream's order.
    fn blocks(&self) -> &dyn BlockAllocator => |pool| pool.shared();

    /// Restores a block that was taken apart. Returns its requested bytes too.
    fn restore(&self, raw: RawBlock) -> Result<(Block, u64), FreeError> => |pool| {
        pool.shared().with(|locked| {
            let block = locked.block_from_raw(raw)?;
            let bytes = locked.requested_bytes(&block).ok_or(FreeError::Unknown)?;
            Ok((block, bytes))
        })
    };

    /// Changes a stream's counters under the lock that guards them.
    fn count(&self, change: impl FnOnce()) => |pool| pool.shared().with(|_| change());

    /// See [`BestFit::report`].
    fn report(&self) -> Report => |pool| pool.shared().with(|locked| locked.report());

    fn stats(&self) -> Stats => |pool| pool.memory.stats();

    fn clear_stats(&self) => |pool| pool.memory.clear_stats();

    fn take_peak(&self) -> u64 => |pool| pool.memory.take_peak();

    /// Returns the node that the memory is charged to.
    fn node(&self) -> &Arc<TreeNode> => |pool| &pool.memory.node;

    /// Rereads the live limit. Returns the bytes held above it.
    fn refresh_limit(&self) -> u64 => |pool| pool.memory.refresh_limit();

    /// See [`StreamPool::shrink`].
    fn shrink(&self) => |pool| pool.shrink();

    /// See [`StreamPool::freed_over_limit`].
    #[cold]
    fn freed_over_limit(&self, stream: Option<&CudaStream>, bytes: u64)
        => |pool| pool.freed_over_limit(stream, bytes);

    /// Returns the pool as a [`LimitedPool`], which orders act on.
    fn limited(&self) -> &dyn LimitedPool => |pool| pool;
}

/// The limit is the pool's. Unused memory of arenas does not count as live.
impl LimitedPool for DeviceInner {
    fn node(&self) -> &Arc<TreeNode> {
        self.pool.node()
    }

    fn refresh_limit(&self) {
        self.pool.limited().refresh_limit();
    }

    fn pool_stats(&self) -> PoolStats {
        self.pool.limited().pool_stats()
    }

    fn shrink(&self) {
        self.pool.limited().shrink();
    }

    fn release(&self, bytes: u64, device: Option<i32>) -> u64 {
        if device.is_some_and(|device| device != self.pool.context().device()) {
            return 0;
        }
        self.pool.poll_events(HostWait::MayBlock);
        let released = self.pool.release(bytes);
        if released >= bytes || self.pool.report().pending_bytes == 0 {
            return released;
        }
        self.pool.wait_for_pending();
        released + self.pool.release(bytes - released)
    }

    fn stats(&self) -> Stats {
        Self::stats(self)
    }

    fn take_peak(&self) -> u64 {
        self.pool.take_peak()
    }
}

/// Reserves the addresses in which a device's memory moves: as many as configured, or by default eight times
/// the device's memory, halved while the system refuses, down to 1.25 times. Returns `None` if the device has
/// no virtual memory, or the system refuses even that.
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
