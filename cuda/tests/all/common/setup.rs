//! A device's allocator and some streams.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_core::Block;
use larder_cuda::{Context, DeviceAllocator, DeviceConfig};

use super::{fill, streams};

pub(crate) struct Setup {
    pub(crate) context: Context,
    pub(crate) memory: DeviceAllocator,
    pub(crate) streams: Vec<Arc<CudaStream>>,
}

impl Setup {
    pub(crate) fn new(count: usize, config: DeviceConfig) -> Self {
        let context = Context::new(0).unwrap();
        let memory = DeviceAllocator::with_config(&context, config).unwrap();
        Self {
            streams: streams(&context, count),
            context,
            memory,
        }
    }

    pub(crate) fn alloc(&self, stream: usize, bytes: u64, value: u8) -> Block {
        let stream = &self.streams[stream];
        let block = self.memory.alloc(stream, bytes).unwrap();
        fill(stream, block.addr().get(), block.bytes(), value);
        block
    }

    pub(crate) fn free(&self, stream: usize, block: Block) {
        self.memory.free(&self.streams[stream], block).unwrap();
    }

    /// Frees a block while queued work still uses it.
    pub(crate) fn free_pending(&self, stream: usize, block: Block) {
        for value in 0..40 {
            let queue = &self.streams[stream];
            fill(queue, block.addr().get(), block.bytes(), value);
        }
        self.free(stream, block);
    }

    /// Makes stream `to` wait for stream `from`, and fills the block on stream `to`.
    pub(crate) fn pass(&self, block: &Block, from: usize, to: usize, value: u8) {
        let (from, to) = (&self.streams[from], &self.streams[to]);
        self.memory.order_after(to, from).unwrap();
        fill(to, block.addr().get(), block.bytes(), value);
    }
}
