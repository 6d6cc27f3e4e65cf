//! [`DeviceAllocator`]: a device's memory in the order of streams.
//!
//! The core's paged best fit over one range of addresses ([`VirtualMemory`]), with streams by number
//! (`streams`). A block is freed in the order of a stream: it is given again at once on that stream,
//! and to another one after a wait that the device makes, never the host. Nothing on the way of an
//! allocation that fits, or of a free, calls the driver, but for that wait.
//!
//! # When nothing fits that the stream may use at once
//! 1. What [arenas] do not use goes back to the core, and the search is made again.
//! 2. What another stream used last is given, and the stream waits for it on the device.
//! 3. What events have passed counts as free for all, also what arenas had of it, and the search is made
//!    again.
//! 4. Pages move, or memory is created, as the core's [`Backing`](larder_core::paged::Backing) says.
//! 5. If that fails while freed memory is pending, in an arena too: the host waits for it, and all is
//!    tried once more. Not for a piece of an arena: its block may fit elsewhere.
//! 6. An error with the numbers.
//!
//! # Locks
//! That of the core for bookkeeping; those of the streams, also while an event is recorded. No thread
//! holds both. That of blocks which several streams used comes before either.

mod arenas;
mod config;
mod deferred;
mod error;
mod free;
mod limit;
mod on_stream;
mod order;
mod report;
mod routes;
mod slow;
mod step_tables;
mod steps;
pub(crate) mod streams;
pub(crate) mod tables;
mod window;

use core::fmt;
use core::mem::ManuallyDrop;
use std::sync::{Arc, Weak};

use cudarc::driver::CudaStream;
use larder_core::paged::{PagedAllocator, PagedBfc, PagedConfig};
use larder_core::sync::AtomicU64;
use larder_core::{AllocError, AllocatorId, Block, Grant, NoIndex, Request, StreamId};

use arenas::{Arenas, MAX_BYTES};
pub use config::{ArenaPolicy, DeviceConfig};
use deferred::DeferredBlocks;
pub use error::{DeviceAllocError, DeviceFreeError, DeviceFreeRejected};
pub(crate) use free::rejected;
pub use on_stream::StreamMemory;
pub(crate) use order::Ordered;
use report::CountsByStream;
pub use report::{DeviceChunk, DeviceSnapshot, StreamStats};
use routes::{AllocRoute, Routes};
use slow::HostWait;
pub use slow::Released;
pub use steps::DeviceStep;
use steps::StepStreams;
use streams::Streams;
pub use window::CaptureWindow;
use window::Windows;

use crate::limits::shrinking::Shrinking;
use crate::limits::{self, Budget, TreeNode};
use crate::peaks::Earlier;
use crate::waiting::Yield;
use crate::{Context, DriverError, VirtualMemory};
pub(crate) use tables::free as free_table;

/// Addresses for each byte of the device. Moving pages leaves holes, which cost addresses only.
const ADDRESSES_A_BYTE: u64 = 8;

/// Most addresses: the core counts 2^32 granules of 256 bytes, less one; this is a little under that.
const MAX_ADDRESSES: u64 = (1 << 40) - (1 << 30);

/// Where small blocks come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Small {
    /// From what the stream has to itself, if it has anything.
    MayBeInArena,
    /// From where all others come: so they are numbered with them, and aligned as asked.
    IsInCore,
}

type DevicePool = PagedAllocator<'static, VirtualMemory, NoIndex, Yield>;

/// A device's memory, shared by threads and streams. A clone is the same allocator.
///
/// Blocks are values without a destructor: one that is not freed is lost until the allocator is
/// dropped with its last clone. That waits for the streams and gives everything back to the driver.
///
/// ```no_run
/// use larder_cuda::{Context, DeviceAllocator};
///
/// let context = Context::new(0)?;
/// let memory = DeviceAllocator::new(&context)?;
/// let stream = context.cudarc().new_stream()?;
/// let block = memory.alloc(&stream, 1 << 20)?;
/// // kernels on `stream` use `block.addr()`
/// memory.free(&stream, block)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct DeviceAllocator(Arc<DeviceInner>);

/// A weak reference to a [`DeviceAllocator`], which is gone with its last clone.
#[cfg(feature = "control")]
#[derive(Clone)]
pub(crate) struct WeakAllocator(Weak<DeviceInner>);

#[cfg(feature = "control")]
impl WeakAllocator {
    pub(crate) fn upgrade(&self) -> Option<DeviceAllocator> {
        self.0.upgrade().map(DeviceAllocator)
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        self.0.ptr_eq(&other.0)
    }
}

