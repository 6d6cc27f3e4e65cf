//! The core's decorators over device memory and pinned memory: the conformance suite, upstream's cases, every byte of
//! the guards, kernels that write out of bounds, captures, and every driver call refused once.

mod access;
mod captures;
mod conformance;
mod every_byte;
mod faults;
mod kernels;
mod pinned;
mod random;
mod upstream_cases;

use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_core::{Addr, Block, BlockAllocator, MemoryAccess, Request, StreamId};
use larder_cuda::{
    CheckedConfig, CheckedMemory, Context, DeviceAccess, DeviceAllocator, DeviceConfig,
    StreamMemory, checked,
};

pub(crate) struct Setup {
    pub(crate) context: Context,
    pub(crate) memory: DeviceAllocator,
    pub(crate) stream: Arc<CudaStream>,
}

impl Setup {
    pub(crate) fn new() -> Self {
        Self::with_config(DeviceConfig::new())
    }

    pub(crate) fn with_config(config: DeviceConfig) -> Self {
        let context = Context::new(0).unwrap();
        let memory = DeviceAllocator::with_config(&context, config).unwrap();
        let stream = context.cudarc().new_stream().unwrap();
        Self {
            context,
            memory,
            stream,
        }
    }

    pub(crate) fn on_stream(&self) -> (StreamMemory, DeviceAccess) {
        let memory = self.memory.on(&self.stream).unwrap();
        // SAFETY: the tests access only blocks that they hold.
        let access = unsafe { memory.access() };
        (memory, access)
    }

    pub(crate) fn checked(&self, config: CheckedConfig) -> CheckedMemory {
        checked(&self.memory, &self.stream, config).unwrap()
    }
}

pub(crate) fn alloc(allocator: &impl BlockAllocator, bytes: u64) -> Block {
    allocator.alloc(&Request::new(bytes)).unwrap().block
}

pub(crate) fn read(access: &impl MemoryAccess, at: u64, bytes: u64) -> Vec<u8> {
    let mut read = vec![0; bytes as usize];
    access
        .read(StreamId::MAIN, Addr::new(at), &mut read)
        .unwrap();
    read
}

pub(crate) fn write(access: &impl MemoryAccess, at: u64, bytes: &[u8]) {
    access.write(StreamId::MAIN, Addr::new(at), bytes).unwrap();
}

#[test]
fn what_threads_share_can_be_shared() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<CheckedMemory>();
    is_shared::<StreamMemory>();
    is_shared::<StreamMemory<larder_cuda::PinnedAllocator>>();
    is_shared::<DeviceAccess>();
}
