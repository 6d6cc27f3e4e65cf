//! While another program's stream is being captured in the global mode, the allocators leave the capture intact: event
//! queries, waits and plain allocations do not invalidate it (pytorch#104487).

use crate::common;
use std::sync::Arc;
use std::thread;

use common::{MIB, alone, assert_clean, fill};
use cudarc::driver::{CudaStream, result, sys};
use larder_cuda::driver::StandIn;
use larder_cuda::{
    Context, DeviceAllocator, DeviceConfig, HostSide, PinnedAllocator, PinnedConfig,
    StreamAllocator, VmemAllocator, VmemConfig,
};

/// A program that captures and knows nothing of our allocators.
struct Foreign {
    stream: Arc<CudaStream>,
    address: sys::CUdeviceptr,
}

impl Foreign {
    fn begin(context: &Context) -> Self {
        let stream = context.cudarc().new_stream().unwrap();
        // SAFETY: 4096 bytes, freed when `Self` is dropped.
        let address = unsafe { result::malloc_sync(4096) }.unwrap();
        let global = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        stream.begin_capture(global).unwrap();
        Self { stream, address }
    }

    /// Ends the capture, which must still be valid.
    fn end(self) {
        let stream = self.stream.cu_stream();
        // SAFETY: the memory lives until `self` is dropped; the stream is being captured.
        unsafe { result::memset_d8_async(self.address, 1, 4096, stream) }.expect("a whole capture");
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream is being captured; the handle outlives the call.
        let code = unsafe { sys::cuStreamEndCapture(stream, &raw mut graph) };
        code.result().expect("a whole capture");
        // SAFETY: the graph has just been created.
        unsafe { sys::cuGraphDestroy(graph) }.result().unwrap();
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        // SAFETY: allocated by `begin`, and no queued work uses it.
        unsafe { result::free_sync(self.address) }.unwrap();
    }
}

/// Allocates and frees on two streams. The allocator often has too little memory, so it queries events and waits.
pub(crate) fn churn(memory: &dyn StreamAllocator, streams: &[Arc<CudaStream>], rounds: u64) {
    for round in 0..rounds {
        let [a, b] = [round % 2, (round + 1) % 2].map(|index| &streams[index as usize]);
        let Ok(block) = memory.alloc_as(a, &larder_core::Request::new(3 * MIB)) else {
            panic!("memory that only waits for work is had after a wait");
        };
        fill(a, block.addr().get(), 64, round as u8);
        memory.free(a, block).unwrap();
        let block = memory.alloc_as(b, &larder_core::Request::new(2 * MIB));
        let block = block.unwrap();
        fill(b, block.addr().get(), 64, round as u8);
        memory.free(b, block).unwrap();
    }
}

/// Runs `act` during a foreign capture, on the capturing thread and on another, with eager and deferred work.
pub(crate) fn beside(act: impl Fn(&'static StandIn, &Context, &[Arc<CudaStream>]) + Send + Sync) {
    let Some((control, _turn)) = alone() else {
        return;
    };
    for seed in [None, Some(1), Some(2), Some(3)] {
        for elsewhere in [false, true] {
            let context = Context::new(0).unwrap();
            let streams = common::streams(&context, 2);
            let foreign = Foreign::begin(&context);
            if let Some(seed) = seed {
                control.schedule_deferred(seed);
            }
            thread::scope(|scope| {
                let act = || {
                    context.cudarc().bind_to_thread().unwrap();
                    act(control, &context, &streams);
                };
                match elsewhere {
                    true => scope.spawn(act).join().unwrap(),
                    false => act(),
                }
            });
            foreign.end();
            control.schedule_eagerly();
            context.synchronize().unwrap();
            drop(streams);
            drop(context);
            assert_clean(control);
        }
    }
}

#[test]
fn a_device_allocator_that_is_short_spoils_no_capture() {
    beside(|_, context, streams| {
        let config = DeviceConfig::with_budget(4 * MIB);
        let memory = DeviceAllocator::with_config(context, config).unwrap();
        churn(&memory, streams, 20);
        let _ = memory.set_limit(2 * MIB);
        memory.end_step();
        let _ = memory.set_limit(4 * MIB);
        churn(&memory, streams, 4);
        // Dropping it waits for its streams.
        drop(memory);
    });
}

#[test]
fn pinned_buffers_spoil_no_capture() {
    beside(|_, context, streams| {
        let device = DeviceAllocator::new(context).unwrap();
        let host = PinnedAllocator::with_limit(context, PinnedConfig::default(), 4 * MIB).unwrap();
        let mut there = device.zeros::<u8>(&streams[0], 1 << 20).unwrap();
        for round in 0..20 {
            let mut buffer = host.copy_of(&vec![round; 1 << 20]).unwrap();
            buffer.copy_to(&streams[0], &mut there).unwrap();
            buffer.copy_from(&streams[0], &there).unwrap();
            if round % 3 == 0 {
                assert_eq!(buffer.as_slice().unwrap()[5], round);
            }
        }
        host.release();
    });
}

#[test]
fn memory_of_both_sides_spoils_no_capture() {
    beside(|_, context, streams| {
        let config = DeviceConfig::with_budget(2 * MIB);
        let device = DeviceAllocator::with_config(context, config).unwrap();
        let config = VmemConfig::new(HostSide::Pinned(4 * MIB));
        let memory = VmemAllocator::new(&device, config).unwrap();
        churn(&memory, streams, 20);
        memory.release_host();
    });
}

/// The documentation does not say whether virtual memory calls invalidate captures, so here they do.
#[test]
fn memory_that_grows_moves_and_goes_back_spoils_no_capture() {
    beside(|control, context, streams| {
        control.mapping_spoils(true);
        let memory = DeviceAllocator::new(context).unwrap();
        churn(&memory, streams, 4);
        let long = memory.alloc(&streams[0], 40 * MIB).unwrap();
        memory.free(&streams[0], long).unwrap();
        assert!(memory.release(u64::MAX).now_bytes > 0);
        drop(memory);
        control.mapping_spoils(false);
    });
}

#[test]
fn a_growth_changes_the_threads_capture_mode_once() {
    let Some((control, _turn)) = alone() else {
        return;
    };
    let context = Context::new(0).unwrap();
    let memory = DeviceAllocator::new(&context).unwrap();
    let stream = context.cudarc().new_stream().unwrap();
    memory.add_stream(&stream).unwrap();
    control.reset_calls();
    let block = memory.alloc(&stream, 40 * MIB).unwrap();
    assert!(control.calls(Some("cuMemMap")) > 0);
    // Into the relaxed mode and back.
    let changes = control.calls(Some("cuThreadExchangeStreamCaptureMode"));
    assert_eq!(changes, 2, "{:?}", control.call_table());
    memory.free(&stream, block).unwrap();
    drop((memory, stream, context));
    assert_clean(control);
}
