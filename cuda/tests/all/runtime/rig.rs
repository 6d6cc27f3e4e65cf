//! Helpers shared by the tests of the runtime.

use std::sync::{Arc, Mutex};

use larder_core::{Block, BlockAllocator, Request};
use larder_cuda::CudaStream;
use larder_cuda::runtime::{
    GpuAllocator, GpuKind, GpuOptions, HostAllocator, LogicalDevice, Node, PciAddress, RegionVisit,
    Runtime, RuntimeConfig, Topology, Visited, Visitor,
};

use crate::common::{MIB, alone_and_clean};

/// Returns a device's PCI address. The stand-in's devices are on buses 1 and 2.
pub(crate) fn pci(bus: u32) -> PciAddress {
    PciAddress {
        domain: 0,
        bus,
        device: 0,
    }
}

pub(crate) fn four_nodes() -> Topology {
    Topology::made([0, 1, 2, 3], [(pci(1), Node::ZERO), (pci(2), Node::new(2))])
}

pub(crate) fn with(change: impl FnOnce(&mut RuntimeConfig)) -> RuntimeConfig {
    let mut config = RuntimeConfig::default();
    change(&mut config);
    config
}

pub(crate) fn numa() -> RuntimeConfig {
    with(|config| config.numa = true)
}

pub(crate) fn host_kind(cpu_bfc: impl Into<Option<bool>>, numa: bool) -> RuntimeConfig {
    with(|config| (config.cpu_bfc, config.numa) = (cpu_bfc.into(), numa))
}

/// Returns the settings of each kind of host memory: best fit, pool, and the global allocator.
pub(crate) fn host_kinds() -> [RuntimeConfig; 3] {
    [(true, false), (false, true), (false, false)].map(|(bfc, numa)| host_kind(bfc, numa))
}

pub(crate) fn of_kind(gpu_kind: GpuKind) -> RuntimeConfig {
    with(|config| (config.gpu_kind, config.vmem) = (gpu_kind, false))
}

pub(crate) fn growing() -> GpuOptions {
    GpuOptions {
        allow_growth: true,
        ..GpuOptions::default()
    }
}

pub(crate) fn unified() -> GpuOptions {
    GpuOptions {
        unified_memory: true,
        ..growing()
    }
}

pub(crate) fn runtime(config: RuntimeConfig) -> Runtime {
    with_devices(config, Vec::new())
}

pub(crate) fn with_devices(config: RuntimeConfig, devices: Vec<LogicalDevice>) -> Runtime {
    Runtime::with(config, four_nodes(), devices)
}

#[track_caller]
pub(crate) fn end(runtime: Runtime) {
    let report = runtime.shutdown().unwrap();
    assert!(report.is_clean(), "{report}");
}

/// Runs a test with a runtime on the stand-in, and checks that nothing is left.
#[track_caller]
pub(crate) fn on_gpus(config: RuntimeConfig, test: impl FnOnce(&Runtime)) {
    alone_and_clean(|_| {
        let runtime = runtime(config);
        test(&runtime);
        end(runtime);
    });
}

/// Settings and options that choose a kind of device memory.
#[derive(Clone)]
pub(crate) struct Way {
    pub(crate) kind: GpuKind,
    /// The name of device 1's allocator.
    pub(crate) name: &'static str,
    pub(crate) config: RuntimeConfig,
    pub(crate) options: GpuOptions,
}

pub(crate) fn kinds() -> Vec<Way> {
    let kinds = [
        (GpuKind::Default, "GPU_1_bfc"),
        (GpuKind::CudaMalloc, "GPU_1_cuda_malloc"),
        (GpuKind::CudaMallocAsync, "GPU_1_cuda_malloc_async"),
        (GpuKind::TensorPool, "GPU_1_tensorpool"),
        (GpuKind::MemoryGuard, "GPU_1_bfc"),
    ];
    let way = |(kind, name)| Way {
        kind,
        name,
        config: of_kind(kind),
        options: growing(),
    };
    kinds.map(way).to_vec()
}

