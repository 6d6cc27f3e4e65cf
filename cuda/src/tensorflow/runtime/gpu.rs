//! [`GpuAllocator`]: the memory of one logical device, from the allocator chosen for it.
//!
//! GPU1 if blocks are in use when an allocator's last clone is dropped, the allocator is leaked, together
//! with its context.

use core::fmt;
use core::ops::Deref;
use std::sync::Arc;

use larder_core::Block;
use larder_core::decorate::{CheckError, FindingCounts};

use super::config::GpuKind;
use super::shutdown::Left;
use crate::stream::per_stream::{OneStream, PerStream};
use crate::{
    CheckedMemory, CudaStream, DeviceAllocator, DeviceTensorPool, StreamAllocator, VmemAllocator,
};

/// The memory of one logical device: a [`StreamAllocator`], which it dereferences to, and access to the typed
/// allocators of each kind. Clones share the allocator; it lives as long as its last clone.
///
/// Whatever the kind, blocks are allocated and freed in stream order. They are values without a destructor:
/// if some are in use when the last clone is dropped, their memory is leaked.
///
/// A free of managed memory waits for the stream, one of `cuda_malloc` for the device. With guards, the
/// stream that the block was allocated on is ordered after the freeing stream, the host waits for it, and the
/// block is freed on it. Damage does not prevent a free; [`take_finding`](Self::take_finding) returns it.
#[derive(Clone)]
pub struct GpuAllocator(Arc<GpuInner>);

struct GpuInner {
    id: usize,
    ordinal: i32,
    kind: GpuKind,
    name: String,
    /// Limit given by the first request.
    made_bytes: u64,
    memory: GpuMemory,
}

/// An allocator, and its typed forms.
pub(super) struct GpuMemory {
    pub(super) all: Arc<dyn StreamAllocator>,
    pub(super) device: Option<DeviceAllocator>,
    pub(super) vmem: Option<VmemAllocator>,
    pub(super) tensor: Option<Arc<PerStream<DeviceTensorPool>>>,
    pub(super) checked: Option<Arc<PerStream<CheckedMemory>>>,
}

impl GpuMemory {
    /// Wraps an allocator without typed forms.
    pub(super) fn of(all: impl StreamAllocator + 'static) -> Self {
        Self::shared(Arc::new(all))
    }

    /// Wraps an allocator whose typed form is set by the caller.
    pub(super) fn shared(all: Arc<dyn StreamAllocator>) -> Self {
        Self {
            all,
            device: None,
            vmem: None,
            tensor: None,
            checked: None,
        }
    }
}

impl Drop for GpuInner {
    fn drop(&mut self) {
        // GPU1: leaks the allocator while blocks are in use.
        if self.memory.all.live().blocks > 0 {
            core::mem::forget(self.memory.all.clone());
        }
    }
}

impl Deref for GpuAllocator {
    type Target = dyn StreamAllocator;

    fn deref(&self) -> &Self::Target {
        &*self.0.memory.all
    }
}

impl GpuAllocator {
    pub(super) fn new(
        id: usize,
        ordinal: i32,
        kind: GpuKind,
        made_bytes: u64,
        memory: GpuMemory,
    ) -> Self {
        let (prefix, suffix) = match kind {
            _ if memory.vmem.is_some() => ("GPUVMem", "bfc"),
            GpuKind::Default | GpuKind::MemoryGuard => ("GPU", "bfc"),
            GpuKind::CudaMalloc => ("GPU", "cuda_malloc"),
            GpuKind::CudaMallocAsync => ("GPU", "cuda_malloc_async"),
            GpuKind::TensorPool => ("GPU", "tensorpool"),
        };
        Self(Arc::new(GpuInner {
            id,
            ordinal,
            kind,
            name: format!("{prefix}_{id}_{suffix}"),
            made_bytes,
            memory,
        }))
    }

    /// Returns the allocator, for code that does not know the runtime. Once every [`GpuAllocator`] of it is
    /// dropped without a block in use, the memory is freed with the last of these references, even if blocks
    /// are in use by then.
    pub fn memory(&self) -> &Arc<dyn StreamAllocator> {
        &self.0.memory.all
    }

