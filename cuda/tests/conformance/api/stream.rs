//! Streams, events, host functions.

use std::ffi::c_void;

use larder_cuda_abi::{ContextHandle, EventHandle, StreamHandle};

use super::{Answer, out};

/// cuStreamGetCtx.
pub(crate) fn context(stream: StreamHandle) -> Answer<ContextHandle> {
    // SAFETY: C2: the handle came from the driver and was not destroyed; the out argument is `out`'s.
    out(|at| unsafe { function!(cuStreamGetCtx)(stream, at) })
}

/// cuStreamCreate.
pub(crate) fn create(flags: u32) -> Answer<StreamHandle> {
    // SAFETY: the out argument is `out`'s.
    out(|at| unsafe { function!(cuStreamCreate)(at, flags) })
}

/// cuStreamCreateWithPriority.
pub(crate) fn create_with_priority(flags: u32, priority: i32) -> Answer<StreamHandle> {
    // SAFETY: the out argument is `out`'s.
    out(|at| unsafe { function!(cuStreamCreateWithPriority)(at, flags, priority) })
}

/// cuStreamDestroy_v2.
pub(crate) fn destroy(stream: StreamHandle) -> Answer {
    // SAFETY: C2: the handle came from the driver and was not destroyed.
    unsafe { function!(cuStreamDestroy_v2)(stream) }.check()
}

/// cuStreamGetId, of drivers since 12.0.
pub(crate) fn id(stream: StreamHandle) -> Answer<u64> {
    // SAFETY: C2; the out argument is `out`'s.
    out(|at| unsafe { function!(cuStreamGetId)(stream, at) })
}

/// cuStreamQuery.
pub(crate) fn query(stream: StreamHandle) -> Answer {
    // SAFETY: C2: the handle came from the driver and was not destroyed.
    unsafe { function!(cuStreamQuery)(stream) }.check()
}

/// cuStreamSynchronize.
pub(crate) fn synchronize(stream: StreamHandle) -> Answer {
    // SAFETY: C2: the handle came from the driver and was not destroyed.
    unsafe { function!(cuStreamSynchronize)(stream) }.check()
}

/// cuStreamWaitEvent.
pub(crate) fn wait(stream: StreamHandle, event: EventHandle) -> Answer {
    // SAFETY: C2: the handle came from the driver and was not destroyed.
    unsafe { function!(cuStreamWaitEvent)(stream, event, 0) }.check()
}

/// cuEventCreate.
pub(crate) fn create_event(flags: u32) -> Answer<EventHandle> {
    // SAFETY: the out argument is `out`'s.
    out(|at| unsafe { function!(cuEventCreate)(at, flags) })
}

/// cuEventDestroy_v2.
pub(crate) fn destroy_event(event: EventHandle) -> Answer {
    // SAFETY: C2: the handle came from the driver and was not destroyed.
    unsafe { function!(cuEventDestroy_v2)(event) }.check()
}

/// cuEventRecord.
pub(crate) fn record(event: EventHandle, stream: StreamHandle) -> Answer {
    // SAFETY: C2: the handle came from the driver and was not destroyed.
    unsafe { function!(cuEventRecord)(event, stream) }.check()
}

/// cuEventQuery.
pub(crate) fn query_event(event: EventHandle) -> Answer {
    // SAFETY: C2: the handle came from the driver and was not destroyed.
    unsafe { function!(cuEventQuery)(event) }.check()
}

/// cuEventSynchronize.
pub(crate) fn synchronize_event(event: EventHandle) -> Answer {
    // SAFETY: C2: the handle came from the driver and was not destroyed.
    unsafe { function!(cuEventSynchronize)(event) }.check()
}

/// cuEventElapsedTime: milliseconds.
pub(crate) fn elapsed(start: EventHandle, end: EventHandle) -> Answer<f32> {
    // SAFETY: C2; the out argument is `out`'s.
    out(|at| unsafe { function!(cuEventElapsedTime)(at, start, end) })
}

extern "C" fn run_boxed(data: *mut c_void) {
    // SAFETY: `host_function` made it of such a box, and the driver calls once.
    let body = unsafe { Box::from_raw(data.cast::<Box<dyn FnOnce() + Send>>()) };
    body();
}

/// cuLaunchHostFunc. A body that never runs is leaked; one captured into a graph must not be made
/// with this, as it would run more than once.
pub(crate) fn host_function(stream: StreamHandle, body: impl FnOnce() + Send + 'static) -> Answer {
    let body: Box<dyn FnOnce() + Send> = Box::new(body);
    let data = Box::into_raw(Box::new(body)).cast();
    // SAFETY: C2; the body lives until it has run.
    unsafe { function!(cuLaunchHostFunc)(stream, Some(run_boxed), data) }.check()
}

/// cuStreamWaitEvent with flags.
pub(crate) fn wait_with(stream: StreamHandle, event: EventHandle, flags: u32) -> Answer {
    // SAFETY: C2: the handle came from the driver and was not destroyed.
    unsafe { function!(cuStreamWaitEvent)(stream, event, flags) }.check()
}
