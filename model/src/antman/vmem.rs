//! AntMan's `GPUVMemAllocator` over any two allocators: a device's memory first, then the host's.
//!
//! A refusal by the device is final at once, and no block moves. There is no table of blocks: each side knows whether a
//! block is its own ([`BlockAllocator::owns`]).
//!
//! VMEM1 a block is freed on the side that allocated it.
//! VMEM2 the joint count is the sum of the granted bytes of all blocks that were allocated here and not freed here. A
//! block is added after its allocation and subtracted before its free, so the count never exceeds the bytes in use on
//! both sides. If a side does not know its blocks, they are subtracted after the free, and the count may be too high by
//! the frees in progress.

#![expect(
    clippy::result_large_err,
    reason = "an error has the numbers of both sides"
)]

use core::fmt;

use larder_core::vmem::JointBytes;
use larder_core::{
    AllocError, Block, BlockAllocator, FreeError, Grant, Placement, Rejected, Request, Stats,
    StreamPoint, VmemStats,
};

/// A block, and its side.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a dropped block stays allocated"]
pub struct Placed {
    /// The block, and the point to wait for before its use.
    pub grant: Grant,
    /// The side that allocated it.
    pub placement: Placement,
}

/// An allocator that uses memory of `D`, and memory of `H` if `D` refuses.
///
/// A refusal by the device is final at once: `Vmem` itself never waits. A [`Request`] goes to both sides unchanged, so
/// the device may grant memory that another stream still uses, along with the point to wait for, before the host is
/// tried.
///
/// ```
/// use larder_core::{
///     Addr, AddrRange, RegionPool, Shared, RegionConfig, BlockAllocator, Chunk, FixedRange, Placement, Request,
/// };
/// use larder_model::antman::Vmem;
///
/// fn side(start: u64, table: &mut [Chunk]) -> Shared<RegionPool<'_>, FixedRange> {
///     let range = AddrRange::new(Addr::new(start), 2 << 20).unwrap();
///     let bfc = RegionPool::new(RegionConfig::new(2 << 20), table).unwrap();
///     Shared::new(bfc, FixedRange::new(range))
/// }
/// let (mut one, mut two) = ([Chunk::VACANT; 16], [Chunk::VACANT; 16]);
/// let vmem = Vmem::new(side(2 << 20, &mut one), side(1 << 30, &mut two));
/// let first = vmem.alloc_placed(&Request::new(2 << 20))?;
/// let second = vmem.alloc_placed(&Request::new(2 << 20))?;
/// assert_eq!(first.placement, Placement::Device);
/// assert_eq!(second.placement, Placement::Host);
/// vmem.free(first.grant.block)?;
/// vmem.free(second.grant.block)?;
/// assert_eq!(vmem.vmem_stats().joint_peak_bytes, 4 << 20);
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Vmem<D, H = D> {
    device: D,
    host: Option<H>,
    planned_bytes: Option<u64>,
    joint: JointBytes,
}

impl<D: BlockAllocator> Vmem<D> {
    /// Creates an allocator over the device alone: the host serves nothing (`TF_GPU_VMEM` off).
    pub fn device_only(device: D) -> Self {
        Self {
            device,
            host: None,
            planned_bytes: None,
            joint: JointBytes::new(),
        }
    }
}

impl<D: BlockAllocator, H: BlockAllocator> Vmem<D, H> {
    /// Creates an allocator over both sides; the host serves whatever the device refuses.
    pub fn new(device: D, host: H) -> Self {
        Self {
            device,
            host: Some(host),
            planned_bytes: None,
            joint: JointBytes::new(),
        }
    }

    /// Stops serving from the host once more than `bytes` bytes have been in use on both sides together. This lasts
    /// until the counters are [cleared](BlockAllocator::clear_stats).
    pub fn planned(mut self, bytes: u64) -> Self {
        self.planned_bytes = Some(bytes);
        self
    }

