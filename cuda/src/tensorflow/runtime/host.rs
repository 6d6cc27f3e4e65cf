//! [`HostAllocator`]: the host's memory of a node, plain or pinned, chosen as TensorFlow's ProcessState does.
//!
//! | best fit wanted | NUMA, or a visitor | plain memory is | name |
//! |---|---|---|---|
//! | yes | any | best fit over [`CpuMemory`] | `bfc_cpu_allocator_for_gpu` |
//! | no | yes | pool over [`CpuMemory`] | `cpu_pool` |
//! | no | no | the program's global allocator | `cpu` |
//!
//! Where nothing is said, a best fit is wanted if there is a visitor. Pinned memory is a best fit over
//! [`PinnedMemory`], `gpu_host_bfc`.

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
use super::watch::Watch;
use super::watched_pool::WatchedPool;
use crate::{Context, DriverError, PinnedMemory};

/// The name of the best fit over plain memory: upstream's.
const BFC_NAME: &str = "bfc_cpu_allocator_for_gpu";
/// The name of the pool.
const POOL_NAME: &str = "cpu_pool";
/// The name of the global allocator.
const BASE_NAME: &str = "cpu";
/// The name of pinned memory: upstream's.
const PINNED_NAME: &str = "gpu_host_bfc";

/// What serves plain memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CpuKind {
    Bfc,
    Pool,
    Base,
}

impl CpuKind {
    /// The table above.
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

/// Blocks of host memory, and what a runtime asks beside them.
pub(super) trait HostBlocks: Send + Sync {
    /// The allocator itself.
    fn blocks(&self) -> &dyn BlockAllocator;

    /// Blocks in use.
    fn live_blocks(&self) -> u64;

    /// Gives idle memory back; the bytes.
    fn trim(&self) -> u64 {
        0
    }

    /// Whether its memory lies on its node.
    fn binding(&self) -> Binding {
        Binding::None
    }

    /// Where its regions come from, if they are pinned.
    fn pinned(&self) -> Option<&PinnedMemory> {
        None
    }
}

/// An allocator of host memory, for the host's own use: streams are not served here
/// ([`PinnedAllocator`](crate::PinnedAllocator) has buffers that wait for their streams). A clone is the same one;
/// it lives as long as its last clone.
///
/// It tracks sizes whichever it is. Blocks are values without a destructor: those that are not freed when the last
/// clone goes stay as they are for as long as the process lives.
///
/// Of pinned memory the driver chooses where the pages lie; the node tells allocators and visitors apart.
#[derive(Clone)]
pub struct HostAllocator(Arc<HostInner>);

struct HostInner {
    name: &'static str,
    node: Option<Node>,
    memory: Arc<dyn HostBlocks>,
    /// With records of each call: the same memory behind them.
    log: Option<Logged<HostAllocator>>,
}

impl HostAllocator {
    /// Plain memory. `node` is where it shall lie.
    pub(super) fn cpu(
        kind: CpuKind,
        node: Option<Node>,
        limit_bytes: u64,
        watch: Watch,
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

    /// Pinned memory through a context. Wholly free regions go back before an allocation fails if `collects` says so.
    pub(super) fn pinned(
        context: &Context,
        node: Node,
        limit_bytes: u64,
        watch: Watch,
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

    /// What was counted call by call, where memory is logged.
    pub fn log_stats(&self) -> Option<TrackStats> {
        Some(self.0.log.as_ref()?.track_stats())
    }

    /// Hands the records of calls over, oldest first, where memory is logged: the newest 4096 since the last time.
    /// A record's tick is in nanoseconds since the allocator was made.
    pub fn drain_log(&self, f: impl FnMut(TrackRecord)) {
        if let Some(log) = &self.0.log {
            log.drain_records(f);
        }
    }

    /// What it is called.
    pub fn name(&self) -> &'static str {
        self.0.name
    }

    /// The NUMA node of its memory; `None` if it is bound to none.
    pub fn node(&self) -> Option<Node> {
        self.0.node
    }

    /// Whether its memory lies on that node.
    pub fn binding(&self) -> Binding {
        self.0.memory.binding()
    }

    /// Whether its memory is pinned: a GPU copies from and to it at full speed.
    pub fn is_pinned(&self) -> bool {
        self.context().is_some()
    }

    /// The context through which memory is pinned; `None` for plain memory.
    pub fn context(&self) -> Option<&Context> {
        self.0.memory.pinned().map(PinnedMemory::context)
    }

    /// The driver's newest refusal to pin memory.
    pub fn last_error(&self) -> Option<DriverError> {
        self.0.memory.pinned()?.last_error()
    }

    /// Gives idle memory back; the bytes. The global allocator keeps what it likes.
    pub fn trim(&self) -> u64 {
        self.0.memory.trim()
    }

    /// Blocks in use.
    pub fn live_blocks(&self) -> u64 {
        self.0.memory.live_blocks()
    }

    /// Whether both are the same allocator.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn blocks(&self) -> &dyn BlockAllocator {
        match &self.0.log {
            Some(log) => log,
            None => self.0.memory.blocks(),
        }
    }

    /// What is out when the runtime goes.
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

    /// A best fit keeps the block on the point's stream; the others know no streams and refuse a point.
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