    /// Returns its name: `GPU_0_bfc`, or `GPUVMem_0_bfc` with a host's side.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the number of the logical device.
    pub fn id(&self) -> usize {
        self.0.id
    }

    /// Returns the device's ordinal.
    pub fn ordinal(&self) -> i32 {
        self.0.ordinal
    }

    /// Returns the kind of its memory.
    pub fn kind(&self) -> GpuKind {
        self.0.kind
    }

    /// Returns the limit in force, as the counters report it.
    pub fn limit_bytes(&self) -> u64 {
        self.stats().limit_bytes
    }

    /// Returns the limit of the first request.
    pub fn made_bytes(&self) -> u64 {
        self.0.made_bytes
    }

    /// Returns the stream-ordered allocator below this one, if the kind has one, for typed buffers, steps and
    /// windows. A block of one need not be known to the other, and blocks of the one below have no guards.
    pub fn device_allocator(&self) -> Option<&DeviceAllocator> {
        self.0.memory.device.as_ref()
    }

    /// Returns the allocator with a host's side, if there is one, for typed buffers that move.
    pub fn vmem_allocator(&self) -> Option<&VmemAllocator> {
        self.0.memory.vmem.as_ref()
    }

    /// Returns the tensor pool of a stream, for its steps, if the kind has one and the stream has allocated.
    pub fn tensor_pool(&self, stream: &Arc<CudaStream>) -> Option<Arc<DeviceTensorPool>> {
        self.0.memory.tensor.as_ref()?.of(stream)
    }

    /// Returns the checked memory of a stream, if the kind is [`GpuKind::MemoryGuard`] and the stream has
    /// allocated.
    pub fn checked_memory(&self, stream: &Arc<CudaStream>) -> Option<Arc<CheckedMemory>> {
        self.0.memory.checked.as_ref()?.of(stream)
    }

    /// Returns the checked memory of all streams, in the order of their first allocation.
    fn all_checked(&self) -> Vec<Arc<CheckedMemory>> {
        let checked = self.0.memory.checked.as_ref();
        checked.map(|checked| checked.all()).unwrap_or_default()
    }

    /// Checks the guards of a block, after the work of the stream that it was allocated on.
    ///
    /// # Errors
    /// [`CheckError`]; it is [`CheckError::Unknown`] for a block of another allocator or of a kind without
    /// guards. The block is unchanged.
    pub fn check(&self, block: &Block) -> Result<(), CheckError> {
        let all = self.all_checked();
        let owner = all
            .iter()
            .find(|one| OneStream::requested_bytes(&***one, block).is_some());
        owner.ok_or(CheckError::Unknown)?.check(block)
    }

    /// Checks the guards of all blocks, and the quarantined blocks, by [`CheckedMemory::check_all`] on one
    /// stream after the other. Calls `found` for each damaged block and returns their number, which is 0 for
    /// a kind without guards.
    pub fn check_all(&self, mut found: impl FnMut(CheckError)) -> u64 {
        let all = self.all_checked();
        all.iter().map(|one| one.check_all(&mut found)).sum()
    }

    /// Takes the oldest finding of the first stream that has one, in the order of the streams' first
    /// allocations.
    pub fn take_finding(&self) -> Option<CheckError> {
        self.all_checked().iter().find_map(|one| one.take_finding())
    }

    /// Returns the counts of findings, summed over all streams.
    pub fn finding_counts(&self) -> FindingCounts {
        let mut sum = FindingCounts::default();
        for one in self.all_checked() {
            for counts in [one.guard_counts(), one.freed_counts()] {
                sum.damaged += counts.damaged;
                sum.unreachable += counts.unreachable;
                sum.unlisted += counts.unlisted;
                sum.kept_blocks += counts.kept_blocks;
                sum.kept_bytes += counts.kept_bytes;
            }
        }
        sum
    }

    /// Returns whether both are the same allocator.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(super) fn left(&self) -> Left {
        let live = self.live();
        Left {
            name: self.0.name.clone(),
            blocks: live.blocks,
            bytes: live.bytes,
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
