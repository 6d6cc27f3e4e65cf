//! The parts shared by the tests of the runtime.

use std::sync::{Arc, Mutex};

use larder_core::{Block, BlockAllocator, Request};
use larder_cuda::runtime::{
    LogicalDevice, Node, PciAddress, RegionVisit, Runtime, RuntimeConfig, Topology, Visitor,
};

/// The stand-in's devices sit on bus 1 and 2.
pub(crate) fn pci(bus: u32) -> PciAddress {
    PciAddress {
        domain: 0,
        bus,
        device: 0,
    }
}

/// A machine of four nodes; the second device hangs on node 2.
pub(crate) fn four_nodes() -> Topology {
    Topology::made([0, 1, 2, 3], [(pci(1), Node::ZERO), (pci(2), Node::new(2))])
}

pub(crate) fn numa() -> RuntimeConfig {
    RuntimeConfig {
        numa: true,
        ..RuntimeConfig::default()
    }
}

/// A runtime on a machine of four nodes.
pub(crate) fn runtime(config: RuntimeConfig) -> Runtime {
    Runtime::with(config, four_nodes(), Vec::new())
}

/// A runtime on a machine of four nodes, with named devices.
pub(crate) fn with_devices(config: RuntimeConfig, devices: Vec<LogicalDevice>) -> Runtime {
    Runtime::with(config, four_nodes(), devices)
}

pub(crate) fn take(allocator: &impl BlockAllocator, bytes: u64) -> Block {
    let grant = allocator.alloc(&Request::new(bytes)).unwrap();
    assert_eq!(grant.wait, None);
    grant.block
}

/// Writes over a block of the host.
pub(crate) fn write(block: &Block, value: u8) {
    let start = core::ptr::with_exposed_provenance_mut::<u8>(block.addr().get() as usize);
    // SAFETY: the test holds the block.
    unsafe { start.write_bytes(value, block.bytes() as usize) };
}

/// Returns whether a block of the host has a value in every byte.
pub(crate) fn holds(block: &Block, value: u8) -> bool {
    let start = core::ptr::with_exposed_provenance::<u8>(block.addr().get() as usize);
    // SAFETY: the test holds the block and wrote it.
    let bytes = unsafe { core::slice::from_raw_parts(start, block.bytes() as usize) };
    bytes.iter().all(|byte| *byte == value)
}

/// The calls of visitors: who, and for what.
#[derive(Clone, Default)]
pub(crate) struct Diary(Arc<Mutex<Vec<(&'static str, RegionVisit)>>>);

impl Diary {
    pub(crate) fn visitor(&self, name: &'static str) -> Visitor {
        let diary = self.0.clone();
        Arc::new(move |visit| diary.lock().unwrap().push((name, visit)))
    }

    pub(crate) fn names(&self) -> Vec<&'static str> {
        self.0
            .lock()
            .unwrap()
            .iter()
            .map(|(name, _)| *name)
            .collect()
    }

    pub(crate) fn visits(&self) -> Vec<(&'static str, RegionVisit)> {
        self.0.lock().unwrap().clone()
    }
}
