//! [`GpuAllocator`]: the memory of one logical device, by whichever allocator was chosen for it.

#![expect(
    clippy::result_large_err,
    reason = "an error has the numbers of both sides"
)]

use core::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use larder_core::decorate::{CheckError, FindingCounts};
use larder_core::{Addr, AllocError, FreeError, Placement, Stats};

use super::config::GpuKind;
use super::gpu_memory::{GpuBackend, GpuPlace};
use super::guarded::Guarded;
use super::shutdown::Left;
use crate::{
    CheckedError, CheckedMemory, Context, CudaStream, DeviceAllocError, DeviceAllocator,
    DeviceFreeError, DeviceTensorPool, TensorPoolError, VmemAllocError, VmemAllocator,
};

/// Allocators made so far; which one a block is of.
static MADE: AtomicU64 = AtomicU64::new(0);

/// The memory of one logical device. A clone is the same allocator; it lives as long as its last clone.
///
/// Blocks are given and taken in the order of streams, whatever the kind. They are values without a destructor: if
/// some are out when the last clone goes, their memory is left alone for as long as the process lives.
#[derive(Clone)]
pub struct GpuAllocator(Arc<GpuInner>);

struct GpuInner {
    number: u64,
    id: usize,
    ordinal: i32,
    kind: GpuKind,
    name: String,
    /// What it was asked for first.
    made_bytes: u64,
    memory: GpuBackend,
}

/// Memory of a device that belongs to the caller until it is freed.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a dropped block stays allocated"]
pub struct GpuBlock {
    addr: Addr,
    bytes: u64,
    owner: u64,
    held: GpuPlace,
}

impl GpuBlock {
    /// Its first address, good for kernels and copies.
    pub const fn addr(&self) -> Addr {
        self.addr
    }

    /// Bytes that were asked for.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether it is memory of the host behind the device's.
    pub const fn is_on_host(&self) -> bool {
        match &self.held {
            GpuPlace::Placed(block) => matches!(block.placement(), Placement::Host),
            _ => false,
        }
    }
}

/// Why a [`GpuAllocator`] gave no memory. Every block is as before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum GpuAllocError {
    /// The device's allocator refused, or the driver.
    Device(DeviceAllocError),
    /// The device and the host behind it refused.
    Vmem(VmemAllocError),
    /// The stream's tensor pool refused.
    Tensor(TensorPoolError),
    /// The stream's checked memory was not made.
    Checked(CheckedError),
}

impl GpuAllocError {
    pub(super) const fn reason(reason: AllocError) -> Self {
        Self::Device(DeviceAllocError::Memory {
            reason,
            driver: None,
        })
    }
}

impl fmt::Display for GpuAllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(error) => error.fmt(f),
            Self::Vmem(error) => error.fmt(f),
            Self::Tensor(error) => error.fmt(f),
            Self::Checked(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for GpuAllocError {}

impl From<DeviceAllocError> for GpuAllocError {
    fn from(error: DeviceAllocError) -> Self {
        Self::Device(error)
    }
}

/// A refused free gives the block back.
#[derive(Debug)]
#[must_use = "the block inside is still allocated"]
pub struct GpuFreeRejected {
    /// The block, still the caller's.
    pub block: GpuBlock,
    /// Why it was refused.
    pub error: DeviceFreeError,
}

impl fmt::Display for GpuFreeRejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block at {}: {}", self.block.addr(), self.error)
    }
}

impl core::error::Error for GpuFreeRejected {}

impl GpuAllocator {
    pub(super) fn new(
        id: usize,
        ordinal: i32,
        kind: GpuKind,
        made_bytes: u64,
        memory: GpuBackend,
    ) -> Self {
        let (prefix, suffix) = match kind {
            _ if memory.vmem_allocator().is_some() => ("GPUVMem", "bfc"),
            GpuKind::Default | GpuKind::MemoryGuard => ("GPU", "bfc"),
            GpuKind::CudaMalloc => ("GPU", "cuda_malloc"),
            GpuKind::CudaMallocAsync => ("GPU", "cuda_malloc_async"),
            GpuKind::TensorPool => ("GPU", "tensorpool"),
        };
        Self(Arc::new(GpuInner {
            number: MADE.fetch_add(1, Ordering::Relaxed),
            id,
            ordinal,
            kind,
            name: format!("{prefix}_{id}_{suffix}"),
            made_bytes,
            memory,
        }))
    }

    /// Gives memory for work that is queued on `stream` from now on. Cost: that of its kind; two counters.
    ///
    /// # Errors
    /// [`GpuAllocError`].
    pub fn alloc(&self, stream: &Arc<CudaStream>, bytes: u64) -> Result<GpuBlock, GpuAllocError> {
        if bytes == 0 {
            return Err(GpuAllocError::reason(AllocError::ZeroSize));
        }
        let (addr, held) = self.0.memory.alloc(stream, bytes)?;
        Ok(GpuBlock {
            addr,
            bytes,
            owner: self.0.number,
            held,
        })
    }