/// Returns all of [`kinds`], managed memory, and device memory with some host memory for when it is full.
pub(crate) fn ways() -> Vec<Way> {
    let mut ways = kinds();
    let (mut managed, mut behind) = (ways[0].clone(), ways[0].clone());
    managed.options = unified();
    behind.name = "GPUVMem_1_bfc";
    behind.config.vmem = true;
    behind.config.vmem_host_limit_bytes = 8 * MIB;
    ways.extend([managed, behind]);
    ways
}

impl Way {
    pub(crate) fn gpu(&self, runtime: &Runtime, id: usize, mebibytes: u64) -> GpuAllocator {
        let given = runtime.gpu_allocator(id, &self.options, mebibytes * MIB);
        given.unwrap().allocator
    }

    pub(crate) fn words(&self) -> String {
        format!("{}, managed: {}", self.name, self.options.unified_memory)
    }
}

/// Runs a test with a runtime for each way, and checks that nothing is left.
#[track_caller]
pub(crate) fn each(ways: Vec<Way>, test: impl Fn(&Way, &Runtime)) {
    for way in ways {
        println!("{}", way.words());
        on_gpus(way.config.clone(), |runtime| test(&way, runtime));
    }
}

/// Returns a device's allocator of the default kind, which grows up to a limit.
pub(crate) fn gpu(runtime: &Runtime, id: usize, mebibytes: u64) -> GpuAllocator {
    kinds()[0].gpu(runtime, id, mebibytes)
}

pub(crate) fn stream_of(gpu: &GpuAllocator) -> Arc<CudaStream> {
    gpu.context().cudarc().new_stream().unwrap()
}

pub(crate) fn cpu(runtime: &Runtime, node: u32) -> HostAllocator {
    runtime.cpu_allocator(Some(Node::new(node))).unwrap()
}

pub(crate) fn pinned(runtime: &Runtime, node: u32) -> HostAllocator {
    runtime.pinned_allocator(Some(Node::new(node))).unwrap()
}

pub(crate) fn take(allocator: &impl BlockAllocator, bytes: u64) -> Block {
    let grant = allocator.alloc(&Request::new(bytes)).unwrap();
    assert_eq!(grant.wait, None);
    grant.block
}

pub(crate) fn write(block: &Block, value: u8) {
    let start = core::ptr::with_exposed_provenance_mut::<u8>(block.addr().get() as usize);
    // SAFETY: the test holds the block.
    unsafe { start.write_bytes(value, block.bytes() as usize) };
}

pub(crate) fn holds(block: &Block, value: u8) -> bool {
    let start = core::ptr::with_exposed_provenance::<u8>(block.addr().get() as usize);
    // SAFETY: the test holds the block and has written all of it.
    let bytes = unsafe { core::slice::from_raw_parts(start, block.bytes() as usize) };
    bytes.iter().all(|byte| *byte == value)
}

/// The calls of visitors: the visitor's name and the region.
#[derive(Clone, Default)]
pub(crate) struct Diary(Arc<Mutex<Vec<(&'static str, RegionVisit)>>>);

impl Diary {
    pub(crate) fn visitor(&self, name: &'static str) -> Visitor {
        let diary = self.0.clone();
        Arc::new(move |visit| diary.lock().unwrap().push((name, visit)))
    }

    pub(crate) fn of(runtime: &Runtime, memory: Visited) -> Self {
        let diary = Self::default();
        let alloc = runtime.add_alloc_visitor(memory, diary.visitor("alloc"));
        let free = runtime.add_free_visitor(memory, diary.visitor("free"));
        assert_eq!((alloc, free), (Ok(()), Ok(())));
        diary
    }

    pub(crate) fn names(&self) -> Vec<&'static str> {
        self.visits().iter().map(|(name, _)| *name).collect()
    }

    pub(crate) fn visits(&self) -> Vec<(&'static str, RegionVisit)> {
        self.0.lock().unwrap().clone()
    }
}
