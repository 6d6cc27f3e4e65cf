//! [`DeviceTensorPool`]: device memory planned from a program's steps, after DeepRec's PRMalloc.
//!
//! This is the core's [`TensorPool`] over a [`DeviceAllocator`]: slabs, and blocks without a place in the
//! plan, come from the same memory as everything else, in the order of the pool's stream.
//!
//! # One stream
//! TENSOR1 A freed block of the plan may be reused by the next call, without a wait: its new user queues work
//! on the same stream, after the work that used it before. So a pool belongs to one stream. If work on
//! another stream uses a block, the caller makes that work wait for the pool's stream first, and makes the
//! pool's stream wait for that work before the block is freed.

mod config;
mod on_stream;

use core::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use cudarc::driver::CudaStream;
use larder_core::prmalloc::{OpenStep, PlanError, PlannerProgress, PoolCounts, Round, TensorPool};
use larder_core::{
    AddrRange, Align, AllocError, AllocatorId, Block, ChunkHandle, FreeError, Rejected, Request,
};
use larder_cuda_abi::StreamHandle;

pub use config::TensorPoolConfig;
use on_stream::StreamSource;

use crate::driver::locked;
use crate::lock_wait::Yield;
use crate::stream::allocator::{BLOCK_ALIGN, Live};
use crate::stream::per_stream::OneStream;
use crate::{DeviceAllocError, DeviceAllocator, DeviceFreeError};

/// Number of the next pool, carried by its blocks.
static MADE: AtomicU32 = AtomicU32::new(1);

/// Memory of one stream, planned from a program's steps.
///
/// The first steps are recorded while the device's allocator serves them. Once they bring nothing new, or
/// enough has been recorded, one slab is allocated for all sizes above 32 KiB and one for the smaller ones.
/// From then on, blocks are popped off stacks, without a driver call or a search. The device's allocator
/// serves requests beyond the plan; if these continue, the steps are recorded anew. For the guarantees of a
/// plan, see [`larder_core::prmalloc`].
///
/// Any thread may call it, but all work on its blocks belongs on its stream, since work queued after a free
/// may reuse the block immediately (see [`free`](Self::free)).
///
/// Blocks are values without a destructor. Dropping the pool frees everything to the device's allocator in
/// the order of the stream, including blocks in use.
///
/// ```no_run
/// use larder_cuda::{Context, DeviceAllocator, DeviceTensorPool, TensorPoolConfig};
///
/// let context = Context::new(0)?;
/// let memory = DeviceAllocator::new(&context)?;
/// let stream = context.cudarc().new_stream()?;
/// let pool = DeviceTensorPool::new(&memory, &stream, TensorPoolConfig::new())?;
/// for _ in 0..1000 {
///     let _step = pool.step();
///     let block = pool.alloc(1 << 20)?;
///     // kernels on `stream` use `block.addr()`
///     pool.free(block)?;
/// }
/// println!("{:?}", pool.counts());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct DeviceTensorPool {
    pool: TensorPool<StreamSource, Yield>,
    /// The handle that its blocks carry.
    number: ChunkHandle,
    live_blocks: AtomicU64,
    live_bytes: AtomicU64,
    plan_error: Mutex<Option<PlanError>>,
}

impl DeviceTensorPool {
    /// Makes a pool at step 0 without a plan. Allocates its tables on the host, and nothing on the device.
    ///
    /// # Errors
    /// [`DeviceAllocError::Stream`] if the stream belongs to another context than the memory, or is the
    /// per-thread default stream. [`DeviceAllocError::Config`] if the process heap has no memory for the
    /// tables.
    pub fn new(
        memory: &DeviceAllocator,
        stream: &Arc<CudaStream>,
        config: TensorPoolConfig,
    ) -> Result<Self, DeviceAllocError> {
        let is_ours = stream.context().cu_ctx() == memory.context().cudarc().cu_ctx();
        if !is_ours || stream.cu_stream().addr() == StreamHandle::PER_THREAD.0 {
            return Err(DeviceAllocError::Stream);
        }
        let number = ChunkHandle::new(MADE.fetch_add(1, Ordering::Relaxed));
        let backend = StreamSource::new(memory.clone(), stream.clone());
        // Twice as many slots as blocks make look-ups fast.
        let live = config.live.saturating_mul(2);
        let pool = TensorPool::new(config.pool, config.room(), live, backend);
        Ok(Self {
            pool: pool.map_err(DeviceAllocError::Config)?,
            // The number wraps to 0, which is invalid, once in 2^32 pools.
            number: number.ok_or(DeviceAllocError::Stream)?,
            live_blocks: AtomicU64::new(0),
            live_bytes: AtomicU64::new(0),
            plan_error: Mutex::new(None),
        })
    }

