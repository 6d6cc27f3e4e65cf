//! [`DeviceAllocator`]: a device's memory in the order of streams.
//!
//! ```text
//! tiers of this folder; a stream's route (`routes`) selects one:
//!   arenas                capture_window          steps                  (none)
//!   small blocks of       one block set aside     places planned ahead   any other block
//!   a stream, in pieces   for a graph             for repeated work
//! ─────────────────────────────────────────────────────────────────────────────────────────
//! StreamPool              streams, events and waits
//! BudgetedPool            the limit, and the budgets that memory is charged to
//! Shared                  the core behind its lock, and the loop that calls the source
//!   PagePool              pages that can move     or RegionPool          (`device_pool`)
//!   VirtualMemory         the source              or DeviceMemory
//! ─────────────────────────────────────────────────────────────────────────────────────────
//! the driver
//! ```
//! A free that names several streams waits in `multi_stream_frees`. All of the memory can be released for a while
//! (`sleep`).
//!
//! # Locks
//! Locks are taken in this order: `sleep`, a stream's steps, the list of windows, `multi_stream_frees`, the pool.

mod alloc;
mod arenas;
mod as_stream;
mod by_address;
mod capture_window;
mod config;
mod device_pool;
#[cfg(unix)]
mod export;
mod fixed;
mod free;
mod host_copy;
mod host_memory;
mod limit;
mod multi_stream_frees;
mod order;
mod release;
mod report;
mod reserved;
mod routes;
mod sleep;
mod step_tables;
mod steps;
pub(crate) mod tables;

use core::fmt;
use std::sync::{Arc, Weak};

use cudarc::driver::CudaStream;
use larder_core::sync::AtomicU64;
use larder_core::{AllocatorId, Block, EventNumber, Request, StreamId};

use arenas::{Arenas, MAX_BYTES};
use by_address::ByAddress;
pub use capture_window::CaptureWindow;
use capture_window::Windows;
pub use config::{ArenaPolicy, DeviceConfig};
pub use device_pool::DeviceBacking;
use device_pool::DevicePool;
#[cfg(unix)]
pub use export::{ExportError, ExportedBlock};
pub use fixed::FixedBlock;
use multi_stream_frees::MultiStreamFrees;
pub(crate) use order::Ordered;
pub use release::Released;
pub use report::{DeviceChunk, DeviceSnapshot};
use routes::{AllocRoute, Routes};
use sleep::AllocatorSleep;
pub use sleep::{SleepError, Slept};
pub use steps::DeviceStep;
use steps::StepStreams;

#[cfg(feature = "job")]
use crate::limits::LimitedPool;
use crate::limits::{self, Budget, Claimant};
use crate::stream::pool::{HostWait, StreamStats, UpperTiers};
use crate::{Context, DeviceAllocError, DeviceFreeError};

/// Source of small blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Small {
    /// From the stream's arena, if it has one.
    MayBeInArena,
    /// From the core, so that they are numbered with all other blocks and aligned as requested.
    IsInCore,
}

/// A device's memory, shared by threads and streams. Clones share the allocator.
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
///
/// [`DeviceBuffer`](crate::DeviceBuffer)s are typed blocks that are freed when dropped;
/// [`upload`](Self::upload) and [`zeros`](Self::zeros) make them.
///
/// # Kernels that do not run in the order of their stream
///
/// Memory that a stream freed is reused while work of the stream is still queued, and pages that moved stay
/// mapped at their old addresses, so memory may have two addresses. The driver keeps both coherent from one
/// operation of a stream to the next (CUDA Programming Guide, *Virtual Aliasing Support*). Work that overlaps
/// earlier work has no such boundary:
///
/// * Before its `griddepcontrol.wait` (`cudaGridDependencySynchronize`), a kernel of a programmatic dependent
///   launch must access only blocks that were allocated before the launches that it may overlap.
/// * A kernel that keeps running (a persistent kernel) must access only blocks that were allocated before its
///   launch and are freed after its end.
///
/// If such a kernel must use new blocks, set [`DeviceConfig::backing`] to
/// [`Backing::InPlace`](larder_core::pages::Backing), which maps no page twice. Then only the program's own
/// order of frees and allocations matters, but more memory is held.
///
/// # Leaks
///
/// Blocks are values without a destructor. A block that is not freed is leaked until the last clone of the
/// allocator is dropped. That drop waits for the streams and releases everything to the driver.
#[derive(Clone)]
pub struct DeviceAllocator(Arc<DeviceInner>);

struct DeviceInner {
    /// Declared first, since its drop waits for the streams.
    pool: DevicePool,
    /// The number that the core's blocks carry.
    id: AllocatorId,
    check_captures: bool,
    routes: Routes,
    arenas: Arenas,
    deferred: MultiStreamFrees,
    steps: StepStreams,
    windows: Windows,
    sleep: AllocatorSleep,
    /// Bytes that earlier releases still have to release.
    releasing: AtomicU64,
    by_address: ByAddress,
}

