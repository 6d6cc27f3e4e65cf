//! Typed buffers: cudarc's functions take them, uses of several streams come in the order of the
//! program, and a buffer that stays on one stream costs no call.

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
use larder_cuda::driver::StandIn;
use larder_cuda::{Context, DeviceAllocator};

/// Seeds of deferred schedules.
const SEEDS: u64 = 64;

/// A context, an allocator, and streams that it knows.
struct Setup {
    context: Context,
    memory: DeviceAllocator,
    streams: Vec<Arc<CudaStream>>,
}

impl Setup {
    fn new(count: usize) -> Self {
        let context = Context::new(0).unwrap();
        let memory = DeviceAllocator::new(&context).unwrap();
        let new = |_| context.cudarc().new_stream().unwrap();
        let streams: Vec<_> = (0..count).map(new).collect();
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

/// Runs `act` eagerly and under each seed, from the same state; nothing may be found.
fn under_all_schedules(control: &StandIn, act: impl Fn()) {
    control.schedule_eagerly();
    act();
    assert_eq!(control.findings(), Vec::<String>::new(), "eager");
    for seed in 0..SEEDS {
        control.schedule_deferred(seed);
        act();
        control.schedule_eagerly();
        assert_eq!(control.findings(), Vec::<String>::new(), "seed {seed}");
    }
}

/// Calls of the driver about events, waits and memory.
fn calls_of(control: &StandIn, of: &[&str]) -> Vec<(String, u64)> {
    let of = |name: &str| of.iter().any(|start| name.starts_with(start));
    let calls = control.call_table().into_iter();
    calls.filter(|(name, _)| of(name)).collect()
}
