//! Steps of streams: allocations that a stream repeats get planned places.
//!
//! Each stream that begins a step gets its own [`Steps`] behind its own lock. From then on, the steps see
//! every block of the stream. These blocks lie in the allocator's own range, so no memory is set aside: blocks
//! outside of plans, and other streams, use the same addresses. A place can serve only if it is free or was
//! last used by this stream, so no wait is ever needed.
//!
//! The lock of a stream's steps comes before all others except that of `sleep`. It is held during driver calls
//! for its stream: only threads that allocate or free on that stream take it.

use std::sync::{Arc, Mutex, OnceLock};

use cudarc::driver::CudaStream;
use larder_core::steps::{PlaceAllocator, Served, StepConfig, StepStats, Steps};
use larder_core::{
    AddrRange, AllocError, BestFit, Block, ChunkHandle, ChunkInfo, ChunkState, FreeError, Grant,
    Granule, Rejected, Request, StreamId,
};

use super::device_pool::PagedStreamPool;
use super::{DeviceAllocError, DeviceAllocator, DeviceInner, step_tables};
use crate::driver::locked;
use crate::stream::pool::{ByStream, HostWait};
use crate::with_tables::WithTables;

/// The steps of one stream.
struct Planned {
    steps: WithTables<Steps<'static>>,
    /// Number of nested steps that have begun.
    depth: usize,
    /// Number of earlier streams that had the number of the stream that these steps belong to.
    before: u64,
}

impl Planned {
    fn new(config: StepConfig) -> Self {
        Self {
            // SAFETY: the tables go into the steps, which are never taken apart.
            steps: unsafe {
                WithTables::new(|tables| Steps::new(config, step_tables::lend(tables)))
            },
            depth: 0,
            before: 0,
        }
    }
}

/// The steps of all streams, by number.
pub(super) struct StepStreams {
    config: StepConfig,
    by_stream: ByStream<OnceLock<Mutex<Planned>>>,
}

impl StepStreams {
    pub(super) fn new(config: StepConfig) -> Self {
        Self {
            config,
            by_stream: ByStream::default(),
        }
    }

    /// Returns the steps of a stream; `None` if it has never begun one.
    fn of(&self, stream_id: StreamId) -> Option<&Mutex<Planned>> {
        self.by_stream[stream_id].get()
    }

    fn make(&self, stream_id: StreamId) -> &Mutex<Planned> {
        self.by_stream[stream_id].get_or_init(|| Mutex::new(Planned::new(self.config)))
    }
}

/// A step of a stream, which begins with [`DeviceAllocator::step`] and ends when this is dropped.
#[must_use = "the step ends where this is dropped"]
#[derive(Debug)]
pub struct DeviceStep {
    memory: DeviceAllocator,
    stream_id: StreamId,
    /// Keeps the stream's number in use.
    _stream: Arc<CudaStream>,
}

impl Drop for DeviceStep {
    fn drop(&mut self) {
        let inner = &*self.memory.0;
        if let Some(planned) = inner.steps.of(self.stream_id) {
            let mut planned = locked(planned);
            planned.depth = planned.depth.saturating_sub(1);
            if planned.depth == 0 {
                planned.steps.end();
                inner.end_step();
            }
        }
        inner.pool.node().shared().notify();
    }
}

