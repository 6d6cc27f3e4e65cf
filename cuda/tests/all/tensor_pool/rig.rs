//! A device's pool that is tested like any other pool. Blocks are filled on its stream, and their contents at the free
//! are compared later.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use cudarc::driver::result;
use larder_core::prmalloc::{PlanError, PlannedPoolConfig, PoolCounts, Window};
use larder_core::{Addr, Align, AllocError, Block, FreeError};
use larder_cuda::{
    Context, CudaStream, DeviceAllocError, DeviceAllocator, DeviceConfig, DeviceFreeError,
    DeviceTensorPool, TensorPoolConfig,
};
pub(crate) use larder_model::prmalloc::{AnyPool, InUse, cases, until_planned};

use crate::common::{fill, read, together};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;

/// A step of overlapping and consecutive blocks, one of them small.
pub(crate) const STEP: &str =
    "0=200000@256 1=100000@256 2=1000@64 -0 3=60000@256 4=100000@256 -1 -2 -3 -4";

pub(crate) fn align(bytes: u64) -> Align {
    Align::new(bytes).unwrap()
}

/// The default configuration, but planned after two identical steps and never again.
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

    pub(crate) fn use_of_memory(&self) -> (u64, u64) {
        let stats = self.memory.stats();
        (stats.allocations, stats.live_bytes)
    }
}

/// Number of bytes that are compared at either end of a block.
const EDGE_BYTES: u64 = 64;

/// Number of block ends in a full log.
const LOOKS: u64 = 1 << 14;

/// Contents of blocks when they were freed. They are copied on the stream, and are read when the log is full or at the
/// end, so that nothing waits for the work in between.
struct Log {
    block: Block,
    expected: Vec<u8>,
}

impl Log {
    fn look(&mut self, stream: &Arc<CudaStream>, addr: u64, value: u8) {
        if self.expected.len() as u64 == LOOKS {
            self.check(stream);
        }
        let log = self.block.addr().get() + self.expected.len() as u64 * EDGE_BYTES;
        stream.context().bind_to_thread().unwrap();
        // SAFETY: both addresses are in blocks that the test holds.
        let copied = unsafe {
            result::memcpy_dtod_async(log, addr, EDGE_BYTES as usize, stream.cu_stream())
        };
        copied.unwrap();
        self.expected.push(value);
    }

    #[track_caller]
    fn check(&mut self, stream: &Arc<CudaStream>) {
        let expected = std::mem::take(&mut self.expected);
        if expected.is_empty() {
            return;
        }
        let bytes = expected.len() as u64 * EDGE_BYTES;
        let seen = read(stream, self.block.addr().get(), bytes);
        for (look, value) in seen.chunks(EDGE_BYTES as usize).zip(&expected) {
            assert!(look.iter().all(|byte| byte == value), "{look:?}: {value}");
        }
    }
}

pub(crate) struct Tested<'d> {
    device: &'d Device,
    pub(crate) pool: DeviceTensorPool,
    blocks: Mutex<HashMap<u64, Block>>,
    log: Mutex<Log>,
}

impl<'d> Tested<'d> {
    pub(crate) fn new(device: &'d Device, config: TensorPoolConfig) -> Self {
        let block = device.memory.alloc(&device.stream, LOOKS * EDGE_BYTES);
        let log = Log {
            block: block.unwrap(),
            expected: Vec::new(),
        };
        Self {
            device,
            pool: device.pool(config),
            blocks: Mutex::default(),
            log: Mutex::new(log),
        }
    }

    /// Checks all blocks, and frees the log.
    #[track_caller]
    pub(crate) fn into_pool(self) -> DeviceTensorPool {
        let mut log = self.log.into_inner().unwrap();
        log.check(&self.device.stream);
        self.device
            .memory
            .free(&self.device.stream, log.block)
            .unwrap();
        self.pool
    }

    /// Checks all blocks, and drops the log and the pool. Nothing of the device may then be in use.
    #[track_caller]
    pub(crate) fn end(self) {
        let device = self.device;
        drop(self.into_pool());
        assert_eq!(device.use_of_memory().1, 0);
    }
}

/// Runs a test over a pool of a device with the given number of bytes. All memory must be released.
pub(crate) fn on_a_device(limit: u64, config: TensorPoolConfig, test: impl Fn(&Tested<'_>)) {
    let _turn = together();
    let device = Device::with_limit(limit);
    let tested = Tested::new(&device, config);
    test(&tested);
    tested.end();
}

impl AnyPool for Tested<'_> {
    fn alloc(&self, bytes: u64, align: Align) -> Result<Addr, AllocError> {
        let block = match self.pool.alloc_aligned(bytes, align) {
            Ok(block) => block,
            Err(DeviceAllocError::Memory { reason, .. }) => return Err(reason),
            Err(error) => panic!("{error}"),
        };
        assert_eq!(block.bytes(), bytes);
        let addr = block.addr();
        let former = self.blocks.lock().unwrap().insert(addr.get(), block);
        assert!(former.is_none(), "{addr} is in use");
        Ok(addr)
    }

    fn free(&self, addr: Addr) -> Result<(), FreeError> {
        let block = self.blocks.lock().unwrap().remove(&addr.get());
        let freed = self.pool.free(block.ok_or(FreeError::Unknown)?);
        freed.map_err(|rejected| match rejected.error {
            DeviceFreeError::Block(error) => error,
            error => panic!("{error}"),
        })
    }

    fn in_step(&self, run: &mut dyn FnMut()) -> Result<(), PlanError> {
        let step = self.pool.step();
        run();
        step.end()
    }

    fn counts(&self) -> PoolCounts {
        self.pool.counts()
    }

    fn is_planned(&self) -> bool {
        self.pool.is_planned()
    }

    fn planned_bytes(&self) -> u64 {
        self.pool.counts().slab_bytes
    }

    fn reset(&self) {
        self.pool.reset();
    }

    fn backend_calls(&self) -> (u64, u64) {
        (self.device.use_of_memory().0, 0)
    }

    fn backend_bytes(&self) -> u64 {
        self.device.use_of_memory().1 - LOOKS * EDGE_BYTES
    }

    fn fill(&self, addr: Addr, bytes: u64, value: u8) {
        fill(self.pool.stream(), addr.get(), bytes, value);
    }

    fn look(&self, addr: Addr, bytes: u64, value: u8) {
        if bytes >= EDGE_BYTES {
            let mut log = self.log.lock().unwrap();
            log.look(self.pool.stream(), addr.get(), value);
            log.look(self.pool.stream(), addr.get() + bytes - EDGE_BYTES, value);
        }
    }
}
