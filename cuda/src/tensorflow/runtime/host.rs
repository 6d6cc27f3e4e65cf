//! [`HostAllocator`]: host memory of a node, plain or pinned, chosen as in TensorFlow's ProcessState.
//!
//! | best fit wanted | NUMA, or a visitor | plain memory is | name |
//! |---|---|---|---|
//! | yes | any | best fit over [`CpuMemory`] | `bfc_cpu_allocator_for_gpu` |
//! | no | yes | pool over [`CpuMemory`] | `cpu_pool` |
//! | no | no | the program's global allocator | `cpu` |
//!
//! By default a best fit is wanted if there is a visitor. Pinned memory comes from a best fit over
//! [`PinnedMemory`], named `gpu_host_bfc`.

use core::fmt;
use std::sync::Arc;

use larder_core::decorate::{TrackRecord, TrackStats};
use larder_core::{
    AllocError, Block, BlockAllocator, FreeError, Grant, Rejected, Request, Stats, StreamPoint,
};

use super::base::Base;
use super::cpu_memory::{Binding, CpuMemory};
use super::error::RuntimeError;
use super::host_pool::HostPool;
use super::logged::{Logged, logged};
use super::shutdown::Left;
use super::topology::Node;
use super::watch::RegionReporter;
use super::watched_pool::WatchedPool;
use crate::{Context, DriverError, PinnedMemory};

/// Upstream's name of the best fit over plain memory.
const BFC_NAME: &str = "bfc_cpu_allocator_for_gpu";
/// Name of the pool over plain memory.
const POOL_NAME: &str = "cpu_pool";
/// Name of the global allocator.
const BASE_NAME: &str = "cpu";
/// Upstream's name of pinned memory.
const PINNED_NAME: &str = "gpu_host_bfc";

/// The allocator of plain memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CpuKind {
    Bfc,
    Pool,
    Base,
}

impl CpuKind {
    /// Chooses the allocator by the table above.
    pub(super) const fn of(wants_bfc: Option<bool>, numa: bool, visited: bool) -> Self {
        let wants_bfc = match wants_bfc {
            Some(wanted) => wanted,
            None => visited,
        };
        if wants_bfc {
            Self::Bfc
        } else if numa || visited {
            Self::Pool
        } else {
            Self::Base
        }
    }
}

/// An allocator of host memory, with the further methods that a runtime needs.
pub(super) trait HostBlocks: Send + Sync {
    /// Returns the allocator itself.
    fn blocks(&self) -> &dyn BlockAllocator;

    /// Returns the number of blocks in use.
    fn live_blocks(&self) -> u64;

    /// Frees idle memory and returns its bytes.
    fn trim(&self) -> u64 {
        0
    }

    /// Returns whether its memory lies on its node.
    fn binding(&self) -> Binding {
        Binding::None
    }

    /// Returns the source of its regions, if they are pinned.
    fn pinned(&self) -> Option<&PinnedMemory> {
        None
    }
}

/// An allocator of host memory, for the host's own use: it has no streams
/// ([`PinnedAllocator`](crate::PinnedAllocator) has buffers that wait for their streams). Clones share the
/// allocator; it lives as long as its last clone.
///
/// Every kind records the sizes of blocks. Blocks are values without a destructor: blocks not freed when the
/// last clone is dropped are leaked.
///
/// The driver chooses where pages of pinned memory lie; the node only distinguishes allocators and visitors.
#[derive(Clone)]
pub struct HostAllocator(Arc<HostInner>);

struct HostInner {
    name: &'static str,
    node: Option<Node>,
    memory: Arc<dyn HostBlocks>,
    /// `memory` with a record of each call.
    log: Option<Logged<HostAllocator>>,
}

impl HostAllocator {
    /// Makes an allocator of plain memory. The memory should lie on `node`.
    pub(super) fn cpu(
        kind: CpuKind,
        node: Option<Node>,
        limit_bytes: u64,
        watch: RegionReporter,
        logs: bool,
    ) -> Result<Self, RuntimeError> {
        let source = CpuMemory::new(node);
        let (name, memory): (_, Arc<dyn HostBlocks>) = match kind {
            CpuKind::Bfc => (
                BFC_NAME,
                Arc::new(WatchedPool::new(source, watch, limit_bytes, false)?),
            ),
            CpuKind::Pool => (POOL_NAME, Arc::new(HostPool::new(source, watch)?)),
            CpuKind::Base => (BASE_NAME, Arc::new(Base::new())),
        };
        Self::of(name, node, memory, logs)
    }

