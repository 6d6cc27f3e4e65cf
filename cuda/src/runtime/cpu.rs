//! [`CpuAllocator`]: the host's memory, chosen as TensorFlow's ProcessState does.
//!
//! | best fit wanted | NUMA, or a visitor | allocator | name |
//! |---|---|---|---|
//! | yes | any | best fit over [`CpuMemory`] | `bfc_cpu_allocator_for_gpu` |
//! | no | yes | pool over [`CpuMemory`] | `cpu_pool` |
//! | no | no | the program's global allocator | `cpu` |
//!
//! Where nothing is said, a best fit is wanted if there is a visitor.

use core::fmt;
use std::sync::Arc;

use larder_core::decorate::{Record, TrackStats};
use larder_core::{
    AllocError, Block, BlockAllocator, FreeRejected, Grant, Request, Stats, StreamPoint,
};

use super::base::Base;
use super::best_fit::BestFit;
use super::cpu_memory::{Binding, CpuMemory};
use super::error::RuntimeError;
use super::host_pool::HostPool;
use super::logged::Logged;
use super::shutdown::Left;
use super::topology::Node;
use super::watch::Watch;

/// The name of the best fit: upstream's.
const BFC_NAME: &str = "bfc_cpu_allocator_for_gpu";
/// The name of the pool.
const POOL_NAME: &str = "cpu_pool";
/// The name of the global allocator.
const BASE_NAME: &str = "cpu";

/// Which of the three it is.
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

/// An allocator of host memory. A clone is the same one; it lives as long as its last clone.
///
/// It tracks sizes whichever it is. Blocks are values without a destructor: those that are not freed when the last
/// clone goes stay as they are for as long as the process lives.
#[derive(Clone)]
pub struct CpuAllocator(Arc<CpuInner>);

struct CpuInner {
    node: Option<Node>,
    memory: Kept,
}

/// With records of each call, or without.
enum Kept {
    Plain(CpuBackend),
    Logged(Logged<CpuBackend>),
}

enum CpuBackend {
    Bfc(Box<BestFit<CpuMemory>>),
    Pool(Box<HostPool>),
    Base(Box<Base>),
}

impl CpuAllocator {
    /// Holds nothing yet. `node` is where its memory shall lie.
    pub(super) fn new(
        kind: CpuKind,
        node: Option<Node>,
        limit_bytes: u64,
        watch: Watch,
        logs: bool,
    ) -> Result<Self, RuntimeError> {
        let memory = match kind {
            CpuKind::Bfc => {
                let source = CpuMemory::new(node);
                CpuBackend::Bfc(Box::new(BestFit::new(source, watch, limit_bytes, false)?))
            }
            CpuKind::Pool => {
                let source = CpuMemory::new(node);
                CpuBackend::Pool(Box::new(HostPool::new(source, watch)?))
            }
            CpuKind::Base => CpuBackend::Base(Box::default()),
        };
        let memory = match logs {
            true => Kept::Logged(Logged::new(memory)),
            false => Kept::Plain(memory),
        };
        Ok(Self(Arc::new(CpuInner { node, memory })))
    }

    fn memory(&self) -> &CpuBackend {
        match &self.0.memory {
            Kept::Plain(memory) => memory,
            Kept::Logged(logged) => logged.inner(),
        }
    }

    /// What was counted call by call, where memory is logged.
    pub fn log_stats(&self) -> Option<TrackStats> {
        match &self.0.memory {
            Kept::Plain(_) => None,
            Kept::Logged(logged) => Some(logged.stats()),
        }
    }

    /// Hands the records of calls over, oldest first, where memory is logged: the newest 4096 since the last time.
    /// A record's tick is in nanoseconds since the allocator was made.
    pub fn drain_log(&self, f: impl FnMut(Record)) {
        if let Kept::Logged(logged) = &self.0.memory {
            logged.drain(f);
        }
    }

    /// What it is called.
    pub fn name(&self) -> &'static str {
        match self.memory() {
            CpuBackend::Bfc(_) => BFC_NAME,
            CpuBackend::Pool(_) => POOL_NAME,
            CpuBackend::Base(_) => BASE_NAME,
        }
    }

    /// The NUMA node of its memory; `None` if it is bound to none.
    pub fn node(&self) -> Option<Node> {
        self.0.node
    }

    /// Whether its memory lies on that node.
    pub fn binding(&self) -> Binding {
        match self.memory() {
            CpuBackend::Bfc(bfc) => bfc.source().binding(),
            CpuBackend::Pool(pool) => pool.source().binding(),
            CpuBackend::Base(_) => Binding::None,
        }
    }

    /// Gives idle memory back; the bytes. The global allocator keeps what it likes.
    pub fn trim(&self) -> u64 {
        match self.memory() {
            CpuBackend::Bfc(bfc) => bfc.trim(),
            CpuBackend::Pool(pool) => pool.trim(),
            CpuBackend::Base(_) => 0,
        }
    }

    /// Blocks in use.
    pub fn live_blocks(&self) -> u64 {
        match self.memory() {
            CpuBackend::Bfc(bfc) => bfc.live_blocks(),
            CpuBackend::Pool(pool) => pool.live_blocks(),
            CpuBackend::Base(base) => base.live_blocks(),
        }
    }

    /// Whether both are the same allocator.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn blocks(&self) -> &dyn BlockAllocator {
        match &self.0.memory {
            Kept::Plain(memory) => memory.blocks(),
            Kept::Logged(logged) => logged.blocks(),
        }
    }

    /// What is out when the runtime goes.
    pub(super) fn left(&self) -> Left {
        Left {
            name: self.name().to_owned(),
            blocks: self.live_blocks(),
            bytes: self.stats().live_bytes,
            shared: Arc::strong_count(&self.0) > 1,
        }
    }
}

impl CpuBackend {
    fn blocks(&self) -> &dyn BlockAllocator {
        match self {
            Self::Bfc(bfc) => bfc.as_ref(),
            Self::Pool(pool) => pool.as_ref(),
            Self::Base(base) => base.as_ref(),
        }
    }
}

impl BlockAllocator for CpuBackend {
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

impl BlockAllocator for CpuAllocator {
    fn alloc(&self, request: &Request) -> Result<Grant, AllocError> {
        self.blocks().alloc(request)
    }

    fn free(&self, block: Block) -> Result<(), FreeRejected> {
        self.blocks().free(block)
    }

    /// The best fit keeps the block on its stream; the others know no streams and refuse.
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

impl fmt::Debug for CpuAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuAllocator")
            .field("name", &self.name())
            .field("node", &self.node())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
