//! A pool over a device, whose blocks are filled on its stream and checked before they are freed.

use std::sync::Arc;

use cudarc::driver::result;
use larder_core::prmalloc::{PlannedPoolConfig, Window};
use larder_core::{Align, Block};
use larder_cuda::{
    Context, CudaStream, DeviceAllocator, DeviceConfig, DeviceTensorPool, TensorPoolConfig,
};

use crate::common::{fill, read};

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;

pub(crate) fn align(bytes: u64) -> Align {
    Align::new(bytes).unwrap()
}

/// The default, planned after two steps that are alike, and once.
pub(crate) fn soon() -> TensorPoolConfig {
    let mut pool = PlannedPoolConfig::new();
    pool.planner.window = Window {
        start: 0,
        stable: 0,
        max: 50,
    };
    pool.replan = None;
    TensorPoolConfig::with_pool(pool)
}

/// A device of 1 GiB and a stream on it.
pub(crate) struct Device {
    pub(crate) memory: DeviceAllocator,
    pub(crate) stream: Arc<CudaStream>,
}

impl Device {
    pub(crate) fn new() -> Self {
        Self::with_limit(GIB)
    }

    pub(crate) fn with_limit(limit_bytes: u64) -> Self {
        let context = Context::new(0).unwrap();
        let config = DeviceConfig {
            limit_bytes,
            address_bytes: 8 * GIB,
            ..DeviceConfig::new()
        };
        Self {
            memory: DeviceAllocator::with_config(&context, config).unwrap(),
            stream: context.cudarc().new_stream().unwrap(),
        }
    }

    pub(crate) fn pool(&self, config: TensorPoolConfig) -> DeviceTensorPool {
        DeviceTensorPool::new(&self.memory, &self.stream, config).unwrap()
    }

    /// Allocations of the device's allocator, and bytes in its blocks.
    pub(crate) fn use_of_memory(&self) -> (u64, u64) {
        let stats = self.memory.stats();
        (stats.allocations, stats.live_bytes)
    }
}

/// One thing a step does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    /// Size and alignment, under a name.
    Alloc(usize, u64, u64),
    Free(usize),
}

/// Bytes looked at, at either end of a block.
const EDGE_BYTES: u64 = 64;

/// Block ends that fit into one log.
const LOOKS: u64 = 1 << 14;

/// What the blocks held when they were freed, copied on the stream and read at the end, so that nothing
/// waits for the work in between.
pub(crate) struct Log<'d> {
    device: &'d Device,
    block: Option<Block>,
    expected: Vec<u8>,
}

impl<'d> Log<'d> {
    pub(crate) fn new(device: &'d Device) -> Self {
        let block = device.memory.alloc(&device.stream, LOOKS * EDGE_BYTES);
        Self {
            device,
            block: Some(block.unwrap()),
            expected: Vec::new(),
        }
    }

    fn look(&mut self, addr: u64, value: u8) {
        let at = self.expected.len() as u64;
        assert!(at < LOOKS, "a longer log");
        let log = self.block.as_ref().unwrap().addr().get() + at * EDGE_BYTES;
        let stream = &self.device.stream;
        stream.context().bind_to_thread().unwrap();
        // SAFETY: both are blocks that the test holds.
        let copied = unsafe {
            result::memcpy_dtod_async(log, addr, EDGE_BYTES as usize, stream.cu_stream())
        };
        copied.unwrap();
        self.expected.push(value);
    }

    /// Every block held what was written into it.
    #[track_caller]
    pub(crate) fn check(mut self) {
        let block = self.block.take().unwrap();
        let bytes = self.expected.len() as u64 * EDGE_BYTES;
        if bytes > 0 {
            let seen = read(&self.device.stream, block.addr().get(), bytes);
            for (look, value) in seen.chunks(EDGE_BYTES as usize).zip(&self.expected) {
                assert!(look.iter().all(|byte| byte == value), "{look:?}: {value}");
            }
        }
        self.device.memory.free(&self.device.stream, block).unwrap();
    }
}

/// Blocks in use, by name.
#[derive(Default)]
pub(crate) struct InUse {
    blocks: Vec<Option<(Block, u8)>>,
    written: u8,
}

impl InUse {
    /// Allocates and fills.
    #[track_caller]
    pub(crate) fn alloc(
        &mut self,
        pool: &DeviceTensorPool,
        name: usize,
        bytes: u64,
        to: u64,
    ) -> u64 {
        let block = pool.alloc_aligned(bytes, align(to)).unwrap();
        let addr = block.addr();
        assert!(addr.is_aligned(align(to)), "{addr} for {to}");
        assert_eq!(block.bytes(), bytes);
        self.written = self.written.wrapping_add(1);
        fill(pool.stream(), addr.get(), bytes, self.written);
        if self.blocks.len() <= name {
            self.blocks.resize_with(name + 1, || None);
        }
        let before = self.blocks[name].replace((block, self.written));
        assert_eq!(before, None);
        addr.get()
    }

    /// Reads a block's ends and frees it.
    #[track_caller]
    pub(crate) fn free(&mut self, pool: &DeviceTensorPool, log: &mut Log<'_>, name: usize) {
        let (block, value) = self.blocks[name].take().unwrap();
        if block.bytes() >= EDGE_BYTES {
            log.look(block.addr().get(), value);
            log.look(block.addr().get() + block.bytes() - EDGE_BYTES, value);
        }
        pool.free(block).unwrap();
    }

    #[track_caller]
    pub(crate) fn free_all(&mut self, pool: &DeviceTensorPool, log: &mut Log<'_>) {
        for name in 0..self.blocks.len() {
            if self.blocks[name].is_some() {
                self.free(pool, log, name);
            }
        }
    }

    #[track_caller]
    pub(crate) fn step(&mut self, pool: &DeviceTensorPool, log: &mut Log<'_>, ops: &[Op]) {
        let step = pool.step();
        for &op in ops {
            match op {
                Op::Alloc(name, bytes, to) => {
                    self.alloc(pool, name, bytes, to);
                }
                Op::Free(name) => self.free(pool, log, name),
            }
        }
        step.end().unwrap();
    }
}

/// Steps with these until the pool serves from a plan.
#[track_caller]
pub(crate) fn until_planned(pool: &DeviceTensorPool, log: &mut Log<'_>, ops: &[Op]) {
    let mut in_use = InUse::default();
    for _ in 0..200 {
        in_use.step(pool, log, ops);
        if pool.is_planned() {
            return;
        }
    }
    panic!("no plan after 200 steps: {:?}", pool.plan_error());
}

/// Blocks that live side by side and one behind the other, some small.
pub(crate) const STEP: &[Op] = &[
    Op::Alloc(0, 200_000, 256),
    Op::Alloc(1, 100_000, 256),
    Op::Alloc(2, 1000, 64),
    Op::Free(0),
    Op::Alloc(3, 60_000, 256),
    Op::Alloc(4, 100_000, 256),
    Op::Free(1),
    Op::Free(2),
    Op::Free(3),
    Op::Free(4),
];
