//! [`PinnedAllocator`]: blocks of pinned host memory.
//!
//! The allocator is the core's best fit over regions of [`PinnedMemory`]. A block that streams still use when
//! its buffer is dropped is kept here, and later allocations query whether the streams are done; the host
//! waits only if there is no other memory. Freeing in the order of a stream is not enough: memory that a
//! stream's next work may use is not yet memory that the host may use.

use core::fmt;
use std::sync::{Arc, Mutex, Weak};

use cudarc::driver::CudaStream;
use larder_core::{AllocError, Block, BlockAllocator, RegionConfig, RegionPool, Request, Stats};
use larder_cuda_abi::StreamHandle;

use super::uses::PinnedUses;
use crate::driver::locked;
#[cfg(feature = "job")]
use crate::limits::LimitedPool;
use crate::limits::{self, Budget};
use crate::stream::pool::{BudgetedPool, PoolSource};
use crate::with_tables::WithTables;
use crate::{
    CaptureStatus, Context, DeviceAllocError, DriverError, Event, EventConfig, PinnedConfig,
    PinnedMemory,
};

/// Maximum number of blocks and gaps between them.
const CHUNKS: usize = 1 << 14;

/// A pool of pinned host memory that threads share. Clones share the pool.
///
/// The pool keeps its memory, since pinning takes about a second for 3 GiB; [`release`](Self::release) frees
/// idle regions. Dropping the last clone waits for the streams that still use dropped buffers.
///
/// ```no_run
/// use larder_cuda::{Context, DeviceAllocator, PinnedAllocator};
///
/// let context = Context::new(0)?;
/// let (device, host) = (DeviceAllocator::new(&context)?, PinnedAllocator::new(&context)?);
/// let stream = context.cudarc().new_stream()?;
/// let mut numbers = host.zeros::<f32>(1000)?;
/// numbers.as_mut_slice()?.fill(0.5);
/// let mut there = device.zeros::<f32>(&stream, 1000)?;
/// numbers.copy_to(&stream, &mut there)?; // goes on while the host does other things
/// numbers.as_mut_slice()?.fill(1.5);     // waits for the copy, and for nothing after it
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct PinnedAllocator(pub(super) Arc<PinnedInner>);

pub(super) struct PinnedInner {
    pub(super) pool: BudgetedPool<PinnedMemory, RegionPool<'static>>,
    events: Events,
    /// Known streams: their uses of buffers can be waited for later.
    streams: Mutex<Vec<Weak<CudaStream>>>,
    /// Freed blocks that streams still use.
    waiting: Mutex<Vec<(Block, PinnedUses)>>,
}

impl PinnedAllocator {
    /// Makes a pool without a limit, which holds nothing yet. Makes no driver call.
    ///
    /// # Errors
    /// [`DeviceAllocError::Budgets`] if the host has no memory for the budget's record.
    pub fn new(context: &Context) -> Result<Self, DeviceAllocError> {
        Self::with_limit(context, PinnedConfig::default(), u64::MAX)
    }