    /// Allocates at a multiple of 256 for work queued on the stream from now on. An allocation from the plan
    /// takes O(log bins), and no driver call except that of
    /// [`check_captures`](crate::DeviceConfig::check_captures); any other costs the same as
    /// [`DeviceAllocator::alloc`].
    ///
    /// # Errors
    /// [`DeviceAllocError::Capturing`] if the stream is being captured, since plans have no windows.
    /// [`DeviceAllocError::Memory`] if the request is invalid or the pool's tables are full, and the errors
    /// of [`DeviceAllocator::alloc`].
    pub fn alloc(&self, bytes: u64) -> Result<Block, DeviceAllocError> {
        self.alloc_aligned(bytes, BLOCK_ALIGN)
    }

    /// Allocates at a multiple of `align` for work queued on the stream from now on. An alignment below 256
    /// packs small blocks of a plan more closely; one above 256 makes a block outside of the plan longer by
    /// that many bytes.
    ///
    /// # Errors
    /// The errors of [`alloc`](Self::alloc).
    pub fn alloc_aligned(&self, bytes: u64, align: Align) -> Result<Block, DeviceAllocError> {
        self.memory().refuse_capture(self.stream())?;
        let addr = self.pool.alloc(bytes, align).map_err(|error| {
            let below = match error {
                AllocError::OutOfMemory(_) => self.pool.backend().refusal(),
                _ => None,
            };
            below.unwrap_or(DeviceAllocError::reason(error))
        })?;
        let too_large = AllocError::TooLarge {
            requested_bytes: bytes,
        };
        let range = AddrRange::new(addr, bytes);
        let range = range.ok_or(DeviceAllocError::reason(too_large))?;
        self.live_blocks.fetch_add(1, Ordering::Relaxed);
        self.live_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(Block::outside(range, self.number))
    }

    /// Frees a block of this pool, in the present plan or not. All work that uses the block must already be
    /// queued on the pool's stream, or that stream must wait for it, since the block may be reused
    /// immediately (TENSOR1). Takes O(log bins) for a block of the plan; any other costs the same as
    /// [`DeviceAllocator::free`].
    ///
    /// # Errors
    /// Returns the block if it is not one of this pool's.
    pub fn free(&self, block: Block) -> Result<(), Rejected<DeviceFreeError>> {
        if !self.owns(&block) {
            return Err(DeviceFreeError::unknown(block));
        }
        if let Err(error) = self.pool.free(block.addr()) {
            let below = match error {
                FreeError::SubAllocator => self.pool.backend().free_refusal(),
                _ => None,
            };
            let error = below.unwrap_or(DeviceFreeError::Block(error));
            return Err(Rejected::new(block, error));
        }
        self.live_blocks.fetch_sub(1, Ordering::Relaxed);
        self.live_bytes.fetch_sub(block.bytes(), Ordering::Relaxed);
        Ok(())
    }

    /// Returns whether the block carries this pool's number.
    fn owns(&self, block: &Block) -> bool {
        block.is_of(AllocatorId::OUTSIDE) && block.handle() == self.number
    }

