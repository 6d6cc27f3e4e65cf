//! [`Runtime`]: the allocators that a program shares, each made on its first request.
//!
//! There is one host allocator and one pinned allocator for each NUMA node, and one GPU allocator for each
//! logical device, as in TensorFlow's ProcessState and GPUProcessState, but in a value.
//!
//! * RUN1 a slot is built once, by the first request; from then on, a request takes no lock.
//! * RUN2 no lock is held while an allocator is made, nor while a visitor runs.
//! * RUN3 a request that fails leaves the slot empty and everything unchanged.
//! * RUN4 the memory of a block in use is never freed: see [`Runtime::shutdown`].
//!
//! # Files
//! `config` settings · `topology` nodes · `slot` a value built once · `host`, `gpu` the allocators ·
//! `devices` the making of a GPU's · `base`, `host_pool`, `watched_pool` the memory they use · `cpu_memory`
//! regions of a node · `watch`, `visitors`, `kind` the observers of regions · `logged` records of calls ·
//! `route` the choice for a device · `limit` the formula · `shutdown`

mod base;
mod config;
mod cpu_memory;
mod devices;
mod error;
mod gpu;
mod host;
mod host_pool;
mod kind;
mod limit;
mod logged;
mod route;
mod shutdown;
mod slot;
mod topology;
mod visitors;
mod watch;
mod watched_pool;

use core::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

pub use config::{BadVariable, GpuKind, RuntimeConfig};
pub use cpu_memory::{Binding, CpuMemory};
pub use devices::{GpuGiven, GpuOptions, LogicalDevice};
pub use error::{LimitMismatch, RuntimeError, VisitorLate};
pub use gpu::GpuAllocator;
pub use host::HostAllocator;
pub use kind::{MemoryKind, Place};
pub use limit::{limit_of_available, limit_of_fraction};
pub use route::{Device, Route};
pub use shutdown::{Left, Shutdown};
pub use topology::{Node, PciAddress, Topology};
pub use visitors::Visited;
pub use watch::{RegionVisit, Visitor};

use devices::Logical;
use host::CpuKind;
use kind::RegionMap;
use slot::OnceSlot;
use visitors::VisitorTable;
use watch::{RegionReporter, Visitors};

/// The allocators of a program, or of a part of one. Clones share the runtime; tests make their own.
///
/// ```
/// use larder_core::{BlockAllocator, Request};
/// use larder_cuda::runtime::{Runtime, RuntimeConfig};
///
/// let runtime = Runtime::new(RuntimeConfig::default());
/// let host = runtime.cpu_allocator(None)?;
/// assert_eq!(host.name(), "cpu");
/// let block = host.alloc(&Request::new(1000))?.block;
/// host.free(block)?;
/// drop(host);
/// assert!(runtime.shutdown().unwrap().is_clean());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Runtime(Arc<RuntimeInner>);

struct RuntimeInner {
    config: RuntimeConfig,
    topology: Topology,
    /// The devices that the program named, or otherwise one for each of the driver's devices, once these are
    /// known.
    devices: OnceLock<Vec<Logical>>,
    /// Host allocators in the order of the topology's nodes, like `pinned`.
    cpu: Vec<OnceSlot<HostAllocator>>,
    pinned: Vec<OnceSlot<HostAllocator>>,
    enabled: AtomicBool,
    visitors: VisitorTable,
    regions: Arc<RegionMap>,
}

impl Runtime {
    /// Makes a runtime for this machine and its devices. Makes no allocator yet, and no driver call.
    pub fn new(config: RuntimeConfig) -> Self {
        Self::with(config, Topology::of_machine(), Vec::new())
    }

    /// Makes a runtime for a machine, real or invented, with these logical devices; an empty list means all of
    /// the driver's devices.
    pub fn with(config: RuntimeConfig, topology: Topology, devices: Vec<LogicalDevice>) -> Self {
        let count = topology.nodes().len();
        let named = OnceLock::new();
        if !devices.is_empty() {
            let _ = named.set(Logical::list(devices));
        }
        Self(Arc::new(RuntimeInner {
            config,
            topology,
            devices: named,
            cpu: (0..count).map(|_| OnceSlot::new()).collect(),
            pinned: (0..count).map(|_| OnceSlot::new()).collect(),
            enabled: AtomicBool::new(false),
            visitors: VisitorTable::default(),
            regions: Arc::default(),
        }))
    }

