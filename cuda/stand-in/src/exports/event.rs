//! Events.

use larder_cuda_abi::constants as c;
use larder_cuda_abi::{Code, EventHandle, StreamHandle};

use crate::entry::{answer, call};
use crate::ffi::Out;
use crate::queue::Event;

#[unsafe(no_mangle)]
extern "C" fn cuEventCreate(event: Out<EventHandle>, flags: u32) -> Code {
    answer("cuEventCreate", event, |driver| {
        let context = driver.current()?;
        let known = c::EVENT_BLOCKING_SYNC | c::EVENT_DISABLE_TIMING | c::EVENT_INTERPROCESS;
        let shared = flags & c::EVENT_INTERPROCESS != 0;
        if flags & !known != 0 || (shared && flags & c::EVENT_DISABLE_TIMING == 0) {
            return Err(Code::INVALID_VALUE);
        }
        let handle = driver.handles.next();
        driver.events.insert(handle, Event::new(context, flags));
        Ok(EventHandle(handle))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(event: EventHandle, stream: StreamHandle) -> Code {
    call("cuEventRecord", |driver| {
        let stream = driver.stream(stream)?;
        driver.record(event.0, stream)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(event: EventHandle) -> Code {
    call("cuEventQuery", |driver| {
        driver.asked();
        driver.query_event(event.0)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(event: EventHandle) -> Code {
    call("cuEventSynchronize", |driver| {
        driver.check_event(event.0)?;
        let known = driver.events.get(event.0)?;
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
extern "C" fn cuEventDestroy_v2(event: EventHandle) -> Code {
    call("cuEventDestroy_v2", |driver| {
        driver.events.remove(event.0).map(drop)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventElapsedTime(
    milliseconds: Out<f32>,
    start: EventHandle,
    end: EventHandle,
) -> Code {
    answer("cuEventElapsedTime", milliseconds, |driver| {
        driver.elapsed(start.0, end.0)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventElapsedTime_v2(
    milliseconds: Out<f32>,
    start: EventHandle,
    end: EventHandle,
) -> Code {
    answer("cuEventElapsedTime_v2", milliseconds, |driver| {
        driver.elapsed(start.0, end.0)
    })
}