    /// Makes an allocator of memory pinned through a context. If `collects` is true, entirely free regions
    /// are released before an allocation fails.
    pub(super) fn pinned(
        context: &Context,
        node: Node,
        limit_bytes: u64,
        watch: RegionReporter,
        collects: bool,
    ) -> Result<Self, RuntimeError> {
        let source = PinnedMemory::new(context);
        let memory = Arc::new(WatchedPool::new(source, watch, limit_bytes, collects)?);
        Self::of(PINNED_NAME, Some(node), memory, false)
    }

    fn of(
        name: &'static str,
        node: Option<Node>,
        memory: Arc<dyn HostBlocks>,
        logs: bool,
    ) -> Result<Self, RuntimeError> {
        let make = |memory, log| {
            Self(Arc::new(HostInner {
                name,
                node,
                memory,
                log,
            }))
        };
        let log = logs.then(|| logged(make(memory.clone(), None)));
        Ok(make(memory, log.transpose()?))
    }

    /// Returns the counts of calls, if memory is logged.
    pub fn log_stats(&self) -> Option<TrackStats> {
        Some(self.0.log.as_ref()?.track_stats())
    }

    /// Passes the records of calls to `f`, oldest first, if memory is logged: the newest 4096 since the last
    /// call. A record's tick is in nanoseconds since the allocator was made.
    pub fn drain_log(&self, f: impl FnMut(TrackRecord)) {
        if let Some(log) = &self.0.log {
            log.drain_records(f);
        }
    }

    /// Returns its name.
    pub fn name(&self) -> &'static str {
        self.0.name
    }

    /// Returns the NUMA node of its memory; `None` if it is bound to none.
    pub fn node(&self) -> Option<Node> {
        self.0.node
    }

    /// Returns whether its memory lies on that node.
    pub fn binding(&self) -> Binding {
        self.0.memory.binding()
    }

    /// Returns whether its memory is pinned, so that a GPU copies to and from it at full speed.
    pub fn is_pinned(&self) -> bool {
        self.context().is_some()
    }

    /// Returns the context through which memory is pinned; `None` for plain memory.
    pub fn context(&self) -> Option<&Context> {
        self.0.memory.pinned().map(PinnedMemory::context)
    }

    /// Returns the driver's newest refusal to pin memory.
    pub fn last_error(&self) -> Option<DriverError> {
        self.0.memory.pinned()?.last_error()
    }

    /// Frees idle memory and returns its bytes: 0 for the global allocator, which has a policy of its own.
    pub fn trim(&self) -> u64 {
        self.0.memory.trim()
    }

    /// Returns the number of blocks in use.
    pub fn live_blocks(&self) -> u64 {
        self.0.memory.live_blocks()
    }

    /// Returns whether both are the same allocator.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn blocks(&self) -> &dyn BlockAllocator {
        match &self.0.log {
            Some(log) => log,
            None => self.0.memory.blocks(),
        }
    }

    /// Returns the blocks in use when the runtime ends.
    pub(super) fn left(&self) -> Left {
        let node = self.node().filter(|_| self.is_pinned());
        let of_node = node.map(|node| format!(" of {node}")).unwrap_or_default();
        Left {
            name: format!("{}{of_node}", self.name()),
            blocks: self.live_blocks(),
            bytes: self.stats().live_bytes,
            shared: Arc::strong_count(&self.0) > 1,
        }
    }
}

impl BlockAllocator for HostAllocator {
    fn alloc(&self, request: &Request) -> Result<Grant, AllocError> {
        self.blocks().alloc(request)
    }

    /// A best fit frees the block in the order of the point's stream. The other kinds have no streams and
    /// refuse a point.
    fn free_at(&self, block: Block, point: Option<StreamPoint>) -> Result<(), Rejected<FreeError>> {
        self.blocks().free_at(block, point)
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

impl fmt::Debug for HostAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostAllocator")
            .field("name", &self.name())
            .field("node", &self.node())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
