//! Typed buffers: cudarc's functions accept them, and uses on several streams take effect in program order.

mod capture;
mod cudarc_takes;
mod dlpack;
mod faults;
mod kernels;
mod raw;
mod slices;
mod streams;
mod values;

use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_cuda::{Context, DeviceAllocator};

use crate::common::streams;

/// Number of seeds for deferred schedules.
const SEEDS: u64 = 64;

/// A context, an allocator, and streams that the allocator knows.
struct Setup {
    context: Context,
    memory: DeviceAllocator,
    streams: Vec<Arc<CudaStream>>,
}

impl Setup {
    fn new(count: usize) -> Self {
        let context = Context::new(0).unwrap();
        let memory = DeviceAllocator::new(&context).unwrap();
        let streams = streams(&context, count);
        for stream in &streams {
            memory.add_stream(stream).unwrap();
        }
        Self {
            context,
            memory,
            streams,
        }
    }
}
