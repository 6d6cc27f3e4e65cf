//! Exported functions of streams.

use core::ffi::c_void;

use larder_cuda_abi::constants::STREAM_NON_BLOCKING;
use larder_cuda_abi::{Code, ContextHandle, EventHandle, HostFunction, StreamHandle};

use crate::driver::SimDriver;
use crate::entry::{answer, call};
use crate::ffi::Out;
use crate::queue::{HostCall, SimStream, Work};

/// The highest stream priority; 0 is the lowest.
pub(crate) const GREATEST_PRIORITY: i32 = -5;

fn create(driver: &mut SimDriver, flags: u32) -> Result<StreamHandle, Code> {
    let context = driver.current()?;
    if flags & !STREAM_NON_BLOCKING != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let number = driver.handles.next();
    driver
        .streams
        .insert(number, SimStream::new(context, flags));
    Ok(StreamHandle(driver.stream_names.name(number)))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamCreate(stream: Out<StreamHandle>, flags: u32) -> Code {
    answer("cuStreamCreate", stream, |driver| create(driver, flags))
}

/// Ignores the priority: it orders only competing work, and here no work competes.
#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamCreateWithPriority(
    stream: Out<StreamHandle>,
    flags: u32,
    _priority: i32,
) -> Code {
    answer("cuStreamCreateWithPriority", stream, |driver| {
        create(driver, flags)
    })
}

fn destroy(driver: &mut SimDriver, stream: StreamHandle) -> Result<(), Code> {
    let stream = driver.stream_names.number(stream.0)?;
    driver.destroy_stream(stream)
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamDestroy(stream: StreamHandle) -> Code {
    call("cuStreamDestroy", |driver| destroy(driver, stream))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamDestroy_v2(stream: StreamHandle) -> Code {
    call("cuStreamDestroy_v2", |driver| destroy(driver, stream))
}

/// Returns the stream's number, which is never reused, unlike its handle. Refuses a stream that is
/// being captured and invalidates the capture, as observed on an H200 with driver 580.
#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamGetId(stream: StreamHandle, id: Out<u64>) -> Code {
    answer("cuStreamGetId", id, |driver| {
        let stream = driver.stream(stream)?;
        driver.check_question(stream)?;
        Ok(stream as u64)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamGetCtx(stream: StreamHandle, context: Out<ContextHandle>) -> Code {
    answer("cuStreamGetCtx", context, |driver| {
        let stream = driver.stream(stream)?;
        Ok(ContextHandle(driver.streams.get(stream)?.context))
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamSynchronize(stream: StreamHandle) -> Code {
    call("cuStreamSynchronize", |driver| {
        let stream = driver.stream(stream)?;
        driver.check_stream(stream)?;
        driver.unsafe_call()?;
        let mut streams = vec![stream];
        let known = driver.streams.get(stream)?;
        if known.is_legacy {
            // Waiting for the legacy stream includes the streams that it would wait for.
            let context = known.context;
            streams.extend(driver.blocking_streams(context));
        }
        driver.sync_streams(&streams)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamQuery(stream: StreamHandle) -> Code {
    call("cuStreamQuery", |driver| {
        let stream = driver.stream(stream)?;
        driver.check_stream(stream)?;
        driver.unsafe_call()?;
        driver.asked();
        let known = driver.streams.get(stream)?;
        driver.alive(known.context)?;
        if !driver.queue.done(known.newest) {
            return Err(Code::NOT_READY);
        }
        let clock = known.clock.clone();
        driver.host.join(&clock);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamWaitEvent(
    stream: StreamHandle,
    event: EventHandle,
    flags: u32,
) -> Code {
    call("cuStreamWaitEvent", |driver| {
        let stream = driver.stream(stream)?;
        // 1 is the external wait, which has no effect outside captures.
        if flags > 1 {
            return Err(Code::INVALID_VALUE);
        }
        if flags == 1 && driver.is_capturing(stream) {
            return Err(Code::NOT_SUPPORTED);
        }
        let event = driver.event_names.number(event.0)?;
        driver.wait_event(stream, event)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuLaunchHostFunc(
    stream: StreamHandle,
    function: HostFunction,
    data: *mut c_void,
) -> Code {
    call("cuLaunchHostFunc", |driver| {
        let stream = driver.stream(stream)?;
        let function = function.ok_or(Code::INVALID_VALUE)?;
        let data = data.expose_provenance();
        driver.submit(stream, Work::Host(HostCall { function, data }))?;
        Ok(())
    })
}