    /// Returns the device's side. Direct allocations and frees there are not in the joint count, so free a block where
    /// it was allocated.
    pub const fn device(&self) -> &D {
        &self.device
    }

    /// Returns the host's side, if there is one. Direct allocations and frees there are not in the joint count.
    pub const fn host(&self) -> Option<&H> {
        self.host.as_ref()
    }

    /// Returns the planned bytes: the host serves only while the joint peak does not exceed them.
    pub const fn planned_bytes(&self) -> Option<u64> {
        self.planned_bytes
    }

    /// Allocates memory of the device, or of the host if the device refuses and the plan allows it. Costs as much as
    /// the sides do, plus two atomic operations.
    ///
    /// # Errors
    /// [`VmemError`], with the reasons of the sides that were tried. No block has changed.
    pub fn alloc_placed(&self, request: &Request) -> Result<Placed, VmemError> {
        self.give(request, self.planned_bytes)
    }

    /// Allocates memory of the device, or of the host if the device refuses, regardless of the plan (AntMan's form
    /// without allocation attributes).
    ///
    /// # Errors
    /// [`VmemError`], with the reasons of the sides that were tried, never [`VmemError::Planned`]. No block has
    /// changed.
    pub fn alloc_unplanned(&self, request: &Request) -> Result<Placed, VmemError> {
        self.give(request, None)
    }

    fn give(&self, request: &Request, planned: Option<u64>) -> Result<Placed, VmemError> {
        let device = match self.device.alloc(request) {
            Ok(grant) => return Ok(self.count(grant, Placement::Device)),
            Err(error) => error,
        };
        let host = match &self.host {
            Some(host) if device != AllocError::ZeroSize => host,
            _ => return Err(VmemError::Device(device)),
        };
        let peak_bytes = self.joint.peak();
        if let Some(planned_bytes) = planned.filter(|planned| peak_bytes > *planned) {
            return Err(VmemError::Planned {
                device,
                peak_bytes,
                planned_bytes,
            });
        }
        match host.alloc(request) {
            Ok(grant) => Ok(self.count(grant, Placement::Host)),
            Err(host) => Err(VmemError::Both { device, host }),
        }
    }

    fn count(&self, grant: Grant, placement: Placement) -> Placed {
        self.joint.add(grant.block.bytes());
        Placed { grant, placement }
    }

    /// Returns a block's side, or `None` if neither side allocated the block or its side does not know its blocks.
    /// Costs as much as [`BlockAllocator::owns`].
    pub fn placement(&self, block: &Block) -> Option<Placement> {
        if self.device.owns(block) {
            return Some(Placement::Device);
        }
        let host = self.host.as_ref()?;
        host.owns(block).then_some(Placement::Host)
    }

    /// Returns the host's side if the block was allocated there.
    fn host_of(&self, block: &Block) -> Option<&H> {
        let host = self.host.as_ref()?;
        (self.placement(block) == Some(Placement::Host)).then_some(host)
    }

    /// Subtracts a block from the joint count and frees it (VMEM2). Adds the block again if the free fails.
    fn counted_off(
        &self,
        block: Block,
        give_back: impl FnOnce(Block) -> Result<(), Rejected<FreeError>>,
    ) -> Result<(), Rejected<FreeError>> {
        let bytes = block.bytes();
        self.joint.take_off(bytes);
        give_back(block).inspect_err(|_| self.joint.put_back(bytes))
    }

    /// Returns the counters of both sides and the joint counters.
    pub fn vmem_stats(&self) -> VmemStats {
        VmemStats {
            device: self.device.stats(),
            host: self.host.as_ref().map(H::stats).unwrap_or_default(),
            joint_live_bytes: self.joint.live(),
            joint_peak_bytes: self.joint.peak(),
        }
    }

    /// Returns both sides. Blocks are freed on their own side from then on.
    pub fn into_parts(self) -> (D, Option<H>) {
        (self.device, self.host)
    }
}