impl DeviceAllocator {
    /// Begins a step of a stream: a training step, a request, or anything else that repeatedly allocates nearly
    /// the same blocks on the stream. The first such step records when each block is allocated and freed. From
    /// then on, a step that begins in the same way is served from a plan in which blocks that are never live
    /// together share memory. Requests that differ from the plan are still served. Blocks may outlive their
    /// step, and may be freed on any stream.
    ///
    /// A step begun inside another step of the same stream is part of it. The first step of a stream reserves
    /// about a hundred megabytes of addresses for tables, of which only the used part gets memory. Afterwards
    /// each allocation of the stream costs an additional lock and a walk to its place. The first allocation of
    /// a known step also walks over the live blocks, and computes a layout if they have changed. Blocks of
    /// other streams that are longer than 64 KiB are obstacles to a plan, at their addresses when the plan is
    /// made. Shorter ones lie together in their stream's pieces of 2 MiB, unless
    /// [`ArenaPolicy::Never`](super::ArenaPolicy::Never) forbids it. If blocks
    /// [freed for several streams](Self::free_used_on) are waiting, a step begins with a few driver calls that
    /// query whether their streams are done.
    ///
    /// Memory in [regions](super::DeviceBacking::Regions) is not planned: a step then has no effect.
    ///
    /// ```no_run
    /// # let context = larder_cuda::Context::new(0)?;
    /// # let stream = context.cudarc().new_stream()?;
    /// let memory = larder_cuda::DeviceAllocator::new(&context)?;
    /// for _ in 0..100 {
    ///     let _step = memory.step(&stream)?;
    ///     // allocate, launch, free
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`DeviceAllocError::Stream`], [`DeviceAllocError::Streams`].
    pub fn step(&self, stream: &Arc<CudaStream>) -> Result<DeviceStep, DeviceAllocError> {
        self.step_keyed(stream, 0)
    }

    /// Begins a step of a kind that the program names: the step is compared only with others that have the same
    /// `key`. The key 0 is for steps without a name. See [`step`](Self::step).
    ///
    /// # Errors
    /// [`DeviceAllocError::Stream`], [`DeviceAllocError::Streams`].
    pub fn step_keyed(
        &self,
        stream: &Arc<CudaStream>,
        key: u64,
    ) -> Result<DeviceStep, DeviceAllocError> {
        let inner = &*self.0;
        let stream_id = inner.pool.streams().id(stream)?;
        let step = DeviceStep {
            memory: self.clone(),
            stream_id,
            _stream: stream.clone(),
        };
        if inner.pool.pages().is_none() {
            return Ok(step);
        }
        let planned = inner.steps.make(stream_id);
        // The steps see every block of the stream from now on.
        inner.routes.set_steps(stream_id);
        inner.arenas.keep_apart_from_steps();
        // Frees the deferred blocks whose streams have reached their points, so that they obstruct no plan. No
        // event may be queried during a capture.
        if !inner.deferred.is_empty() && inner.pool.streams().captures(stream) == Ok(false) {
            inner.pool.streams().close_all();
            inner.pool.poll();
        }
        let mut planned = locked(planned);
        let before = inner.pool.streams().before(stream_id);
        if planned.before != before {
            planned.before = before;
            planned.steps.start_over();
        }
        planned.depth += 1;
        if planned.depth == 1 {
            planned.steps.begin(key);
        }
        drop(planned);
        Ok(step)
    }

    /// Starts over, for example when a program begins to train another model: the step after the current one is
    /// expected to be like the stream's first.
    pub fn start_over(&self, stream: &Arc<CudaStream>) {
        self.with_steps(stream, Steps::start_over);
    }

    /// Returns the counters of a stream's steps; `None` if it never began one.
    pub fn step_stats(&self, stream: &Arc<CudaStream>) -> Option<StepStats> {
        self.with_steps(stream, |steps| steps.stats())
    }

    fn with_steps<R>(
        &self,
        stream: &Arc<CudaStream>,
        act: impl FnOnce(&mut Steps<'static>) -> R,
    ) -> Option<R> {
        let inner = &*self.0;
        let stream_id = inner.pool.streams().known(stream).ok()??;
        let mut planned = locked(inner.steps.of(stream_id)?);
        Some(act(&mut planned.steps))
    }
}

impl DeviceInner {
    /// Allocates for a stream that has steps.
    #[cold]
    pub(super) fn alloc_in_step(
        &self,
        stream: &Arc<CudaStream>,
        stream_id: StreamId,
        request: &Request,
        host: HostWait,
    ) -> Result<Block, DeviceAllocError> {
        let (Some(planned), Some(pages)) = (self.steps.of(stream_id), self.pool.pages()) else {
            return self.alloc(stream, stream_id, request, host);
        };
        let mut planned = locked(planned);
        let mut below = DevicePlaces {
            inner: self,
            pages,
            stream: Some(stream),
            stream_id,
            host,
        };
        match planned.steps.alloc(&mut below, request)? {
            Served::Here(grant) => Ok(grant.block),
            // Happens only if the steps are for planned blocks alone.
            Served::Elsewhere(_) => self.alloc(stream, stream_id, request, host),
        }
    }