    /// Begins a step, which ends when the returned value is dropped. A planning round may run then, in O(n
    /// log n) for n blocks freed since the last round; the last round also allocates the slabs. If it gave no
    /// plan, [`plan_error`](Self::plan_error) returns the reason, and the pool continues to serve.
    pub fn step(&self) -> TensorStep<'_> {
        TensorStep {
            pool: self,
            step: Some(self.pool.start()),
        }
    }

    fn run(&self, round: Option<Round>) -> Result<(), PlanError> {
        let Some(round) = round else {
            return Ok(());
        };
        let outcome = self.pool.run(round).map(|_| ());
        *locked(&self.plan_error) = outcome.err();
        outcome
    }

    /// Returns whether a plan is in use.
    pub fn is_planned(&self) -> bool {
        self.pool.serving().is_some()
    }

    /// Returns why the last round gave no plan; `None` if it gave one, or no round has run yet.
    pub fn plan_error(&self) -> Option<PlanError> {
        *locked(&self.plan_error)
    }

    /// Returns the counters of the pool. O(1).
    pub fn counts(&self) -> PoolCounts {
        self.pool.counts()
    }

    /// Returns the progress of the planner.
    pub fn progress(&self) -> PlannerProgress {
        self.pool.planner().progress()
    }

    /// Begins to record steps for another plan, if the planner is done and no older plan has blocks in use.
    /// Returns whether it did. The present plan serves until the next one is made.
    pub fn replan(&self) -> bool {
        self.pool.replan()
    }

    /// Resets the planner to step 0 with nothing recorded. The present plan continues to serve.
    pub fn reset(&self) {
        self.pool.planner().reset();
    }

    /// Returns the stream it serves.
    pub fn stream(&self) -> &Arc<CudaStream> {
        self.pool.backend().stream()
    }

    /// Returns the allocator it takes memory from.
    pub fn memory(&self) -> &DeviceAllocator {
        self.pool.backend().memory()
    }
}

impl OneStream for DeviceTensorPool {
    type Config = TensorPoolConfig;

    fn make(
        memory: &DeviceAllocator,
        stream: &Arc<CudaStream>,
        config: TensorPoolConfig,
    ) -> Result<Self, DeviceAllocError> {
        Self::new(memory, stream, config)
    }

    fn stream(&self) -> &Arc<CudaStream> {
        Self::stream(self)
    }

    fn alloc_as(&self, request: &Request) -> Result<Block, DeviceAllocError> {
        self.alloc_aligned(request.bytes, request.align)
    }

    fn free(&self, block: Block) -> Result<(), Rejected<DeviceFreeError>> {
        Self::free(self, block)
    }

    fn requested_bytes(&self, block: &Block) -> Option<u64> {
        self.owns(block).then_some(block.bytes())
    }

    /// Slabs of a plan are not counted as blocks.
    fn live(_: &DeviceAllocator, pools: &[Arc<Self>]) -> Live {
        let sum = |count: fn(&Self) -> &AtomicU64| {
            let counts = pools.iter().map(|pool| count(pool).load(Ordering::Relaxed));
            counts.sum()
        };
        Live {
            blocks: sum(|pool| &pool.live_blocks),
            bytes: sum(|pool| &pool.live_bytes),
        }
    }
}

impl fmt::Debug for DeviceTensorPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceTensorPool")
            .field("is_planned", &self.is_planned())
            .field("counts", &self.counts())
            .field("progress", &self.progress())
            .finish_non_exhaustive()
    }
}

/// A step of a [`DeviceTensorPool`], which ends when this is dropped.
#[derive(Debug)]
#[must_use = "dropped at once, the step ends at once"]
pub struct TensorStep<'p> {
    pool: &'p DeviceTensorPool,
    step: Option<OpenStep>,
}

impl TensorStep<'_> {
    /// Ends the step, and reports whether a plan that was due could be made.
    ///
    /// # Errors
    /// The reason why it could not. The pool continues with its previous plan, or without one.
    pub fn end(mut self) -> Result<(), PlanError> {
        self.stop()
    }

    fn stop(&mut self) -> Result<(), PlanError> {
        let round = self.step.take().and_then(|step| self.pool.pool.stop(step));
        self.pool.run(round)
    }
}

impl Drop for TensorStep<'_> {
    fn drop(&mut self) {
        // `plan_error` keeps the error.
        let _ = self.stop();
    }
}