impl<D: BlockAllocator, H: BlockAllocator> BlockAllocator for Vmem<D, H> {
    /// Allocates with [`alloc_placed`](Vmem::alloc_placed); an error is the device's, since only one can be returned.
    fn alloc(&self, request: &Request) -> Result<Grant, AllocError> {
        let placed = self.alloc_placed(request);
        placed
            .map(|placed| placed.grant)
            .map_err(|error| error.device())
    }

    /// Frees a block on the side that allocated it (VMEM1). If the sides do not know their blocks, the free is tried on
    /// the device, then on the host, and the block is subtracted afterwards.
    fn free_at(&self, block: Block, point: Option<StreamPoint>) -> Result<(), Rejected<FreeError>> {
        let bytes = block.bytes();
        match (self.placement(&block), &self.host) {
            (Some(Placement::Device), _) => {
                self.counted_off(block, |block| self.device.free_at(block, point))
            }
            (Some(Placement::Host), Some(host)) => {
                self.counted_off(block, |block| host.free_at(block, point))
            }
            (_, host) => {
                let refused = self.device.free_at(block, point);
                let freed = match (refused, host) {
                    (Err(rejected), Some(host)) => host.free_at(rejected.value, point),
                    (refused, _) => refused,
                };
                freed.inspect(|()| self.joint.take_off(bytes))
            }
        }
    }

    fn requested_bytes(&self, block: &Block) -> Option<u64> {
        match self.host_of(block) {
            Some(host) => host.requested_bytes(block),
            None => self.device.requested_bytes(block),
        }
    }

    /// Returns a number that is unique only within the block's side.
    fn allocation_id(&self, block: &Block) -> Option<u64> {
        match self.host_of(block) {
            Some(host) => host.allocation_id(block),
            None => self.device.allocation_id(block),
        }
    }

    fn owns(&self, block: &Block) -> bool {
        self.placement(block).is_some()
    }

    /// Returns the counters of both sides as one ([`VmemStats::joint`]).
    fn stats(&self) -> Stats {
        self.vmem_stats().joint()
    }

    /// Returns whether both sides track sizes.
    fn tracks_sizes(&self) -> bool {
        let host = self.host.as_ref().is_none_or(BlockAllocator::tracks_sizes);
        self.device.tracks_sizes() && host
    }

    /// Clears the counters of both sides, and the joint peak.
    fn clear_stats(&self) {
        self.device.clear_stats();
        if let Some(host) = &self.host {
            host.clear_stats();
        }
        self.joint.clear_peak();
    }
}

/// The reason why a [`Vmem`] granted no memory, from each side that was tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum VmemError {
    /// The device refused, and either there is no host side, or the request has zero bytes, which the host would refuse
    /// too.
    Device(AllocError),
    /// The device refused, and the host was not tried, because more bytes have been in use on both sides together than
    /// are planned.
    Planned {
        /// The device's reason.
        device: AllocError,
        /// The peak of the bytes in use on both sides together.
        peak_bytes: u64,
        /// The planned bytes, which the peak must not exceed for the host to serve.
        planned_bytes: u64,
    },
    /// Both sides refused.
    Both {
        /// The device's reason.
        device: AllocError,
        /// The host's reason.
        host: AllocError,
    },
}

impl VmemError {
    /// Returns the device's reason, for a caller that knows only one side.
    pub const fn device(&self) -> AllocError {
        match self {
            Self::Device(device) | Self::Planned { device, .. } | Self::Both { device, .. } => {
                *device
            }
        }
    }
}

impl fmt::Display for VmemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(device) => device.fmt(f),
            Self::Planned {
                device,
                peak_bytes,
                planned_bytes,
            } => write!(
                f,
                "the device has no memory ({device}), and {peak_bytes} bytes were in use at once where \
                 {planned_bytes} are planned: plan for more, or free blocks and clear the counters"
            ),
            Self::Both { device, host } => {
                write!(f, "neither side has memory; device: {device}; host: {host}")
            }
        }
    }
}

impl core::error::Error for VmemError {}
