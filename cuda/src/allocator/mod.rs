//! [`DeviceAllocator`]: a device's memory in the order of streams.
//!
//! The core's paged best fit over one range of addresses ([`VirtualMemory`]), with streams as lanes
//! (`streams`). A block is freed in the order of a stream: it is given again at once on that stream,
//! and to another one after a wait that the device makes, never the host. Nothing on the way of an
//! allocation that fits, or of a free, calls the driver, but for that wait.
//!
//! # When nothing fits
//! 1. What events have passed counts as free for all, and the search is made again.
//! 2. Pages move, or memory is created, as the core's [`Backing`] says.
//! 3. If that fails while freed memory is pending: the host waits for it, and all is tried once more.
//! 4. An error with the numbers.
//!
//! # Locks
//! That of the core for bookkeeping; those of the lanes, also while an event is recorded. No thread
//! holds both.

mod error;
mod parked;
mod step_tables;
mod steps;
mod streams;
mod tables;

use core::fmt;
use core::mem::ManuallyDrop;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_core::lifetime::StepConfig;
use larder_core::paged::{Backing, PageStats, PagedAllocator, PagedBfc, PagedConfig};
use larder_core::{
    AllocError, Block, BlockAllocator, FreeError, FreeRejected, Grant, Lane, NoIndex, Request,
    Stats,
};

pub use error::{DeviceAllocError, DeviceFreeError, DeviceFreeRejected};
use parked::Parked;
pub use steps::DeviceStep;
use steps::StepLanes;
use streams::Streams;

use crate::{CaptureStatus, Context, DriverError, VirtualCalls, VirtualMemory};

/// Addresses for each byte of the device. Moving pages leaves holes, which cost addresses only.
const ADDRESSES_A_BYTE: u64 = 8;

/// Most addresses: the core counts 2^32 granules of 256 bytes, less one; this is a little under that.
const MOST_ADDRESSES: u64 = (1 << 40) - (1 << 30);

/// How threads wait for the core's lock: its owner may be off the processor.
#[derive(Debug)]
struct Yield;

impl larder_core::Wait for Yield {
    fn wait() {
        std::thread::yield_now();
    }
}

/// How a [`DeviceAllocator`] is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceConfig {
    /// When pages move.
    pub backing: Backing,
    /// Most bytes held.
    pub limit_bytes: u64,
    /// Addresses reserved, 1023 GiB at most; 0 for eight times the device's memory, or that most.
    pub address_bytes: u64,
    /// How [steps](DeviceAllocator::step) are planned.
    pub steps: StepConfig,
}

impl DeviceConfig {
    /// No limit; what is held costs, so idle pages move before more is created.
    pub const fn new() -> Self {
        Self {
            backing: Backing::Billed,
            limit_bytes: u64::MAX,
            address_bytes: 0,
            steps: StepConfig::new(),
        }
    }

    /// This many bytes are ours: nothing moves until most of them are held.
    pub const fn with_budget(bytes: u64) -> Self {
        Self {
            backing: Backing::Budget(bytes),
            limit_bytes: bytes,
            address_bytes: 0,
            steps: StepConfig::new(),
        }
    }
}

impl Default for DeviceConfig {
    fn default() -> Self {
        Self::new()
    }
}

type Pool = PagedAllocator<'static, VirtualMemory, NoIndex, Yield>;

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
pub struct DeviceAllocator(Arc<Inner>);

struct Inner {
    streams: Streams,
    parked: Parked,
    steps: StepLanes,
    /// Taken apart in `drop`.
    pool: ManuallyDrop<Pool>,
}

impl DeviceAllocator {
    /// All of the device's memory.
    ///
    /// # Errors
    /// If the driver refuses, or the device cannot map memory.
    pub fn new(context: &Context) -> Result<Self, DeviceAllocError> {
        Self::with_config(context, DeviceConfig::new())
    }

