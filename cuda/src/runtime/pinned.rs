//! [`HostAllocator`]: host memory for copies beside other work: pinned, or plain where there is no GPU.

use core::fmt;
use std::sync::Arc;

use larder_core::{
    AllocError, Block, BlockAllocator, FreeRejected, Grant, Request, Stats, StreamPoint,
};

use super::best_fit::BestFit;
use super::cpu::CpuAllocator;
use super::error::RuntimeError;
use super::shutdown::Left;
use super::topology::Node;
use super::watch::Watch;
use crate::{Context, DriverError, PinnedMemory};

/// Upstream's name.
const NAME: &str = "gpu_host_bfc";

/// Pinned memory of one node: a best fit over [`PinnedMemory`]. A clone is the same one.
///
/// The host's blocks, freed when no work uses them: streams are not served here
/// ([`PinnedAllocator`](crate::PinnedAllocator) has buffers that wait for their streams). The driver chooses where
/// the pages lie; the node tells allocators and visitors apart.
#[derive(Clone)]
pub struct PinnedPool(Arc<PinnedPoolInner>);

struct PinnedPoolInner {
    node: Node,
    blocks: BestFit<PinnedMemory>,
}

impl PinnedPool {
    pub(super) fn new(
        context: &Context,
        node: Node,
        limit_bytes: u64,
        collects: bool,
        watch: Watch,
    ) -> Result<Self, RuntimeError> {
        let source = PinnedMemory::new(context);
        let blocks = BestFit::new(source, watch, limit_bytes, collects)?;
        Ok(Self(Arc::new(PinnedPoolInner { node, blocks })))
    }

    /// What it is called.
    pub fn name(&self) -> &'static str {
        NAME
    }

    /// The node it serves.
    pub fn node(&self) -> Node {
        self.0.node
    }

    /// The context it pins memory through.
    pub fn context(&self) -> &Context {
        self.0.blocks.source().context()
    }

    /// Blocks in use.
    pub fn live_blocks(&self) -> u64 {
        self.0.blocks.live_blocks()
    }

    /// Gives idle regions back; the bytes.
    pub fn trim(&self) -> u64 {
        self.0.blocks.trim()
    }

    /// The driver's newest refusal.
    pub fn last_error(&self) -> Option<DriverError> {
        self.0.blocks.source().last_error()
    }

    /// Whether both are the same allocator.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(super) fn left(&self) -> Left {
        Left {
            name: format!("{NAME} of {}", self.0.node),
            blocks: self.live_blocks(),
            bytes: self.0.blocks.stats().live_bytes,
            shared: Arc::strong_count(&self.0) > 1,
        }
    }
}

impl fmt::Debug for PinnedPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedPool")
            .field("node", &self.0.node)
            .field("blocks", &self.0.blocks)
            .finish_non_exhaustive()
    }
}

/// An allocator of host memory, pinned or not.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum HostAllocator {
    /// Plain memory.
    Cpu(CpuAllocator),
    /// Memory that a GPU copies from and to at full speed.
    Pinned(PinnedPool),
}

impl HostAllocator {
    /// What it is called.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Cpu(cpu) => cpu.name(),
            Self::Pinned(pinned) => pinned.name(),
        }
    }

    /// Whether both are the same allocator.
    pub fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Cpu(one), Self::Cpu(other)) => one.is(other),
            (Self::Pinned(one), Self::Pinned(other)) => one.is(other),
            _ => false,
        }
    }

    /// Whether its memory is pinned.
    pub const fn is_pinned(&self) -> bool {
        matches!(self, Self::Pinned(_))
    }

    fn blocks(&self) -> &dyn BlockAllocator {
        match self {
            Self::Cpu(cpu) => cpu,
            Self::Pinned(pinned) => &pinned.0.blocks,
        }
    }
}

impl BlockAllocator for HostAllocator {
    fn alloc(&self, request: &Request) -> Result<Grant, AllocError> {
        self.blocks().alloc(request)
    }

    fn free(&self, block: Block) -> Result<(), FreeRejected> {
        self.blocks().free(block)
    }

    fn free_after(&self, block: Block, point: StreamPoint) -> Result<(), FreeRejected> {
        self.blocks().free_after(block, point)
    }

    fn requested_bytes(&self, block: &Block) -> Option<u64> {
        self.blocks().requested_bytes(block)
    }

    fn allocation_id(&self, block: &Block) -> Option<u64> {
        self.blocks().allocation_id(block)
    }

    fn owns(&self, block: &Block) -> bool {
        self.blocks().owns(block)
    }

    fn stats(&self) -> Stats {
        self.blocks().stats()
    }

    fn clear_stats(&self) {
        self.blocks().clear_stats();
    }

    fn tracks_sizes(&self) -> bool {
        self.blocks().tracks_sizes()
    }
}
