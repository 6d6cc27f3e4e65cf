//! Streams, events, host functions.

use std::ffi::c_void;

use cudarc::driver::sys;
use larder_cuda_abi::{ContextHandle, EventHandle, StreamHandle};

use super::{Answer, done, done_raw, event_of, out, stream_of, symbol};

/// cuStreamGetCtx.
pub(crate) fn context(stream: StreamHandle) -> Answer<ContextHandle> {
    // SAFETY: C2: the handle came from the driver and was not destroyed; the out argument is `out`'s.
    out(|at: *mut usize| unsafe { sys::cuStreamGetCtx(stream_of(stream), at.cast()) })
        .map(ContextHandle)
}

/// cuStreamCreate.
pub(crate) fn create(flags: u32) -> Answer<StreamHandle> {
    // SAFETY: the out argument is `out`'s.
    out(|at: *mut usize| unsafe { sys::cuStreamCreate(at.cast(), flags) }).map(StreamHandle)
}

/// cuStreamCreateWithPriority.
pub(crate) fn create_with_priority(flags: u32, priority: i32) -> Answer<StreamHandle> {
    // SAFETY: the out argument is `out`'s.
    out(|at: *mut usize| unsafe { sys::cuStreamCreateWithPriority(at.cast(), flags, priority) })
        .map(StreamHandle)
}

/// cuStreamDestroy_v2.
pub(crate) fn destroy(stream: StreamHandle) -> Answer {
    // SAFETY: C2: the handle came from the driver and was not destroyed.
    done(unsafe { sys::cuStreamDestroy_v2(stream_of(stream)) })
}

/// cuStreamGetId, of drivers since 12.0.
pub(crate) fn id(stream: StreamHandle) -> Answer<u64> {
    type GetId = unsafe extern "C" fn(StreamHandle, *mut u64) -> u32;
    // SAFETY: the type is the function's C prototype.
    let call = unsafe { symbol::<GetId>("cuStreamGetId") };
    let mut id = 0;
    // SAFETY: C2; the out argument is a local's.
    done_raw(unsafe { call(stream, &raw mut id) })?;
    Ok(id)
}

/// cuStreamQuery.
pub(crate) fn query(stream: StreamHandle) -> Answer {
    // SAFETY: C2: the handle came from the driver and was not destroyed.
    done(unsafe { sys::cuStreamQuery(stream_of(stream)) })
}

/// cuStreamSynchronize.
pub(crate) fn synchronize(stream: StreamHandle) -> Answer {
    // SAFETY: C2: the handle came from the driver and was not destroyed.
    done(unsafe { sys::cuStreamSynchronize(stream_of(stream)) })
}

/// cuStreamWaitEvent.
pub(crate) fn wait(stream: StreamHandle, event: EventHandle) -> Answer {
    // SAFETY: C2: the handle came from the driver and was not destroyed.
    done(unsafe { sys::cuStreamWaitEvent(stream_of(stream), event_of(event), 0) })
}

/// cuEventCreate.
pub(crate) fn create_event(flags: u32) -> Answer<EventHandle> {
    // SAFETY: the out argument is `out`'s.
    out(|at: *mut usize| unsafe { sys::cuEventCreate(at.cast(), flags) }).map(EventHandle)
}

/// cuEventDestroy_v2.
pub(crate) fn destroy_event(event: EventHandle) -> Answer {
    // SAFETY: C2: the handle came from the driver and was not destroyed.
    done(unsafe { sys::cuEventDestroy_v2(event_of(event)) })
}

/// cuEventRecord.
pub(crate) fn record(event: EventHandle, stream: StreamHandle) -> Answer {
    // SAFETY: C2: the handle came from the driver and was not destroyed.
    done(unsafe { sys::cuEventRecord(event_of(event), stream_of(stream)) })
}

/// cuEventQuery.
pub(crate) fn query_event(event: EventHandle) -> Answer {
    // SAFETY: C2: the handle came from the driver and was not destroyed.
    done(unsafe { sys::cuEventQuery(event_of(event)) })
}

/// cuEventSynchronize.
pub(crate) fn synchronize_event(event: EventHandle) -> Answer {
    // SAFETY: C2: the handle came from the driver and was not destroyed.
    done(unsafe { sys::cuEventSynchronize(event_of(event)) })
}

/// cuEventElapsedTime: milliseconds.
pub(crate) fn elapsed(start: EventHandle, end: EventHandle) -> Answer<f32> {
    type Elapsed = unsafe extern "C" fn(*mut f32, EventHandle, EventHandle) -> u32;
    // SAFETY: the type is the function's C prototype.
    let call = unsafe { symbol::<Elapsed>("cuEventElapsedTime") };
    let mut milliseconds = 0.0;
    // SAFETY: C2; the out argument is a local's.
    done_raw(unsafe { call(&raw mut milliseconds, start, end) })?;
    Ok(milliseconds)
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
    done(unsafe { sys::cuLaunchHostFunc(stream_of(stream), Some(run_boxed), data) })
}

/// cuStreamWaitEvent with flags.
pub(crate) fn wait_with(stream: StreamHandle, event: EventHandle, flags: u32) -> Answer {
    // SAFETY: C2: the handle came from the driver and was not destroyed.
    done(unsafe { sys::cuStreamWaitEvent(stream_of(stream), event_of(event), flags) })
}