impl DeviceAllocator {
    fn make(
        context: &Context,
        config: DeviceConfig,
        budget: Option<&Budget>,
    ) -> Result<Self, DeviceAllocError> {
        let node = limits::pool_node(budget, "device memory", config.limit_bytes)
            .map_err(DeviceAllocError::Budgets)?;
        let pool = DevicePool::new(context, &config, &node)?;
        let inner = Arc::new_cyclic(|inner| DeviceInner {
            id: pool.id(),
            check_captures: config.check_captures,
            routes: Routes::default(),
            arenas: Arenas::new(inner, config.arenas),
            deferred: MultiStreamFrees::default(),
            steps: StepStreams::new(config.steps),
            windows: Windows::default(),
            sleep: AllocatorSleep::default(),
            releasing: AtomicU64::new(0),
            by_address: ByAddress::default(),
            pool,
        });
        let pool: Weak<DeviceInner> = Arc::downgrade(&inner);
        limits::enter(pool, inner.pool.node());
        inner.pool.set_upper_tiers(Arc::downgrade(&inner));
        // A budget above the pool may be over its limit.
        inner.pool.refresh_limit();
        Ok(Self(inner))
    }

    /// Returns the kind of backing: pages that move, or regions if there is no virtual memory.
    pub fn backing(&self) -> DeviceBacking {
        self.0.pool.backing()
    }

    /// Returns the context of the device.
    pub fn context(&self) -> &Context {
        self.0.pool.context()
    }

    /// Returns this allocator as a pool with a limit.
    #[cfg(feature = "job")]
    pub(crate) fn as_pool(&self) -> Arc<dyn LimitedPool> {
        self.0.clone()
    }

    /// Returns a handle that does not keep the allocator alive.
    #[cfg(feature = "job")]
    pub(crate) fn downgrade(&self) -> WeakDevice {
        WeakDevice(Arc::downgrade(&self.0))
    }
}

/// A handle that does not keep its allocator alive.
#[cfg(feature = "job")]
#[derive(Clone)]
pub(crate) struct WeakDevice(Weak<DeviceInner>);

#[cfg(feature = "job")]
impl WeakDevice {
    pub(crate) fn upgrade(&self) -> Option<DeviceAllocator> {
        self.0.upgrade().map(DeviceAllocator)
    }
}

/// Maximum number of times that room is made for a request, since another thread may take the memory: enough for a
/// callback that decommits one unit of a buffer at a time.
const MAX_ROOMS: u32 = 1024;

/// The means of a request that may be refused for lack of memory.
#[derive(Clone, Copy)]
pub(crate) struct Shortage {
    pub(crate) host: HostWait,
    /// Bytes that the caller needs after this request.
    pub(crate) more_bytes: u64,
    /// The claimant of recalled memory; `None` for a lent commit, which recalls nothing.
    pub(crate) claimant: Option<Claimant>,
}

impl DeviceInner {
    #[inline]
    fn alloc_for(
        &self,
        stream: &Arc<CudaStream>,
        bytes: u64,
        host: HostWait,
    ) -> Result<Block, DeviceAllocError> {
        let stream_id = self.pool.streams().id(stream)?;
        if self.routes.of(stream_id) != AllocRoute::Plain {
            let request = Request::new(bytes).on(stream_id);
            return self.alloc_routed(stream, stream_id, &request, Small::MayBeInArena, host);
        }
        self.refuse_capture(stream)?;
        self.alloc_plain(stream, stream_id, bytes, host)
    }

    /// Refuses memory for a stream that is being captured: the graph and the program would share the memory.
    #[inline]
    fn refuse_capture(&self, stream: &CudaStream) -> Result<(), DeviceAllocError> {
        if self.check_captures && self.pool.streams().makes_graph(stream)? {
            return Err(DeviceAllocError::Capturing);
        }
        Ok(())
    }