struct DeviceInner {
    /// What its own blocks carry.
    id: AllocatorId,
    check_captures: bool,
    streams: Streams,
    routes: Routes,
    arenas: Arenas,
    deferred: DeferredBlocks,
    steps: StepStreams,
    windows: Windows,
    accounts: CountsByStream,
    earlier: Earlier,
    /// What is held is charged to it.
    node: Arc<TreeNode>,
    shrinking: Shrinking,
    /// Bytes that a release has still to give back.
    releasing: AtomicU64,
    /// Taken apart in `drop`.
    pool: ManuallyDrop<DevicePool>,
}

impl DeviceAllocator {
    /// All of the device's memory.
    ///
    /// # Errors
    /// If the driver refuses, or the device cannot map memory.
    pub fn new(context: &Context) -> Result<Self, DeviceAllocError> {
        Self::with_config(context, DeviceConfig::new())
    }

    /// Makes an allocator as the configuration says.
    ///
    /// # Errors
    /// If the driver refuses, or the device cannot map memory.
    pub fn with_config(context: &Context, config: DeviceConfig) -> Result<Self, DeviceAllocError> {
        Self::make(context, config, None)
    }

    fn make(
        context: &Context,
        config: DeviceConfig,
        budget: Option<&Budget>,
    ) -> Result<Self, DeviceAllocError> {
        let address_bytes = match config.address_bytes {
            0 => {
                let device = context.device_info()?;
                let wanted = device.total_bytes.saturating_mul(ADDRESSES_A_BYTE);
                wanted.min(MAX_ADDRESSES)
            }
            bytes if bytes > MAX_ADDRESSES => return Err(DriverError::Size { bytes }.into()),
            bytes => bytes,
        };
        let node = limits::pool_node(budget, "device memory", config.limit_bytes)
            .map_err(DeviceAllocError::Budgets)?;
        let mut memory = VirtualMemory::new(context, address_bytes)?;
        memory.charge_to(node.clone());
        let mut paged = PagedConfig::new(memory.addresses(), config.backing);
        paged.page_bytes = memory.page_bytes();
        paged.bfc.limit_bytes = config.limit_bytes;
        let (chunks, tables) = tables::lend(&paged);
        let paged = PagedBfc::with_tables(paged, chunks, tables).map_err(|_| {
            // Only a page that is no multiple of the granule, which no driver has.
            DriverError::Size {
                bytes: memory.page_bytes(),
            }
        })?;
        let inner = Arc::new_cyclic(|inner| DeviceInner {
            id: paged.id(),
            check_captures: config.check_captures,
            streams: Streams::new(context),
            routes: Routes::new(),
            arenas: Arenas::new(inner, config.arenas),
            deferred: DeferredBlocks::default(),
            steps: StepStreams::new(config.steps),
            windows: Windows::default(),
            accounts: CountsByStream::new(),
            earlier: Earlier::default(),
            node,
            shrinking: Shrinking::default(),
            releasing: AtomicU64::new(0),
            pool: ManuallyDrop::new(PagedAllocator::with_wait(paged, memory)),
        });
        let pool: Weak<DeviceInner> = Arc::downgrade(&inner);
        limits::enter(pool, &inner.node);
        // A budget above may be in excess.
        inner.take_limit_over();
        Ok(Self(inner))
    }

    /// Gives memory for work that is queued on `stream` from now on. O(1) and no driver call while
    /// something fits that this stream, or none, used last; one wait of the stream if another did.
    ///
    /// # Errors
    /// [`DeviceAllocError`].
    #[inline]
    pub fn alloc(&self, stream: &Arc<CudaStream>, bytes: u64) -> Result<Block, DeviceAllocError> {
        self.0.alloc_for(stream, bytes, HostWait::Waits)
    }

    /// Gives memory for work that is queued on `stream` from now on, but the host waits for nothing: the
    /// caller has other memory.
    pub(crate) fn alloc_without_host_wait(
        &self,
        stream: &Arc<CudaStream>,
        bytes: u64,
    ) -> Result<Block, DeviceAllocError> {
        self.0.alloc_for(stream, bytes, HostWait::HasOther)
    }

    /// Where the memory lives.
    pub fn context(&self) -> &Context {
        self.0.context()
    }

    #[cfg(feature = "control")]
    pub(crate) fn downgrade(&self) -> WeakAllocator {
        WeakAllocator(Arc::downgrade(&self.0))
    }
}

impl DeviceInner {
    fn context(&self) -> &Context {
        self.pool.source().context()
    }

    #[inline]
    fn alloc_for(
        &self,
        stream: &Arc<CudaStream>,
        bytes: u64,
        host: HostWait,
    ) -> Result<Block, DeviceAllocError> {
        let stream_id = self.streams.id(stream)?;
        if self.routes.of(stream_id) != AllocRoute::Plain || self.check_captures {
            let request = Request::new(bytes).on(stream_id);
            return self.alloc_routed(stream, stream_id, &request, Small::MayBeInArena, host);
        }
        self.alloc_plain(stream, stream_id, bytes, host)
    }