    /// Makes a pool with a configuration. It never holds more than `limit_bytes`. Makes no driver call.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    pub fn with_limit(
        context: &Context,
        config: PinnedConfig,
        limit_bytes: u64,
    ) -> Result<Self, DeviceAllocError> {
        Self::make(context, config, limit_bytes, None)
    }

    pub(super) fn make(
        context: &Context,
        config: PinnedConfig,
        limit_bytes: u64,
        budget: Option<&Budget>,
    ) -> Result<Self, DeviceAllocError> {
        let node = limits::pool_node(budget, "pinned memory", limit_bytes)
            .map_err(DeviceAllocError::Budgets)?;
        let memory = PinnedMemory::with_config(context, config).charged_to(node.clone());
        let pool = WithTables::regions(RegionConfig::new(limit_bytes), CHUNKS, memory);
        // Fails only for an invalid configuration or table, and both are fixed.
        let pool = pool.map_err(|_| DriverError::Size { bytes: limit_bytes })?;
        let inner = Arc::new(PinnedInner {
            events: Events::new(context),
            streams: Mutex::default(),
            waiting: Mutex::default(),
            pool: BudgetedPool::new(context, pool, node),
        });
        let pool: Weak<PinnedInner> = Arc::downgrade(&inner);
        limits::enter(pool, &inner.pool.node);
        // A budget above may exceed its limit.
        inner.pool.refresh_limit();
        Ok(Self(inner))
    }

    /// Adds the stream: from then on, the host waits for cudarc's copies of buffers on it only when the host
    /// needs the memory, not immediately. The buffers' own copies add their stream. A stream of another
    /// context is not added, since our events do not work there; the per-thread default stream is always
    /// waited for immediately.
    pub fn add_stream(&self, stream: &Arc<CudaStream>) {
        if stream.context().cu_ctx() != self.context().cudarc().cu_ctx() {
            return;
        }
        let mut streams = locked(&self.0.streams);
        streams.retain(|known| known.strong_count() > 0);
        let is_known = |known: &Weak<CudaStream>| known.as_ptr() == Arc::as_ptr(stream);
        if !streams.iter().any(is_known) {
            streams.push(Arc::downgrade(stream));
        }
    }

    /// Returns the kind of user that a stream is.
    pub(super) fn user(&self, stream: &CudaStream) -> BufferUser {
        let status = self.context().capture_status(stream);
        if status.is_ok_and(|status| status != CaptureStatus::None) {
            return BufferUser::Capture;
        }
        if stream.cu_stream().addr() == StreamHandle::PER_THREAD.0 {
            return BufferUser::Unknown;
        }
        let streams = locked(&self.0.streams);
        let mut known = streams.iter().filter_map(Weak::upgrade);
        let known = known.find(|known| **known == *stream);
        known.map_or(BufferUser::Unknown, BufferUser::Known)
    }

    /// Allocates a block that no work uses. O(1) and no driver call while a free chunk fits and no dropped
    /// buffer waits for its streams; otherwise a few calls for each dropped buffer whose streams are done,
    /// and for each busy stream. No free memory of the pool has a stream point, so it serves requests for any
    /// stream.
    pub(super) fn take(&self, request: &Request) -> Result<Block, DeviceAllocError> {
        let inner = &*self.0;
        inner.poll();
        if inner.pool.over_limit.is_on() {
            // This also polls dropped buffers.
            inner
                .pool
                .allocates_over_limit(|| inner.none_live(), || inner.shrink());
        }
        inner.pool.shared().source().forget_over_budget();
        let found = match inner.pool.shared().alloc(request) {
            Err(AllocError::OutOfMemory(_)) if inner.wait_for_one() => {
                inner.poll();
                inner.pool.shared().alloc(request)
            }
            other => other,
        };
        inner.pool.node.shared().notify();
        match found {
            Ok(grant) => Ok(grant.block),
            Err(reason) => Err(inner.pool.refusal(reason, 0, || u64::MAX)),
        }
    }

    /// Frees a block, now or once its uses are over. The host does not wait.
    pub(super) fn take_back(&self, block: Block, mut uses: PinnedUses) {
        let bytes = block.bytes();
        if uses.is_empty() {
            self.0.free(block);
        } else {
            uses.end_all(&self.0.events);
            locked(&self.0.waiting).push((block, uses));
        }
        if self.0.pool.over_limit.is_on() {
            self.0.freed_over_limit(bytes);
        }
    }

    /// Returns the address by which kernels reach a block.
    pub(super) fn device_address(&self, address: u64) -> Result<u64, DriverError> {
        self.0
            .pool
            .shared()
            .source()
            .source()
            .device_address(address)
    }

    pub(super) fn pool(&self) -> &impl BlockAllocator {
        self.0.pool.shared()
    }

    /// Returns whether events can be recorded for work queued on the stream.
    pub(super) fn can_follow(&self, stream: &CudaStream) -> bool {
        let is_ours = stream.context().cu_ctx() == self.context().cudarc().cu_ctx();
        is_ours && stream.cu_stream().addr() != StreamHandle::PER_THREAD.0
    }

    pub(super) fn events(&self) -> &Events {
        &self.0.events
    }

    /// Returns the context of the memory.
    pub fn context(&self) -> &Context {
        self.0.events.context()
    }

    /// Returns the counters; blocks that wait for streams count as live.
    pub fn stats(&self) -> Stats {
        self.0.pool.stats()
    }

    /// Returns the peak of live bytes since the last call, or since the pool was made, and begins the next
    /// interval. [`stats`](Self::stats) is not affected.
    pub fn take_peak(&self) -> u64 {
        self.0.pool.take_peak()
    }

    /// Returns this allocator as a pool with a limit. The result does not keep the allocator alive.
    #[cfg(feature = "job")]
    pub(crate) fn as_pool(&self) -> Weak<dyn LimitedPool> {
        let pool: Weak<PinnedInner> = Arc::downgrade(&self.0);
        pool
    }

    /// Restarts the counters; see [`Stats::clear`](larder_core::Stats::clear).
    pub fn clear_stats(&self) {
        self.0.pool.clear_stats();
    }

    /// Releases idle regions to the driver and returns their bytes.
    pub fn release(&self) -> u64 {
        self.0.poll();
        let released = self.0.pool.shared().trim();
        self.0.pool.node.shared().notify();
        released
    }
}