    /// Allocates for a stream that has steps or a window, or a block that must come from the core.
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
        if route == AllocRoute::Asleep {
            return Err(DeviceAllocError::Asleep);
        }
        if route == AllocRoute::Window
            && let Some(given) = self.alloc_in_window(stream_id, request)
        {
            return given;
        }
        self.refuse_capture(stream)?;
        let given = match (route, small) {
            (AllocRoute::Plain, Small::MayBeInArena) => {
                return self.alloc_plain(stream, stream_id, request.bytes, host);
            }
            (AllocRoute::Plain, Small::IsInCore) => {
                self.alloc_block(host, || self.alloc(stream, stream_id, request, host))
            }
            _ => self.alloc_block(host, || {
                self.alloc_in_step(stream, stream_id, request, host)
            }),
        };
        self.pool.node().shared().notify();
        given
    }

    /// Allocates for a stream, from its arena or the core.
    #[inline]
    fn alloc_plain(
        &self,
        stream: &Arc<CudaStream>,
        stream_id: StreamId,
        bytes: u64,
        host: HostWait,
    ) -> Result<Block, DeviceAllocError> {
        // The core counts the memory of arenas as live, so only the core may allocate while the limit is
        // exceeded.
        if bytes <= MAX_BYTES
            && !self.pool.over_limit().is_on()
            && let Some(arena) = self.arenas.of_small(stream_id)
            && let Some(block) = self.alloc_in_arena(arena, stream_id, bytes)
        {
            return Ok(block);
        }
        match self.pool.find_at_once(&Request::new(bytes).on(stream_id)) {
            Some(block) => Ok(block),
            None => self.alloc_short(stream, stream_id, bytes, host),
        }
    }

    /// Allocates for a stream when no free memory fits without a wait.
    #[cold]
    fn alloc_short(
        &self,
        stream: &Arc<CudaStream>,
        stream_id: StreamId,
        bytes: u64,
        host: HostWait,
    ) -> Result<Block, DeviceAllocError> {
        let request = Request::new(bytes).on(stream_id);
        let given = self.alloc_block(host, || {
            self.pool.alloc_more(stream, stream_id, &request, host)
        });
        self.pool.node().shared().notify();
        given
    }

    /// Allocates a block with `alloc`, and makes room for it if that is refused.
    pub(super) fn alloc_block<T>(
        &self,
        host: HostWait,
        alloc: impl Fn() -> Result<T, DeviceAllocError>,
    ) -> Result<T, DeviceAllocError> {
        let short = Shortage {
            host,
            more_bytes: 0,
            claimant: Some(self.pool.node().claimant()),
        };
        self.with_room(short, alloc)
    }

    /// Allocates with `alloc`. If that is refused for lack of memory, and the host may wait, makes room
    /// ([`make_room`](crate::limits::TreeNode::make_room)) and tries again while room is found. The caller holds no
    /// lock.
    pub(super) fn with_room<T>(
        &self,
        short: Shortage,
        alloc: impl Fn() -> Result<T, DeviceAllocError>,
    ) -> Result<T, DeviceAllocError> {
        let (node, device) = (self.pool.node(), self.pool.context().device());
        let mut tries = match short.host {
            HostWait::MayBlock => MAX_ROOMS,
            HostWait::MustNotBlock | HostWait::HasFallback => 0,
        };
        let make_room = |refusal: &DeviceAllocError| {
            node.make_room(refusal, device, short.more_bytes, short.claimant)
        };
        loop {
            match alloc() {
                Err(refusal) if tries > 0 && make_room(&refusal) => tries -= 1,
                outcome => {
                    if let (Ok(_), Some(claimant)) = (&outcome, short.claimant) {
                        node.end_claim(claimant);
                    }
                    return outcome;
                }
            }
        }
    }

    /// Allocates for a stream, from the core.
    #[inline]
    fn alloc(
        &self,
        stream: &Arc<CudaStream>,
        stream_id: StreamId,
        request: &Request,
        host: HostWait,
    ) -> Result<Block, DeviceAllocError> {
        match self.pool.find_at_once(request) {
            Some(block) => Ok(block),
            None => self.pool.alloc_more(stream, stream_id, request, host),
        }
    }
}

impl UpperTiers for DeviceInner {
    /// Releases unused pieces of arenas to the core (ARENAS3).
    fn give_back(&self, host: HostWait) -> bool {
        match host {
            HostWait::MayBlock | HostWait::HasFallback => self.arenas.trim(),
            HostWait::MustNotBlock => self.arenas.trim_excess(),
        }
    }

    fn completed(&self, stream_id: StreamId, number: EventNumber) {
        self.arenas.complete(stream_id, number);
    }

    fn polled(&self) {
        let free = |block, freed_on| {
            let freed = self.free_anywhere(block, freed_on);
            debug_assert!(freed.is_ok(), "a block that was ours when it was deferred");
        };
        self.deferred
            .free_passed(|point| self.pool.streams().is_done(point), free);
    }

    fn holds_pending(&self) -> bool {
        self.arenas.trim() || !self.deferred.is_empty() || self.arenas.holds_pending()
    }

    fn idle_bytes(&self) -> u64 {
        self.arenas.free_bytes()
    }

    fn multi_stream_bytes(&self) -> u64 {
        self.deferred.bytes()
    }

    fn device_bytes(&self) -> u64 {
        let context = self.pool.context();
        let bytes = context.driver().device_bytes(context.device());
        bytes.unwrap_or(u64::MAX)
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