    /// Gives memory to a stream that has steps or a window, or might capture.
    #[cold]
    fn alloc_routed(
        &self,
        stream: &Arc<CudaStream>,
        stream_id: StreamId,
        request: &Request,
        small: Small,
        host: HostWait,
    ) -> Result<Block, DeviceAllocError> {
        let route = self.routes.of(stream_id);
        if route == AllocRoute::Window
            && let Some(given) = self.alloc_in_window(stream_id, request)
        {
            return given;
        }
        if self.check_captures && self.streams.captures(stream)? {
            return Err(DeviceAllocError::Capturing);
        }
        let given = match (route, small) {
            (AllocRoute::Plain, Small::MayBeInArena) => {
                return self.alloc_plain(stream, stream_id, request.bytes, host);
            }
            (AllocRoute::Plain, Small::IsInCore) => self.alloc(stream, stream_id, request, host),
            _ => self.alloc_in_step(stream, stream_id, request, host),
        };
        self.node.shared().notify();
        given
    }

    /// Gives memory to a stream, from its arena or the core.
    #[inline]
    fn alloc_plain(
        &self,
        stream: &Arc<CudaStream>,
        stream_id: StreamId,
        bytes: u64,
        host: HostWait,
    ) -> Result<Block, DeviceAllocError> {
        // What arenas hold is live to the core: while the limit is not met, only that may grant.
        if bytes <= MAX_BYTES && !self.shrinking.is_on() {
            let arena = self.arenas.of(stream_id);
            let arena = arena.or_else(|| self.arenas.note(stream_id, stream));
            if let Some(arena) = arena
                && let Some(block) = self.alloc_in_arena(arena, stream_id, bytes)
            {
                return Ok(block);
            }
        }
        // The request is made where it is used, so that it stays in registers.
        match self.find_at_once(&Request::new(bytes).on(stream_id)) {
            Some(block) => Ok(block),
            None => {
                let request = Request::new(bytes).on(stream_id);
                let given = self.alloc_more(stream, stream_id, &request, host);
                self.node.shared().notify();
                given
            }
        }
    }

    /// Gives memory to a stream, from the core.
    #[inline]
    fn alloc(
        &self,
        stream: &Arc<CudaStream>,
        stream_id: StreamId,
        request: &Request,
        host: HostWait,
    ) -> Result<Block, DeviceAllocError> {
        match self.find_at_once(request) {
            Some(block) => Ok(block),
            None => self.alloc_more(stream, stream_id, request, host),
        }
    }

    /// Memory that is held, fits, and needs no wait.
    // A block that comes back through memory is read before it is written out.
    #[inline(always)]
    fn find_at_once(&self, request: &Request) -> Option<Block> {
        self.pool.with(|paged| {
            let block = paged.alloc_at_once(&request.without_wait())?;
            self.accounts.allocated(request.stream, block.bytes());
            Some(block)
        })
    }

    /// Memory that is held and fits, after a wait if need be.
    fn find(&self, request: &Request) -> Result<Option<Grant>, DeviceAllocError> {
        let found = self.pool.with(|paged| {
            let found = paged.alloc_now(request);
            if let Ok(Some(grant)) = &found {
                self.accounts.allocated(request.stream, grant.block.bytes());
            }
            found
        });
        found.map_err(|reason| self.refusal(reason))
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
        // The block goes back as it was: still in use by the other stream.
        let bytes = grant.block.bytes();
        let _ = self.free_uncounted(grant.block, point);
        self.pool
            .with(|_| self.accounts.withdrawn(stream_id, bytes));
        ordered?;
        Ok(None)
    }

    fn refusal(&self, reason: AllocError) -> DeviceAllocError {
        if let Some(refused) = self.budget_refusal(&reason) {
            return refused;
        }
        let (reason, driver) = match reason {
            AllocError::OutOfMemory(mut out) => {
                // What arenas do not use is in use to the core only.
                let idle = self.arenas.free_bytes();
                out.live_bytes = out.live_bytes.saturating_sub(idle);
                out.free_bytes = out.free_bytes.saturating_add(idle);
                (
                    AllocError::OutOfMemory(out),
                    self.pool.source().last_error(),
                )
            }
            other => (other, None),
        };
        DeviceAllocError::Memory { reason, driver }
    }
}

impl Drop for DeviceInner {
    fn drop(&mut self) {
        // Blocks that were never freed may be in use too.
        self.streams.wait_for_all();
        // SAFETY: taken once, here, and the field is not used again.
        let pool = unsafe { ManuallyDrop::take(&mut self.pool) };
        let (paged, memory) = pool.into_parts();
        drop(memory);
        tables::take_back(paged);
        self.node.shared().notify();
    }
}

impl fmt::Debug for DeviceAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceAllocator")
            .field("context", self.context())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
