//! Streams, events, contexts, and the driver's own pool.

use std::error::Error;

use larder_cuda::{Context, DriverError, DriverPool, Event, EventConfig, StreamAllocator};

use crate::watch::{Report, Times, size};

/// Calls timed together, since one is as short as the clock's step.
const MANY: usize = 100;

pub(crate) fn pool(report: &mut Report, context: &Context) -> Result<(), Box<dyn Error>> {
    let stream = context.cudarc().new_stream()?;
    let pool = DriverPool::new(context)?;
    for bytes in [512, 64 << 10, 2 << 20, 64 << 20, 1 << 30] {
        if bytes > report.settings.max_bytes {
            continue;
        }
        let (mut first, mut alloc, mut free) =
            (Times::default(), Times::default(), Times::default());
        for _ in 0..report.settings.rounds {
            let at = first.time(|| pool.alloc(&stream, bytes))?;
            pool.free(&stream, at)?;
            stream.synchronize()?;
            let at = alloc.time(|| pool.alloc(&stream, bytes))?;
            free.time(|| pool.free(&stream, at))?;
            stream.synchronize()?;
            pool.trim(0)?;
        }
        report.line("cuMemAllocAsync, cold", &size(bytes), first);
        report.line("cuMemAllocAsync, warm", &size(bytes), alloc);
        report.line("cuMemFreeAsync", &size(bytes), free);
    }
    Ok(())
}

pub(crate) fn events(report: &mut Report, context: &Context) -> Result<(), Box<dyn Error>> {
    let (stream, other) = (
        context.cudarc().new_stream()?,
        context.cudarc().new_stream()?,
    );
    let mut times: [Times; 6] = Default::default();
    let [create, record, query, wait, sync, destroy] = &mut times;
    for _ in 0..report.settings.rounds {
        let event = create.time(|| Event::new(context, EventConfig::default()))?;
        repeat(record, || event.record(&stream))?;
        stream.synchronize()?;
        repeat(query, || event.query().map(drop))?;
        repeat(wait, || event.wait_on(&other))?;
        other.synchronize()?;
        repeat(sync, || event.synchronize())?;
        destroy.time(|| drop(event));
    }
    let names = [
        "cuEventCreate",
        "cuEventRecord",
        "cuEventQuery",
        "cuStreamWaitEvent",
        "cuEventSynchronize",
        "cuEventDestroy",
    ];
    for (name, times) in names.into_iter().zip(times) {
        report.line(name, "idle, with the context made current", times);
    }
    Ok(())
}

fn repeat(
    times: &mut Times,
    mut call: impl FnMut() -> Result<(), DriverError>,
) -> Result<(), DriverError> {
    times.time_each(MANY, || (0..MANY).try_for_each(|_| call()))
}

pub(crate) fn contexts(report: &mut Report, context: &Context) -> Result<(), Box<dyn Error>> {
    let (mut current, mut other, mut info) = (Times::default(), Times::default(), Times::default());
    for _ in 0..report.settings.rounds {
        context.try_current(|driver| {
            repeat(&mut current, || context.with_current(drop))?;
            repeat(&mut info, || driver.memory_info().map(drop))
        })?;
        std::thread::scope(|scope| {
            let foreign = scope.spawn(|| repeat(&mut other, || context.with_current(drop)));
            foreign.join().unwrap_or(Ok(()))
        })?;
    }
    report.line("with_current", "the context is current", current);
    report.line("with_current", "none is: get, push, pop", other);
    report.line("cuMemGetInfo", "", info);
    Ok(())
}
