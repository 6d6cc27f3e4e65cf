//! Exported functions of events.

use larder_cuda_abi::constants as c;
use larder_cuda_abi::{Code, EventHandle, StreamHandle};

use crate::entry::{answer, call};
use crate::ffi::Out;
use crate::queue::SimEvent;

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuEventCreate(event: Out<EventHandle>, flags: u32) -> Code {
    answer("cuEventCreate", event, |driver| {
        let context = driver.current()?;
        let known = c::EVENT_BLOCKING_SYNC | c::EVENT_DISABLE_TIMING | c::EVENT_INTERPROCESS;
        let shared = flags & c::EVENT_INTERPROCESS != 0;
        if flags & !known != 0 || (shared && flags & c::EVENT_DISABLE_TIMING == 0) {
            return Err(Code::INVALID_VALUE);
        }
        let number = driver.handles.next();
        driver.events.insert(number, SimEvent::new(context, flags));
        Ok(EventHandle(driver.event_names.name(number)))
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuEventRecord(event: EventHandle, stream: StreamHandle) -> Code {
    call("cuEventRecord", |driver| {
        let stream = driver.stream(stream)?;
        let event = driver.event_names.number(event.0)?;
        driver.record(event, stream)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuEventQuery(event: EventHandle) -> Code {
    call("cuEventQuery", |driver| {
        driver.asked();
        let event = driver.event_names.number(event.0)?;
        driver.query_event(event)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuEventSynchronize(event: EventHandle) -> Code {
    call("cuEventSynchronize", |driver| {
        let event = driver.event_names.number(event.0)?;
        driver.check_event(event)?;
        let known = driver.events.get(event)?;
        let context = known.context;
        let Some(record) = known.record.clone() else {
            return driver.alive(context);
        };
        driver.run_until(|driver| driver.queue.done(record.op));
        driver.host.join(&record.clock);
        driver.settle_pools();
        driver.alive(context)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuEventDestroy_v2(event: EventHandle) -> Code {
    call("cuEventDestroy_v2", |driver| {
        let event = driver.event_names.number(event.0)?;
        driver.event_names.forget(event);
        driver.events.remove(event).map(drop)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuEventElapsedTime(
    milliseconds: Out<f32>,
    start: EventHandle,
    end: EventHandle,
) -> Code {
    answer("cuEventElapsedTime", milliseconds, |driver| {
        let start = driver.event_names.number(start.0)?;
        let end = driver.event_names.number(end.0)?;
        driver.elapsed(start, end)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuEventElapsedTime_v2(
    milliseconds: Out<f32>,
    start: EventHandle,
    end: EventHandle,
) -> Code {
    answer("cuEventElapsedTime_v2", milliseconds, |driver| {
        let start = driver.event_names.number(start.0)?;
        let end = driver.event_names.number(end.0)?;
        driver.elapsed(start, end)
    })
}