    /// The same, as the configuration says.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_config(context: &Context, config: DeviceConfig) -> Result<Self, DeviceAllocError> {
        let address_bytes = match config.address_bytes {
            0 => {
                let device = context.device_info()?;
                let wanted = device.total_bytes.saturating_mul(ADDRESSES_A_BYTE);
                wanted.min(MOST_ADDRESSES)
            }
            bytes if bytes > MOST_ADDRESSES => return Err(DriverError::Size { bytes }.into()),
            bytes => bytes,
        };
        let memory = VirtualMemory::new(context, address_bytes)?;
        let mut paged = PagedConfig::new(memory.addresses(), config.backing);
        paged.page_bytes = memory.page_bytes();
        paged.bfc.limit_bytes = config.limit_bytes;
        let (chunks, tables) = tables::lend(&paged);
        let paged = PagedBfc::new(paged, chunks, tables).map_err(|_| {
            // Only a page that is no multiple of the granule, which no driver has.
            DriverError::Size {
                bytes: memory.page_bytes(),
            }
        })?;
        Ok(Self(Arc::new(Inner {
            streams: Streams::new(context),
            parked: Parked::default(),
            steps: StepLanes::new(config.steps),
            pool: ManuallyDrop::new(PagedAllocator::with_wait(paged, memory)),
        })))
    }

    /// Gives memory for work that is queued on `stream` from now on. O(1) and no driver call while
    /// something fits that this stream, or none, used last; one wait of the stream if another did.
    ///
    /// # Errors
    /// [`DeviceAllocError`].
    pub fn alloc(&self, stream: &Arc<CudaStream>, bytes: u64) -> Result<Block, DeviceAllocError> {
        let inner = &*self.0;
        let lane = inner.streams.lane(stream)?;
        let request = Request::new(bytes).on(lane);
        if inner.has_steps(lane) {
            return inner.alloc_in_step(stream, lane, &request);
        }
        inner.alloc(stream, lane, &request)
    }

    /// Takes a block back. Work that uses it is queued on `stream` already, or is ordered before what
    /// is queued there now. O(1), no driver call.
    ///
    /// A stream of another context, or one more than can be told apart, is waited for.
    ///
    /// # Errors
    /// Gives the block back if it is not one of ours, or waiting was refused.
    pub fn free(&self, stream: &Arc<CudaStream>, block: Block) -> Result<(), DeviceFreeRejected> {
        let inner = &*self.0;
        let freed = match inner.streams.lane(stream) {
            Ok(lane) if inner.has_steps(lane) => inner.free_in_step(stream, lane, block),
            Ok(lane) => inner.pool.free_after(block, inner.streams.stamp(lane)),
            Err(_) => {
                if let Err(error) = inner.context().wait_for(stream) {
                    let error = DeviceFreeError::Driver(error);
                    return Err(DeviceFreeRejected { block, error });
                }
                inner.pool.free(block)
            }
        };
        freed.map_err(rejected)
    }

    /// Takes a block back that several streams use; the first one gets it again soonest. It is given
    /// again when the others were seen to have passed: nothing waits for that, on the host or on the
    /// device. Until then it counts as live. O(streams), no driver call.
    ///
    /// # Errors
    /// As [`free`](Self::free).
    pub fn free_used_on(
        &self,
        streams: &[Arc<CudaStream>],
        block: Block,
    ) -> Result<(), DeviceFreeRejected> {
        let inner = &*self.0;
        let Some((first, others)) = streams.split_first() else {
            return inner.pool.free(block).map_err(rejected);
        };
        let mut lanes = Vec::new();
        for stream in others {
            match inner.streams.lane(stream) {
                Ok(lane) if lanes.contains(&lane) => {}
                Ok(lane) => lanes.push(lane),
                Err(_) => {
                    if let Err(error) = inner.context().wait_for(stream) {
                        let error = DeviceFreeError::Driver(error);
                        return Err(DeviceFreeRejected { block, error });
                    }
                }
            }
        }
        let home = inner.streams.lane(first);
        lanes.retain(|lane| home != Ok(*lane));
        let (Ok(home), false) = (home, lanes.is_empty()) else {
            return self.free(first, block);
        };
        if inner.pool.requested_bytes(&block).is_none() {
            let error = DeviceFreeError::Block(FreeError::Unknown);
            return Err(DeviceFreeRejected { block, error });
        }
        let others = lanes.iter().map(|lane| inner.streams.stamp(*lane));
        let home = inner.streams.stamp(home);
        inner.parked.park(block, home, others.collect());
        Ok(())
    }

    /// Makes work that is queued on `stream` from now on wait, on the device, for all that is queued on
    /// `after` now. At most two events' calls, and none for one stream.
    ///
    /// # Errors
    /// [`DeviceAllocError::Capturing`] if one of them captures: then the program forks and joins by
    /// events of its own. [`DeviceAllocError::Stream`], [`DeviceAllocError::Streams`], and if the driver
    /// refuses.
    pub fn order_after(
        &self,
        stream: &Arc<CudaStream>,
        after: &Arc<CudaStream>,
    ) -> Result<(), DeviceAllocError> {
        let streams = &self.0.streams;
        let (lane, after) = (streams.lane(stream)?, streams.lane(after)?);
        if streams.order(stream, lane, streams.stamp(after))? {
            Ok(())
        } else {
            Err(DeviceAllocError::Capturing)
        }
    }

    /// Where the memory lives.
    pub fn context(&self) -> &Context {
        self.0.context()
    }

    /// Counters now.
    pub fn stats(&self) -> Stats {
        self.0.pool.stats()
    }

    /// Counters of pages.
    pub fn page_stats(&self) -> PageStats {
        self.0.pool.page_stats()
    }

    /// Calls of the driver that created, mapped or gave back memory, by kind.
    pub fn driver_calls(&self) -> VirtualCalls {
        self.0.pool.driver().calls()
    }

    /// A step of the program ends: what it repeats is counted by these.
    pub fn end_step(&self) {
        self.0.pool.end_step();
    }

    /// Gives idle memory back to the driver; the bytes. Work that is queued is not waited for.
    pub fn release(&self, bytes: u64) -> u64 {
        self.0.streams.close_all();
        self.0.poll();
        self.0.pool.release(bytes)
    }
}