impl PinnedInner {
    fn free(&self, block: Block) {
        let freed = self.pool.shared().free(block);
        debug_assert!(freed.is_ok(), "a block of this pool");
    }

    /// Returns whether the program has freed all blocks, even if streams still use some.
    pub(super) fn none_live(&self) -> bool {
        let waiting = locked(&self.waiting);
        let freed: u64 = waiting.iter().map(|(block, _)| block.bytes()).sum();
        self.pool.stats().live_bytes <= freed
    }

    /// Frees the waiting blocks that no stream uses any longer. A few driver calls for each of them, and for
    /// each busy stream.
    pub(super) fn poll(&self) {
        let mut waiting = locked(&self.waiting);
        if waiting.is_empty() {
            return;
        }
        let mut busy = Vec::new();
        // If the driver refuses the capture mode, nothing is freed until the next poll.
        let _ = self.events.context().driver().relaxed(|| {
            let over = waiting.extract_if(.., |(_, uses)| uses.are_over(&self.events, &mut busy));
            for (block, _) in over {
                self.free(block);
            }
            Ok(())
        });
    }

    /// Waits on the host for the uses of all waiting blocks. Returns whether any of the waits succeeded.
    fn wait_for_one(&self) -> bool {
        let mut waiting = locked(&self.waiting);
        let mut waited = false;
        for (_, uses) in waiting.iter_mut() {
            waited |= uses.wait(&self.events, true).is_ok();
        }
        waited
    }
}

impl Drop for PinnedInner {
    fn drop(&mut self) {
        self.wait_for_one();
        self.poll();
        let left = core::mem::take(&mut *locked(&self.waiting));
        let unwaited = left.into_iter().flat_map(|(_, uses)| uses.into_unwaited());
        self.pool.ends_behind(unwaited.collect());
    }
}

impl fmt::Debug for PinnedAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedAllocator")
            .field("context", self.context())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// A kind of user of a buffer.
pub(super) enum BufferUser {
    /// A stream that can be waited for later.
    Known(Arc<CudaStream>),
    /// A stream that is waited for immediately.
    Unknown,
    /// A graph that is being captured. The program waits for its launches.
    Capture,
}

impl BufferUser {
    pub(super) const fn captures(&self) -> bool {
        matches!(self, Self::Capture)
    }
}

/// Events, kept for reuse.
pub(super) struct Events {
    context: Context,
    spare: Mutex<Vec<Event>>,
}

impl Events {
    fn new(context: &Context) -> Self {
        Self {
            context: context.clone(),
            spare: Mutex::default(),
        }
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    pub(super) fn take(&self) -> Result<Event, DriverError> {
        match locked(&self.spare).pop() {
            Some(event) => Ok(event),
            None => Event::new(&self.context, EventConfig::default()),
        }
    }

    pub(super) fn give_some(&self, event: Option<Event>) {
        locked(&self.spare).extend(event);
    }

    pub(super) fn give(&self, event: Event) {
        locked(&self.spare).push(event);
    }
}
