//! A device's memory, and host memory that serves when the device is full. Scripts and drawn programs check the side of
//! each block, and its contents in any order of the device.
#![allow(clippy::result_large_err, reason = "tests")]

mod budgets;
mod buffers;
use crate::common;
mod faults;
mod limits;
mod sides;

use std::sync::Arc;

use cudarc::driver::CudaStream;
use larder_cuda::{
    ArenaPolicy, Context, DeviceAllocator, DeviceConfig, HostSide, VmemAllocator, VmemConfig,
};

use common::MIB;

const DEVICE: u64 = 8 * MIB;

struct Setup {
    context: Context,
    device: DeviceAllocator,
    memory: VmemAllocator,
    streams: Vec<Arc<CudaStream>>,
}

impl Setup {
    fn new(host: HostSide, streams: usize) -> Self {
        Self::with_config(VmemConfig::new(host), streams)
    }

    fn with_config(config: VmemConfig, streams: usize) -> Self {
        let context = Context::new(0).unwrap();
        let device_config = DeviceConfig {
            arenas: ArenaPolicy::Never,
            check_captures: true,
            ..DeviceConfig::with_budget(DEVICE)
        };
        let device = DeviceAllocator::with_config(&context, device_config).unwrap();
        let memory = VmemAllocator::new(&device, config).unwrap();
        let streams = common::streams(&context, streams);
        Self {
            context,
            device,
            memory,
            streams,
        }
    }
}
