//! AntMan's `GPUVMemAllocator` over any two allocators: a device's memory first, the host's behind it.
//!
//! A refusal of the device is final at once, and nothing moves. There is no set of blocks: a block tells
//! by itself whose it is ([`BlockAllocator::owns`]).
//!
//! VMEM1 a block goes back to the side that gave it.
//! VMEM2 the joint count has the granted bytes of every block that was given here and not freed here. A
//!    block is counted after it was given and counted off before it goes back, so the count is never
//!    more than what is in use on both sides. Only where a side does not know its blocks is one counted
//!    off afterwards, and the count may be more by frees under way.

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

/// A block, and where it is.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "a dropped block stays allocated"]
pub struct Placed {
    /// The block, and what must be waited for before it is used.
    pub grant: Grant,
    /// The side that gave it.
    pub placement: Placement,
}

/// Memory of `D` first and of `H` behind it.
///
/// A refusal of the device is final at once: no side is ever waited for here. A
/// [`Request`] goes to both sides as it is, so memory that another stream still uses may be given of the
/// device, with its wait, before the host is asked.
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
    /// The device alone: the host serves nothing (`TF_GPU_VMEM` off).
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
    /// Both sides; the host serves whatever the device refuses.
    pub fn new(device: D, host: H) -> Self {
        Self {
            device,
            host: Some(host),
            planned_bytes: None,
            joint: JointBytes::new(),
        }
    }

    /// Makes the host serve no more once more than `bytes` were in use on both sides together (until the
    /// counters are [cleared](BlockAllocator::clear_stats)).
    pub fn planned(mut self, bytes: u64) -> Self {
        self.planned_bytes = Some(bytes);
        self
    }

    /// The device's side. What is allocated or freed there directly is not in the joint count: free a
    /// block where it was allocated.
    pub const fn device(&self) -> &D {
        &self.device
    }

    /// The host's side, if there is one. What is allocated or freed there directly is not in the joint
    /// count.
    pub const fn host(&self) -> Option<&H> {
        self.host.as_ref()
    }

    /// Most bytes that both sides together may have had for the host to serve.
    pub const fn planned_bytes(&self) -> Option<u64> {
        self.planned_bytes
    }

    /// Gives memory of the device, or of the host if the device refuses and the plan allows it. Costs
    /// what the sides cost, and two atomic operations.
    ///
    /// # Errors
    /// [`VmemError`], with the reasons of the sides that were asked. Every block is as before.
    pub fn alloc_placed(&self, request: &Request) -> Result<Placed, VmemError> {
        self.give(request, self.planned_bytes)
    }

    /// Gives memory of the device, or of the host if the device refuses, whatever was planned (AntMan's
    /// form without attributes of the allocation).
    ///
    /// # Errors
    /// [`VmemError`], with the reasons of the sides that were asked, never [`VmemError::Planned`]. Every
    /// block is as before.
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

    /// Where a block is; `None` if neither side gave it, or does not know its blocks. As cheap as [`BlockAllocator::owns`].
    pub fn placement(&self, block: &Block) -> Option<Placement> {
        if self.device.owns(block) {
            return Some(Placement::Device);
        }
        let host = self.host.as_ref()?;
        host.owns(block).then_some(Placement::Host)
    }

    /// The host's side, if the block is one of its.
    fn host_of(&self, block: &Block) -> Option<&H> {
        let host = self.host.as_ref()?;
        (self.placement(block) == Some(Placement::Host)).then_some(host)
    }

    /// Counts a block off while it goes back (VMEM2); on again if it does not.
    fn counted_off(
        &self,
        block: Block,
        give_back: impl FnOnce(Block) -> Result<(), Rejected<FreeError>>,
    ) -> Result<(), Rejected<FreeError>> {
        let bytes = block.bytes();
        self.joint.take_off(bytes);
        give_back(block).inspect_err(|_| self.joint.put_back(bytes))
    }

    /// Counters of both sides and the joint ones.
    pub fn vmem_stats(&self) -> VmemStats {
        VmemStats {
            device: self.device.stats(),
            host: self.host.as_ref().map(H::stats).unwrap_or_default(),
            joint_live_bytes: self.joint.live(),
            joint_peak_bytes: self.joint.peak(),
        }
    }

    /// Takes it apart. Blocks go back to the sides from then on.
    pub fn into_parts(self) -> (D, Option<H>) {
        (self.device, self.host)
    }
}

impl<D: BlockAllocator, H: BlockAllocator> BlockAllocator for Vmem<D, H> {
    /// Gives memory by [`alloc_placed`](Vmem::alloc_placed); an error is the device's, since this form has
    /// room for one.
    fn alloc(&self, request: &Request) -> Result<Grant, AllocError> {
        let placed = self.alloc_placed(request);
        placed
            .map(|placed| placed.grant)
            .map_err(|error| error.device())
    }

    /// Gives a block to the side that gave it (VMEM1). A side that does not know its blocks is asked by the
    /// free itself: then the block is counted off afterwards.
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

    /// Unique on each side only.
    fn allocation_id(&self, block: &Block) -> Option<u64> {
        match self.host_of(block) {
            Some(host) => host.allocation_id(block),
            None => self.device.allocation_id(block),
        }
    }

    fn owns(&self, block: &Block) -> bool {
        self.placement(block).is_some()
    }

    /// Both sides as one: [`VmemStats::joint`].
    fn stats(&self) -> Stats {
        self.vmem_stats().joint()
    }

    /// If both sides do.
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

/// Why a [`Vmem`] gave no memory, with the reason of each side that was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum VmemError {
    /// The device refused, and there is no host side, or nothing that it could do better.
    Device(AllocError),
    /// The device refused, and the host was not asked: both sides together have had more in use than
    /// was planned for the device.
    Planned {
        /// Why the device refused.
        device: AllocError,
        /// Most bytes that were in use on both sides together.
        peak_bytes: u64,
        /// Most bytes that may have been for the host side to serve.
        planned_bytes: u64,
    },
    /// Both sides refused.
    Both {
        /// Why the device refused.
        device: AllocError,
        /// Why the host refused.
        host: AllocError,
    },
}

impl VmemError {
    /// Why the device refused: what a caller is told who knows of one side only.
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
