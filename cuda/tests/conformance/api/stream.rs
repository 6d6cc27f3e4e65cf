//! Streams, events, host functions.

use std::ffi::c_void;

use larder_cuda_abi::{ContextHandle, EventHandle, StreamHandle};

use super::Answer;

bindings! {
    fn context(stream: StreamHandle) -> ContextHandle { |at| cuStreamGetCtx(stream, at) }
    fn create(flags: u32) -> StreamHandle { |at| cuStreamCreate(at, flags) }
    fn create_with_priority(flags: u32, priority: i32) -> StreamHandle {
        |at| cuStreamCreateWithPriority(at, flags, priority)
    }
    fn destroy(stream: StreamHandle) { cuStreamDestroy_v2(stream) }
    /// Needs a driver of CUDA 12.0 or later.
    fn id(stream: StreamHandle) -> u64 { |at| cuStreamGetId(stream, at) }
    fn query(stream: StreamHandle) { cuStreamQuery(stream) }
    fn synchronize(stream: StreamHandle) { cuStreamSynchronize(stream) }
    fn wait_with(stream: StreamHandle, event: EventHandle, flags: u32) {
        cuStreamWaitEvent(stream, event, flags)
    }
    fn create_event(flags: u32) -> EventHandle { |at| cuEventCreate(at, flags) }
    fn destroy_event(event: EventHandle) { cuEventDestroy_v2(event) }
    fn record(event: EventHandle, stream: StreamHandle) { cuEventRecord(event, stream) }
    fn query_event(event: EventHandle) { cuEventQuery(event) }
    fn synchronize_event(event: EventHandle) { cuEventSynchronize(event) }
    /// Returns milliseconds.
    fn elapsed(start: EventHandle, end: EventHandle) -> f32 { |at| cuEventElapsedTime(at, start, end) }
}

pub(crate) fn wait(stream: StreamHandle, event: EventHandle) -> Answer {
    wait_with(stream, event, 0)
}

extern "C" fn run_boxed(data: *mut c_void) {
    // SAFETY: `host_function` made the pointer from such a box, and the driver calls this once.
    let body = unsafe { Box::from_raw(data.cast::<Box<dyn FnOnce() + Send>>()) };
    body();
}

/// Queues a host function. A body that never runs is leaked. Not for captures, whose graphs may run a body more than
/// once.
pub(crate) fn host_function(stream: StreamHandle, body: impl FnOnce() + Send + 'static) -> Answer {
    let body: Box<dyn FnOnce() + Send> = Box::new(body);
    let data = Box::into_raw(Box::new(body)).cast();
    // SAFETY: C2; the body lives until it has run.
    unsafe { function!(cuLaunchHostFunc)(stream, Some(run_boxed), data) }.check()
}