impl Inner {
    fn context(&self) -> &Context {
        self.pool.driver().context()
    }

    /// Gives memory to a stream whose lane is given.
    #[inline]
    fn alloc(
        &self,
        stream: &Arc<CudaStream>,
        lane: Lane,
        request: &Request,
    ) -> Result<Block, DeviceAllocError> {
        let found = self.pool.with(|paged| paged.alloc_now(request));
        let settled = match found.map_err(|reason| self.refusal(reason))? {
            Some(grant) => self.settle(stream, lane, grant)?,
            None => None,
        };
        match settled {
            Some(block) => Ok(block),
            None => self.alloc_more(stream, lane, request),
        }
    }

    fn captures(&self, stream: &CudaStream) -> Result<bool, DriverError> {
        Ok(self.context().capture_status(stream)? != CaptureStatus::None)
    }

    /// A block that was found; its stream waits for whoever used it last. `None` if a capture forbids
    /// that: the block is free again then.
    fn settle(
        &self,
        stream: &Arc<CudaStream>,
        lane: Lane,
        grant: Grant,
    ) -> Result<Option<Block>, DeviceAllocError> {
        let Some(stamp) = grant.wait else {
            return Ok(Some(grant.block));
        };
        let ordered = self.streams.order(stream, lane, stamp);
        if ordered == Ok(true) {
            return Ok(Some(grant.block));
        }
        // As it was: still in use by the other stream.
        let _ = self.pool.free_after(grant.block, stamp);
        ordered?;
        Ok(None)
    }

    #[cold]
    fn alloc_more(
        &self,
        stream: &Arc<CudaStream>,
        lane: Lane,
        request: &Request,
    ) -> Result<Block, DeviceAllocError> {
        if self.captures(stream)? {
            return Err(DeviceAllocError::Capturing);
        }
        self.streams.close_all();
        self.poll();
        if let Some(block) = self.settle(stream, lane, self.search(request)?)? {
            return Ok(block);
        }
        // Another stream captures, so it cannot be waited for.
        let request = request.without_wait();
        let grant = self.search(&request)?;
        self.settle(stream, lane, grant)?
            .ok_or(DeviceAllocError::Capturing)
    }

    /// Gives memory by all means, in the order above.
    fn search(&self, request: &Request) -> Result<Grant, DeviceAllocError> {
        let outcome = match self.pool.alloc(request) {
            Err(AllocError::OutOfMemory(out))
                if out.pending_bytes > 0 || !self.parked.is_empty() =>
            {
                self.streams.wait()?;
                self.poll();
                self.pool.alloc(request)
            }
            other => other,
        };
        outcome.map_err(|reason| self.refusal(reason))
    }

    /// Tells the core how far the streams are, and frees what several of them have passed.
    fn poll(&self) {
        self.streams
            .poll(|lane, epoch| self.pool.complete(lane, epoch));
        for (block, home) in self.parked.take(|stamp| self.streams.is_done(stamp)) {
            let freed = self.pool.free_after(block, home);
            debug_assert!(freed.is_ok(), "a block that was ours when it was parked");
        }
    }

    fn refusal(&self, reason: AllocError) -> DeviceAllocError {
        let driver = match reason {
            AllocError::OutOfMemory(_) => self.pool.driver().last_error(),
            _ => None,
        };
        DeviceAllocError::Memory { reason, driver }
    }
}

fn rejected(rejected: FreeRejected) -> DeviceFreeRejected {
    DeviceFreeRejected {
        block: rejected.block,
        error: DeviceFreeError::Block(rejected.error),
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.streams.close_all();
        // What failed on the device can use no memory either.
        let _ = self.streams.wait();
        // SAFETY: taken once, here, and the field is not used again.
        let pool = unsafe { ManuallyDrop::take(&mut self.pool) };
        let (paged, memory) = pool.into_parts();
        drop(memory);
        tables::take_back(paged);
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