    /// Takes a block back. Work that uses it is queued on `stream` already, or ordered before what is queued
    /// there now.
    ///
    /// Managed memory waits for the stream here, `cuda_malloc` for the device. With guards the host waits for the
    /// stream that the block was given for, which is first ordered behind `stream` if that is another one; the
    /// block goes back to its own. Damage does not stop a free: [`take_finding`](Self::take_finding).
    ///
    /// # Errors
    /// Gives the block back if it is not one of this allocator's, or the driver refuses.
    pub fn free(&self, stream: &Arc<CudaStream>, block: GpuBlock) -> Result<(), GpuFreeRejected> {
        if block.owner != self.0.number {
            let error = DeviceFreeError::Block(FreeError::Unknown);
            return Err(GpuFreeRejected { block, error });
        }
        let GpuBlock {
            addr,
            bytes,
            owner,
            held,
        } = block;
        self.0
            .memory
            .free(stream, held, bytes)
            .map_err(|(held, error)| {
                let block = GpuBlock {
                    addr,
                    bytes,
                    owner,
                    held,
                };
                GpuFreeRejected { block, error }
            })
    }

    /// What it is called: `GPU_0_bfc`, `GPUVMem_0_bfc` with the host behind it.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The logical device.
    pub fn id(&self) -> usize {
        self.0.id
    }

    /// The device's place among the driver's.
    pub fn ordinal(&self) -> i32 {
        self.0.ordinal
    }

    /// What serves its memory.
    pub fn kind(&self) -> GpuKind {
        self.0.kind
    }

    /// Where the memory lives.
    pub fn context(&self) -> &Context {
        self.0.memory.context()
    }

    /// Counters now, the limit among them.
    pub fn stats(&self) -> Stats {
        self.0.memory.stats()
    }

    /// The limit in force, as its counters report it. That is the device's limit.
    pub fn limit_bytes(&self) -> u64 {
        self.stats().limit_bytes
    }

    /// What the first request for it asked for.
    pub fn made_bytes(&self) -> u64 {
        self.0.made_bytes
    }

    /// The allocator in the order of streams, where the kind has one: for typed buffers, steps and windows. A
    /// block of one is not a block of the other, and what it gives has no guards.
    pub fn device_allocator(&self) -> Option<&DeviceAllocator> {
        self.0.memory.device_allocator()
    }

    /// The allocator with host memory behind the device's, where there is some: for typed buffers that move.
    pub fn vmem_allocator(&self) -> Option<&VmemAllocator> {
        self.0.memory.vmem_allocator()
    }

    /// The tensor pool of a stream, for its steps: where the kind has such and the stream has allocated.
    pub fn tensor_pool(&self, stream: &Arc<CudaStream>) -> Option<Arc<DeviceTensorPool>> {
        self.0.memory.tensor_pool(stream)
    }

    /// The checked memory of a stream: with [`GpuKind::MemoryGuard`], once the stream has allocated.
    pub fn checked_memory(&self, stream: &Arc<CudaStream>) -> Option<Arc<CheckedMemory>> {
        self.0.memory.as_guarded()?.known(stream)
    }

    /// Compares the guards of a block, behind the work of the stream it was given for.
    ///
    /// # Errors
    /// [`CheckError`], [`CheckError::Unknown`] for a block of another allocator or of a kind without guards. The
    /// block is as it was.
    pub fn check(&self, block: &GpuBlock) -> Result<(), CheckError> {
        match (self.0.memory.as_guarded(), &block.held) {
            // A block of another allocator is not in its table.
            (Some(guarded), GpuPlace::Checked(place, inner)) => guarded.check(*place, inner),
            _ => Err(CheckError::Unknown),
        }
    }

    /// Compares the guards of all blocks, stream by stream, and what waits; calls `found` for each that is not well
    /// and returns how many those were: 0 for a kind without guards. It runs [`CheckedMemory::check_all`] on every
    /// stream.
    pub fn check_all(&self, found: impl FnMut(CheckError)) -> u64 {
        let guarded = self.0.memory.as_guarded();
        guarded.map_or(0, |guarded| guarded.check_all(found))
    }

    /// A find of a free that nobody has taken yet: the oldest of its stream; streams in the order of their first
    /// allocation.
    pub fn take_finding(&self) -> Option<CheckError> {
        self.0.memory.as_guarded()?.take_finding()
    }

    /// How much frees found so far, all streams together.
    pub fn finding_counts(&self) -> FindingCounts {
        let guarded = self.0.memory.as_guarded();
        guarded.map(Guarded::finding_counts).unwrap_or_default()
    }

    /// Blocks in use, those of [`device_allocator`](Self::device_allocator) included.
    pub fn live_blocks(&self) -> u64 {
        self.0.memory.live_blocks()
    }

    /// Whether both are the same allocator.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(super) fn left(&self) -> Left {
        Left {
            name: self.0.name.clone(),
            blocks: self.live_blocks(),
            bytes: self.0.memory.live_bytes(),
            shared: Arc::strong_count(&self.0) > 1,
        }
    }
}

impl fmt::Debug for GpuAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuAllocator")
            .field("name", &self.name())
            .field("kind", &self.kind())
            .field("context", self.context())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