    /// Returns the runtime of the process, made from the environment on the first call. It lives until the
    /// process ends.
    ///
    /// # Errors
    /// If the value of `TF_GPU_ALLOCATOR` is unknown, on every call. The call that makes the runtime adds all
    /// other invalid variables to `bad`; their defaults are in force.
    pub fn global(bad: &mut Vec<BadVariable>) -> Result<&'static Self, BadVariable> {
        static GLOBAL: OnceSlot<Runtime> = OnceSlot::new();
        GLOBAL.get_or_build(|| {
            let (config, problems) = RuntimeConfig::from_env()?;
            bad.extend(problems);
            Ok(Self::new(config))
        })
    }

    /// Returns the settings.
    pub fn config(&self) -> &RuntimeConfig {
        &self.0.config
    }

    /// Returns the machine.
    pub fn topology(&self) -> &Topology {
        &self.0.topology
    }

    /// Returns the allocator of plain host memory of a node; `None` means any node. Without NUMA, every node
    /// counts as the first one, and its memory is bound to none. Takes O(log nodes) and no lock once the
    /// allocator is made.
    ///
    /// Its [name](HostAllocator::name) says which of three kinds it is: a best fit, if one is wanted or by
    /// default if there is a visitor; otherwise a pool, with NUMA or a visitor; otherwise the program's global
    /// allocator.
    ///
    /// # Errors
    /// [`RuntimeError::Node`] if NUMA is on and the machine has no such node.
    pub fn cpu_allocator(&self, node: Option<Node>) -> Result<HostAllocator, RuntimeError> {
        let inner = &*self.0;
        let numa = inner.config.numa;
        let node = node.filter(|_| numa).unwrap_or(inner.topology.first());
        let slot = inner.slot_of(&inner.cpu, node)?;
        let made = slot.get_or_build(|| {
            let taker = inner.visitors.take(Visited::Cpu);
            let visited = !taker.visitors.is_empty();
            let kind = CpuKind::of(inner.config.cpu_bfc, numa, visited);
            let watch = inner.watch(taker.visitors.clone(), node.number(), MemoryKind::default());
            let limit = inner.config.cpu_limit_bytes;
            let (bound_to, logs) = (numa.then_some(node), inner.config.log_memory);
            let made = HostAllocator::cpu(kind, bound_to, limit, watch, logs)?;
            taker.made();
            Ok::<_, RuntimeError>(made)
        })?;
        Ok(made.clone())
    }

    /// Announces that GPUs will be used: from now on pinned memory is really pinned. Requesting a GPU allocator
    /// does this too.
    pub fn enable_gpus(&self) {
        // Relaxed: a reader then reads the slots, which are synchronized themselves.
        self.0.enabled.store(true, Ordering::Relaxed);
    }

    /// Returns whether GPUs will be used.
    pub fn gpus_enabled(&self) -> bool {
        self.0.enabled.load(Ordering::Relaxed)
    }

    /// Returns the allocator of pinned memory of a node, with NUMA or without; `None` means the first node.
    /// Until GPUs are [enabled](Self::enable_gpus), returns that node's allocator of plain memory.
    ///
    /// The memory is pinned through the context of the first GPU that has an allocator.
    ///
    /// # Errors
    /// [`RuntimeError::NoGpuAllocator`] if GPUs are enabled but none has an allocator yet, and
    /// [`RuntimeError::Node`].
    pub fn pinned_allocator(&self, node: Option<Node>) -> Result<HostAllocator, RuntimeError> {
        let inner = &*self.0;
        if !self.gpus_enabled() {
            return self.cpu_allocator(node);
        }
        let first = inner.topology.first();
        let node = match node {
            Some(node) if !inner.config.pinned_of_node_zero => node,
            _ => first,
        };
        let slot = inner.slot_of(&inner.pinned, node)?;
        let made = slot.get_or_build(|| {
            let mut gpus = inner.gpus();
            let gpu = gpus.next().ok_or(RuntimeError::NoGpuAllocator)?;
            let taker = inner.visitors.take(Visited::Pinned(node));
            let watch = inner.watch(taker.visitors.clone(), node.number(), MemoryKind::pinned());
            let config = &inner.config;
            let (limit, collects) = (config.pinned_limit_bytes, config.collect_regions);
            let made = HostAllocator::pinned(gpu.context(), node, limit, watch, collects)?;
            taker.made();
            Ok::<_, RuntimeError>(made)
        })?;
        Ok(made.clone())
    }

    /// Returns the kind of memory at an address inside any region that this runtime's allocators hold. All
    /// other addresses, including null and freed memory, count as plain host memory, which blocks from the
    /// global allocator really are. O(log regions).
    pub fn memory_kind(&self, address: u64) -> MemoryKind {
        self.0.regions.find(address).unwrap_or_default()
    }

    /// Returns the number of regions held.
    pub fn regions(&self) -> usize {
        self.0.regions.len()
    }

    /// Calls `visitor` for each new region, the first visitor first.
    ///
    /// # Errors
    /// [`VisitorLate`] if an allocator of such memory exists, on any node; nothing is registered then.
    pub fn add_alloc_visitor(&self, of: Visited, visitor: Visitor) -> Result<(), VisitorLate> {
        let list = |visitors: &mut Visitors| visitors.alloc.push(visitor);
        self.0.visitors.add(of, list)
    }

    /// Calls `visitor` for each region before it is freed, the last visitor first.
    ///
    /// # Errors
    /// [`VisitorLate`] if an allocator of such memory exists, on any node; nothing is registered then.
    pub fn add_free_visitor(&self, of: Visited, visitor: Visitor) -> Result<(), VisitorLate> {
        let list = |visitors: &mut Visitors| visitors.free.push(visitor);
        self.0.visitors.add(of, list)
    }

    /// Ends the runtime and reports the blocks in use. Pinned memory is freed first, then the GPUs' memory,
    /// then plain host memory. A context ends with its last user.
    ///
    /// Memory of blocks that were not freed is leaked. An allocator that has other clones lives on until they
    /// are dropped. Dropping the last clone of a runtime does the same, without a report.
    ///
    /// # Errors
    /// Returns the runtime if it is not the last clone.
    pub fn shutdown(self) -> Result<Shutdown, Self> {
        let inner = Arc::try_unwrap(self.0).map_err(Self)?;
        let mut left = Vec::new();
        let mut note = |what: Left| {
            if !what.is_nothing() {
                left.push(what);
            }
        };
        for pinned in inner.pinned.into_iter().filter_map(OnceSlot::into_inner) {
            note(pinned.left());
        }
        let devices = inner.devices.into_inner().unwrap_or_default();
        let gpus = devices.into_iter().filter_map(|gpu| gpu.slot.into_inner());
        for gpu in gpus {
            note(gpu.left());
        }
        for cpu in inner.cpu.into_iter().filter_map(OnceSlot::into_inner) {
            note(cpu.left());
        }
        Ok(Shutdown { left })
    }
}

impl RuntimeInner {
    /// Returns the slot of a node.
    fn slot_of<'s, T>(
        &self,
        slots: &'s [OnceSlot<T>],
        node: Node,
    ) -> Result<&'s OnceSlot<T>, RuntimeError> {
        let slot = self
            .topology
            .place_of(node)
            .and_then(|place| slots.get(place));
        let nodes = self.topology.nodes().len();
        slot.ok_or(RuntimeError::Node { node, nodes })
    }

    fn watch(&self, visitors: Visitors, index: u32, kind: MemoryKind) -> RegionReporter {
        RegionReporter::new(visitors, index, &self.regions, kind)
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        let cpu: Vec<_> = inner.cpu.iter().filter_map(OnceSlot::get).collect();
        let pinned: Vec<_> = inner.pinned.iter().filter_map(OnceSlot::get).collect();
        f.debug_struct("Runtime")
            .field("nodes", &inner.topology.nodes())
            .field("cpu", &cpu)
            .field("gpus", &inner.gpus().collect::<Vec<_>>())
            .field("pinned", &pinned)
            .finish_non_exhaustive()
    }
}
