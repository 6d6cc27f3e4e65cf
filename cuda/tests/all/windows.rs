//! Windows of captures: threads, plans, and the cost of checking for captures.

use crate::common;
use std::sync::Barrier;
use std::thread;

use crate::tensor_pool::rig as tensor_pool;
use common::graph::Graph;
use common::setup::Setup;
use common::{MIB, alone_and_clean};
use cudarc::driver::sys;
use larder_core::Request;
use larder_cuda::{DeviceAllocError, DeviceConfig, DeviceTensorPool, StreamAllocator};

const RELAXED: sys::CUstreamCaptureMode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;

/// Threads open and close windows on one stream. At most one window is open, and the thread that opened it gets its
/// blocks from it.
#[test]
fn threads_that_prime_one_stream_take_turns() {
    alone_and_clean(|_| {
        let setup = Setup::new(1, DeviceConfig::new());
        let (memory, stream) = (&setup.memory, &setup.streams[0]);
        let barrier = Barrier::new(3);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    barrier.wait();
                    let mut opened = 0;
                    while opened < 300 {
                        let Ok(window) = memory.prime(stream, MIB) else {
                            thread::yield_now();
                            continue;
                        };
                        opened += 1;
                        let block = memory.alloc(stream, 3000).unwrap();
                        assert_eq!(window.peak_bytes(), block.bytes(), "from elsewhere");
                        memory.free(stream, block).unwrap();
                        if opened % 2 == 0 {
                            window.close();
                        }
                    }
                });
            }
        });
        assert_eq!(setup.memory.stats().live_bytes, 0);
    });
}

#[test]
fn requests_and_plans_give_a_capture_nothing() {
    alone_and_clean(|_| {
        let setup = Setup::new(1, DeviceConfig::new());
        let (memory, queue) = (&setup.memory, &setup.streams[0]);
        let pool = DeviceTensorPool::new(memory, queue, tensor_pool::soon()).unwrap();
        while !pool.is_planned() {
            let _step = pool.step();
            let block = pool.alloc(MIB).unwrap();
            pool.free(block).unwrap();
        }
        queue.begin_capture(RELAXED).unwrap();
        assert_eq!(pool.alloc(MIB), Err(DeviceAllocError::Capturing));
        let given = StreamAllocator::alloc_as(memory, queue, &Request::new(MIB));
        assert_eq!(given, Err(DeviceAllocError::Capturing));
        drop(Graph::end_capture(queue).unwrap());
    });
}

#[test]
fn a_look_for_captures_is_one_call_and_none_for_a_default_stream() {
    alone_and_clean(|control| {
        let setup = Setup::new(1, DeviceConfig::new());
        let default = setup.context.cudarc().default_stream();
        for (stream, calls) in [(&setup.streams[0], 1), (&default, 0)] {
            let held = setup.memory.alloc(stream, MIB).unwrap();
            setup.memory.free(stream, held).unwrap();
            control.reset_calls();
            let again = setup.memory.alloc(stream, MIB).unwrap();
            setup.memory.free(stream, again).unwrap();
            assert_eq!(control.calls(None), calls, "{:?}", control.call_table());
            // The same if no context is current.
            let memory = &setup.memory;
            let elsewhere = || {
                let block = memory.alloc(stream, MIB)?;
                memory.free(stream, block).unwrap();
                Ok::<_, DeviceAllocError>(())
            };
            let given = thread::scope(|scope| scope.spawn(elsewhere).join().unwrap());
            assert_eq!(given, Ok(()));
        }
        // While a blocking stream is being captured, memory of the default stream does not become part of the graph.
        let flags = sys::CUstream_flags::CU_STREAM_DEFAULT as u32;
        let mut blocking = std::ptr::null_mut();
        setup.context.cudarc().bind_to_thread().unwrap();
        // SAFETY: the handle outlives the call.
        unsafe { sys::cuStreamCreate(&raw mut blocking, flags) }
            .result()
            .unwrap();
        // SAFETY: the stream has just been created, and is destroyed below.
        unsafe { sys::cuStreamBeginCapture_v2(blocking, RELAXED) }
            .result()
            .unwrap();
        let block = setup.memory.alloc(&default, MIB).unwrap();
        setup.memory.free(&default, block).unwrap();
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream is being captured; the handle outlives the call.
        unsafe { sys::cuStreamEndCapture(blocking, &raw mut graph) }
            .result()
            .unwrap();
        // SAFETY: the graph has just been created.
        unsafe { sys::cuGraphDestroy(graph) }.result().unwrap();
        // SAFETY: nothing is queued on the stream.
        unsafe { sys::cuStreamDestroy_v2(blocking) }
            .result()
            .unwrap();
    });
}
