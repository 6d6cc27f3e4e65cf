//! Allocators that are dropped while it is impossible to wait for their work. Their memory is kept until the work is
//! done, and is released then.

use crate::common;
use std::cell::RefCell;
use std::sync::Arc;

use common::{MIB, alone, assert_clean, fill};
use cudarc::driver::{CudaStream, sys};
use larder_cuda::driver::{Rule, StandIn};
use larder_cuda::{
    Context, DeviceAllocator, DeviceConfig, HostSide, PinnedAllocator, PinnedConfig,
    StreamAllocator, VmemAllocator, VmemConfig,
};

const SEEDS: u64 = 10;

/// Makes an owner of memory that queued work of a stream still uses.
type Make = fn(&Context, &Arc<CudaStream>) -> Box<dyn Send>;

fn device(context: &Context, stream: &Arc<CudaStream>) -> Box<dyn Send> {
    let config = DeviceConfig {
        check_captures: false,
        ..DeviceConfig::with_budget(8 * MIB)
    };
    let memory = DeviceAllocator::with_config(context, config).unwrap();
    let block = memory.alloc(stream, 3 * MIB).unwrap();
    for value in 0..10 {
        fill(stream, block.addr().get(), 4096, value);
    }
    memory.free(stream, block).unwrap();
    Box::new(memory)
}

fn host_side(context: &Context, stream: &Arc<CudaStream>) -> Box<dyn Send> {
    let device = DeviceAllocator::with_config(context, DeviceConfig::with_budget(2 * MIB));
    let config = VmemConfig::new(HostSide::Pinned(8 * MIB));
    let memory = VmemAllocator::new(&device.unwrap(), config).unwrap();
    let block = memory.alloc(stream, 3 * MIB).unwrap();
    for value in 0..10 {
        fill(stream, block.addr().get(), 4096, value);
    }
    memory.free(stream, block).unwrap();
    Box::new(memory)
}

fn pinned(context: &Context, stream: &Arc<CudaStream>) -> Box<dyn Send> {
    let device = device_of_buffers(context);
    let host = PinnedAllocator::with_limit(context, PinnedConfig::default(), 8 * MIB).unwrap();
    for value in 0..10_u8 {
        let mut there = device.zeros::<u8>(stream, 4096).unwrap();
        let mut buffer = host.copy_of(&[value; 4096]).unwrap();
        buffer.copy_to(stream, &mut there).unwrap();
        buffer.copy_from(stream, &there).unwrap();
    }
    Box::new((host, device))
}

fn device_of_buffers(context: &Context) -> DeviceAllocator {
    DeviceAllocator::with_config(context, DeviceConfig::with_budget(8 * MIB)).unwrap()
}

const ALL: [(&str, Make); 3] = [
    ("device", device),
    ("host side", host_side),
    ("pinned", pinned),
];

fn held(control: &StandIn) -> u64 {
    let kinds = ["handle", "pinned", "device"];
    let alive = control.alive();
    let memory = alive
        .iter()
        .filter(|alive| kinds.contains(&alive.kind.as_str()));
    memory.map(|alive| alive.bytes).sum()
}

fn end_capture(stream: &CudaStream) {
    let mut graph = std::ptr::null_mut();
    // SAFETY: the stream is being captured; the handle outlives the call.
    let code = unsafe { sys::cuStreamEndCapture(stream.cu_stream(), &raw mut graph) };
    code.result().expect("a whole capture");
    // SAFETY: the graph has just been created.
    unsafe { sys::cuGraphDestroy(graph) }.result().unwrap();
}

/// Runs `act` with each kind of allocator, while its work is queued, under several seeds. `act` must drop the
/// allocator.
fn with_work_queued(act: impl Fn(&'static StandIn, &str, Context, Arc<CudaStream>, Box<dyn Send>)) {
    let Some((control, _turn)) = alone() else {
        return;
    };
    for (name, make) in ALL {
        for seed in 0..SEEDS {
            let context = Context::new(0).unwrap();
            let stream = context.cudarc().new_stream().unwrap();
            control.schedule_deferred(seed);
            let memory = make(&context, &stream);
            act(control, name, context, stream, memory);
            control.schedule_eagerly();
            assert_clean(control);
        }
    }
}

#[test]
fn an_allocator_that_ends_in_a_capture_keeps_its_memory_until_the_captures_end() {
    with_work_queued(|control, name, context, stream, memory| {
        let relaxed = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        stream.begin_capture(relaxed).unwrap();
        drop(memory);
        assert!(context.refused_frees() > 0, "{name}");
        assert!(context.settle() > 0, "{name}: the stream captures still");
        assert!(held(control) > 0, "{name}");
        end_capture(&stream);
        assert_eq!(context.settle(), 0, "{name}");
        assert_eq!(held(control), 0, "{name}");
        stream.synchronize().unwrap();
        assert_eq!(control.findings(), Vec::<String>::new(), "{name}");
    });
}

#[test]
fn an_allocator_whose_waits_are_refused_keeps_its_memory_until_one_is_not() {
    with_work_queued(|control, name, context, stream, memory| {
        for function in ["cuStreamSynchronize", "cuEventSynchronize", "cuEventQuery"] {
            control.fail(Rule::of(function).times(1000)).unwrap();
        }
        drop(memory);
        assert!(context.settle() > 0, "{name}");
        assert!(held(control) > 0, "{name}");
        control.clear_failures();
        // Nothing has to call `settle`: dropping the context does.
        drop(stream);
        drop(context);
    });
}

/// A thread's locals are dropped in an arbitrary order, and one of them may be an allocator.
#[test]
fn an_allocator_may_be_a_local_of_a_thread_that_ends() {
    thread_local! {
        static HELD: RefCell<Option<Box<dyn Send>>> = const { RefCell::new(None) };
    }
    let Some((control, _turn)) = alone() else {
        return;
    };
    for (_, make) in ALL {
        let context = Context::new(0).unwrap();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                // Registers the destructor of `HELD` before all others, so that it runs last.
                HELD.with_borrow(|held| assert!(held.is_none()));
                let stream = context.cudarc().new_stream().unwrap();
                drop(make(&context, &stream));
                HELD.set(Some(make(&context, &stream)));
            });
            thread.join().unwrap();
        });
        context.synchronize().unwrap();
        drop(context);
        assert_clean(control);
    }
}