    /// Frees a block on a stream that has steps.
    #[cold]
    pub(super) fn free_in_step(
        &self,
        stream_id: StreamId,
        block: Block,
    ) -> Result<(), Rejected<FreeError>> {
        let (Some(planned), Some(pages)) = (self.steps.of(stream_id), self.pool.pages()) else {
            return self.free_to_pool(stream_id, block);
        };
        let mut planned = locked(planned);
        let mut below = DevicePlaces {
            inner: self,
            pages,
            stream: None,
            stream_id,
            host: HostWait::MustNotBlock,
        };
        planned.steps.free(&mut below, block)
    }
}

/// The allocator below a stream's plans.
struct DevicePlaces<'a> {
    inner: &'a DeviceInner,
    pages: &'a PagedStreamPool,
    /// `None` while a block is freed.
    stream: Option<&'a Arc<CudaStream>>,
    stream_id: StreamId,
    host: HostWait,
}

impl DevicePlaces<'_> {
    /// Returns whether pages may be mapped now; they may not during a capture or a free.
    fn may_map(&self) -> bool {
        self.stream
            .is_some_and(|stream| self.inner.pool.streams().captures(stream) == Ok(false))
    }
}

impl PlaceAllocator for DevicePlaces<'_> {
    type Error = DeviceAllocError;

    fn alloc(&mut self, request: &Request) -> Result<Grant, DeviceAllocError> {
        let Some(stream) = self.stream else {
            return Err(self.inner.pool.refusal(AllocError::PlaceTaken));
        };
        let block = self
            .inner
            .alloc(stream, self.stream_id, request, self.host)?;
        Ok(Grant { block, wait: None })
    }

    fn alloc_at(
        &mut self,
        range: AddrRange,
        near: Option<ChunkHandle>,
    ) -> Result<Block, AllocError> {
        let pool = self.pages;
        let mapped = pool
            .shared()
            .with(|paged| paged.alloc_at(range, near, Some(self.stream_id)));
        let block = match mapped {
            Err(AllocError::PlaceTaken) if self.may_map() => {
                pool.shared().alloc_at(range, near, Some(self.stream_id))?
            }
            mapped => mapped?,
        };
        let bytes = block.bytes();
        let account = pool.streams.account(self.stream_id);
        pool.shared().with(|_| account.allocated(bytes));
        Ok(block)
    }

    fn free(&mut self, block: Block) -> Result<(), Rejected<FreeError>> {
        self.inner.free_to_pool(self.stream_id, block)
    }

    fn missing_bytes(&mut self, range: AddrRange) -> u64 {
        let stream_id = Some(self.stream_id);
        self.pages
            .shared()
            .with(|paged| paged.missing_bytes(range, stream_id))
    }

    fn prepare(&mut self, range: AddrRange, layout: AddrRange, max_bytes: u64) -> bool {
        let pool = self.pages;
        if pool.shared().with(|paged| paged.is_mapped(range)) {
            return true;
        }
        let point = self.inner.pool.streams().point(self.stream_id);
        self.may_map() && pool.shared().back(range, layout, max_bytes, Some(point))
    }

    fn for_each_block(&self, f: &mut dyn FnMut(ChunkHandle, AddrRange)) {
        let start = self.addresses().start();
        self.pages.shared().with(|paged| {
            // Whole chunks: no block of a step can lie at reserved addresses, with memory or without.
            paged.chunks_from(start, None, |info: ChunkInfo| {
                if let ChunkState::Used { .. } | ChunkState::Reserved { .. } = info.state {
                    f(info.handle, info.range);
                }
                true
            });
        });
    }

    fn addresses(&self) -> AddrRange {
        self.pages.shared().source().addresses()
    }

    fn granule(&self) -> Granule {
        Granule::DEFAULT
    }

    fn page_bytes(&self) -> u64 {
        self.pages.shared().source().page_bytes()
    }

    fn live_bytes(&self) -> u64 {
        self.pages.shared().with(|paged| paged.stats().live_bytes)
    }

    fn held_bytes(&self) -> u64 {
        self.pages
            .shared()
            .with(|paged| paged.stats().reserved_bytes)
    }
}
