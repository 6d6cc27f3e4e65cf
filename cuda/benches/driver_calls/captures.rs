//! Which calls a capture allows, by its mode and the thread that calls, and whether it survives them.
//!
//! What a probe makes stays until the process ends. Calls that Larder makes in the relaxed mode only are made
//! by the binding here.

use std::error::Error;

use cudarc::driver::{CudaStream, result, sys};
use larder_cuda::driver::abi::{Code, DevicePtr, EventHandle, StreamHandle, constants};
use larder_cuda::driver::{CaptureStatus, Driver, DriverError, MemoryUse};
use larder_cuda::{Context, Event, EventConfig};

use crate::watch::Report;

const BYTES: u64 = 4096;

/// What the calls are made with.
struct Rig<'a> {
    driver: &'a Driver,
    context: &'a Context,
    /// A stream that captures nothing.
    other: StreamHandle,
    page_bytes: u64,
}

/// A call, and what is made for it before the capture begins.
struct Probe {
    name: &'static str,
    before: fn(&Rig<'_>) -> Result<u64, DriverError>,
    call: fn(&Rig<'_>, u64) -> Result<(), DriverError>,
}

impl Probe {
    const fn new(
        name: &'static str,
        before: fn(&Rig<'_>) -> Result<u64, DriverError>,
        call: fn(&Rig<'_>, u64) -> Result<(), DriverError>,
    ) -> Self {
        Self { name, before, call }
    }
}

/// Who calls, beside the capture's mode.
#[derive(Clone, Copy)]
enum Caller {
    Same,
    SameRelaxed,
    Other,
    OtherRelaxed,
}

type Mode = sys::CUstreamCaptureMode;

const CASES: [(&str, Mode, Caller); 8] = [
    (
        "global: its thread",
        Mode::CU_STREAM_CAPTURE_MODE_GLOBAL,
        Caller::Same,
    ),
    (
        "global: its thread, relaxed",
        Mode::CU_STREAM_CAPTURE_MODE_GLOBAL,
        Caller::SameRelaxed,
    ),
    (
        "global: another",
        Mode::CU_STREAM_CAPTURE_MODE_GLOBAL,
        Caller::Other,
    ),
    (
        "global: another, relaxed",
        Mode::CU_STREAM_CAPTURE_MODE_GLOBAL,
        Caller::OtherRelaxed,
    ),
    (
        "thread-local: its thread",
        Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        Caller::Same,
    ),
    (
        "thread-local: another",
        Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        Caller::Other,
    ),
    (
        "relaxed: its thread",
        Mode::CU_STREAM_CAPTURE_MODE_RELAXED,
        Caller::Same,
    ),
    (
        "relaxed: another",
        Mode::CU_STREAM_CAPTURE_MODE_RELAXED,
        Caller::Other,
    ),
];

fn nothing(_: &Rig<'_>) -> Result<u64, DriverError> {
    Ok(0)
}

fn memory(rig: &Rig<'_>) -> Result<u64, DriverError> {
    rig.driver.alloc_device(BYTES)
}

fn pinned(rig: &Rig<'_>) -> Result<u64, DriverError> {
    Ok(rig.driver.alloc_host(BYTES, 0)?.expose_provenance() as u64)
}

fn addresses(rig: &Rig<'_>) -> Result<u64, DriverError> {
    rig.driver.reserve(rig.page_bytes, 0)
}

fn handle(rig: &Rig<'_>) -> Result<u64, DriverError> {
    Ok(rig
        .driver
        .create_memory(rig.context.ordinal(), MemoryUse::default(), rig.page_bytes)?
        .0)
}

/// A page that is mapped, without access.
fn mapped(rig: &Rig<'_>) -> Result<u64, DriverError> {
    let start = addresses(rig)?;
    let handle =
        rig.driver
            .create_memory(rig.context.ordinal(), MemoryUse::default(), rig.page_bytes)?;
    // SAFETY: reserved and created just now.
    unsafe { rig.driver.map(start, rig.page_bytes, handle) }?;
    Ok(start)
}

/// An event that was recorded on the other stream, and is done.
fn event(rig: &Rig<'_>) -> Result<u64, DriverError> {
    let event = rig.driver.create_event(0)?;
    // SAFETY: both exist.
    unsafe { rig.driver.record_event(event, rig.other) }?;
    // SAFETY: it exists.
    unsafe { rig.driver.synchronize_event(event) }?;
    Ok(event.0 as u64)
}

fn given(rig: &Rig<'_>) -> Result<u64, DriverError> {
    // SAFETY: the stream exists.
    unsafe { rig.driver.alloc_async(BYTES, rig.other) }
}

const fn event_of(made: u64) -> EventHandle {
    EventHandle(made as usize)
}

fn raw_event(made: u64) -> sys::CUevent {
    std::ptr::with_exposed_provenance_mut(made as usize)
}

fn raw_stream(stream: StreamHandle) -> sys::CUstream {
    std::ptr::with_exposed_provenance_mut(stream.0)
}

fn host_of(made: u64) -> *mut std::ffi::c_void {
    std::ptr::with_exposed_provenance_mut(made as usize)
}

/// The binding's answer.
fn raw(function: &'static str, answer: sys::CUresult) -> Result<(), DriverError> {
    let code = Code(answer as u32);
    code.check()
        .map_err(|code| DriverError::Call { function, code })
}

/// Each is made with what its first function made, which nobody else uses.
#[allow(
    clippy::undocumented_unsafe_blocks,
    reason = "see above: each owns what it is given"
)]
const PROBES: &[Probe] = &[
    Probe::new("cuMemAlloc", nothing, |_, _| {
        let mut at = 0;
        raw("cuMemAlloc", unsafe {
            sys::cuMemAlloc_v2(&raw mut at, BYTES as usize)
        })
    }),
    Probe::new("cuMemFree", memory, |_, at| {
        raw("cuMemFree", unsafe { sys::cuMemFree_v2(at) })
    }),
    Probe::new("cuMemHostAlloc", nothing, |_, _| {
        let mut at = std::ptr::null_mut();
        raw("cuMemHostAlloc", unsafe {
            sys::cuMemHostAlloc(&raw mut at, BYTES as usize, 0)
        })
    }),
    Probe::new("cuMemFreeHost", pinned, |_, at| {
        raw("cuMemFreeHost", unsafe { sys::cuMemFreeHost(host_of(at)) })
    }),
    Probe::new("cuMemHostGetDevicePointer", pinned, |rig, at| {
        unsafe { rig.driver.device_pointer(host_of(at)) }.map(drop)
    }),
    Probe::new("cuMemAllocManaged", nothing, |_, _| {
        let (mut at, flags) = (0, constants::MEM_ATTACH_GLOBAL);
        let answer = unsafe { sys::cuMemAllocManaged(&raw mut at, BYTES as usize, flags) };
        raw("cuMemAllocManaged", answer)
    }),
    Probe::new("cuMemGetInfo", nothing, |rig, _| {
        rig.driver.memory_info().map(drop)
    }),
    Probe::new("cuPointerGetAttribute", memory, |rig, at| {
        rig.driver.pointer_kind(at).map(drop)
    }),
    Probe::new("cuMemAddressReserve", nothing, |rig, _| {
        addresses(rig).map(drop)
    }),
    Probe::new("cuMemAddressFree", addresses, |rig, at| unsafe {
        rig.driver.free_reserved(at, rig.page_bytes)
    }),
    Probe::new("cuMemCreate", nothing, |rig, _| handle(rig).map(drop)),
    Probe::new("cuMemRelease", handle, |rig, made| unsafe {
        rig.driver
            .release_memory(larder_cuda::driver::abi::MemoryHandle(made))
    }),
    Probe::new("cuMemMap", addresses, |rig, at| {
        let handle = rig.driver.create_memory(
            rig.context.ordinal(),
            MemoryUse::default(),
            rig.page_bytes,
        )?;
        unsafe { rig.driver.map(at, rig.page_bytes, handle) }
    }),
    Probe::new("cuMemSetAccess", mapped, |rig, at| unsafe {
        rig.driver
            .set_access(at, rig.page_bytes, &[rig.context.ordinal()])
    }),
    Probe::new("cuMemUnmap", mapped, |rig, at| unsafe {
        rig.driver.unmap(at, rig.page_bytes)
    }),
    Probe::new("cuEventCreate", nothing, |rig, _| {
        rig.driver.create_event(0).map(drop)
    }),
    Probe::new("cuEventDestroy", event, |rig, made| unsafe {
        rig.driver.destroy_event(event_of(made))
    }),
    Probe::new("cuEventRecord, other stream", event, |rig, made| unsafe {
        rig.driver.record_event(event_of(made), rig.other)
    }),
    Probe::new("cuEventQuery, of before", event, |_, made| {
        raw("cuEventQuery", unsafe {
            sys::cuEventQuery(raw_event(made))
        })
    }),
    Probe::new("cuEventSynchronize, of before", event, |_, made| {
        raw("cuEventSynchronize", unsafe {
            sys::cuEventSynchronize(raw_event(made))
        })
    }),
    Probe::new("cuEventElapsedTime, of before", event, |rig, made| {
        unsafe { rig.driver.elapsed_ms(event_of(made), event_of(made)) }.map(drop)
    }),
    Probe::new(
        "cuStreamWaitEvent, other stream",
        event,
        |rig, made| unsafe { rig.driver.wait_event(rig.other, event_of(made)) },
    ),
    Probe::new("cuStreamQuery, other stream", nothing, |rig, _| {
        raw("cuStreamQuery", unsafe {
            sys::cuStreamQuery(raw_stream(rig.other))
        })
    }),
    Probe::new("cuStreamSynchronize, other stream", nothing, |rig, _| {
        raw("cuStreamSynchronize", unsafe {
            sys::cuStreamSynchronize(raw_stream(rig.other))
        })
    }),
    Probe::new("cuStreamGetId, other stream", nothing, |rig, _| {
        unsafe { rig.driver.stream_number(rig.other) }.map(drop)
    }),
    Probe::new("cuCtxSynchronize", nothing, |_, _| {
        raw("cuCtxSynchronize", unsafe { sys::cuCtxSynchronize() })
    }),
    Probe::new("cuMemAllocAsync, other stream", nothing, |rig, _| {
        given(rig).map(drop)
    }),
    Probe::new("cuMemFreeAsync, other stream", given, |rig, at| unsafe {
        rig.driver.free_async(at, rig.other)
    }),
    Probe::new("cuMemsetD8Async, other stream", memory, |rig, at| unsafe {
        rig.driver.fill_bytes(at, 1, BYTES, rig.other)
    }),
];

pub(crate) fn try_all(report: &mut Report, context: &Context) -> Result<(), Box<dyn Error>> {
    let other = context.cudarc().new_stream()?;
    let captured = context.cudarc().new_stream()?;
    context.with_current(|driver| -> Result<(), Box<dyn Error>> {
        let rig = Rig {
            driver,
            context,
            other: StreamHandle(other.cu_stream().expose_provenance()),
            page_bytes: driver.page_bytes(context.ordinal(), MemoryUse::default(), false)?,
        };
        // Something to capture.
        let at = driver.alloc_device(BYTES)?;
        for probe in PROBES {
            for (case, mode, caller) in CASES {
                let found = tried(&rig, &captured, at, probe, (mode, caller))?;
                report.note(probe.name, case, &found);
            }
        }
        // SAFETY: given above; the graphs are gone.
        Ok(unsafe { driver.free_device(at) }?)
    })??;
    // Events of the binding's own way still work.
    Event::new(context, EventConfig::default())?.record(&other)?;
    other.synchronize()?;
    Ok(())
}

/// What the call answered, and what became of the capture.
fn tried(
    rig: &Rig<'_>,
    captured: &CudaStream,
    at: DevicePtr,
    probe: &Probe,
    (mode, caller): (Mode, Caller),
) -> Result<String, Box<dyn Error>> {
    let made = match (probe.before)(rig) {
        Ok(made) => made,
        Err(error) => return Ok(format!("not tried: {error}")),
    };
    let stream = captured.cu_stream();
    // SAFETY: the stream exists and captures nothing.
    unsafe { result::stream::begin_capture(stream, mode) }?;
    // SAFETY: the memory is ours until all is over.
    unsafe {
        rig.driver
            .fill_bytes(at, 1, BYTES, StreamHandle(stream.expose_provenance()))
    }?;
    let answer = match caller {
        Caller::Same => (probe.call)(rig, made),
        Caller::SameRelaxed => relaxed(|| (probe.call)(rig, made)),
        Caller::Other => elsewhere(rig, || (probe.call)(rig, made)),
        Caller::OtherRelaxed => elsewhere(rig, || relaxed(|| (probe.call)(rig, made))),
    };
    let status = rig.context.capture_status(captured);
    // SAFETY: the stream exists.
    let ended = unsafe { result::stream::end_capture(stream) };
    if let Some(graph) = ended.as_ref().ok().filter(|graph| !graph.is_null()) {
        // SAFETY: it was given just now, and is not instantiated.
        unsafe { result::graph::destroy(*graph) }?;
    }
    let answer = match answer {
        Ok(()) => "allowed".to_owned(),
        Err(error) => match error.code() {
            Some(code) => format!("{code:?}"),
            None => error.to_string(),
        },
    };
    let whole = status == Ok(CaptureStatus::Active) && ended.is_ok();
    Ok(answer + if whole { "" } else { ", capture spoilt" })
}

/// Calls in a thread that minds no capture.
fn relaxed(call: impl FnOnce() -> Result<(), DriverError>) -> Result<(), DriverError> {
    exchange(constants::CAPTURE_MODE_RELAXED)?;
    let answer = call();
    exchange(constants::CAPTURE_MODE_GLOBAL)?;
    answer
}

fn exchange(mode: u32) -> Result<(), DriverError> {
    let mut mode = if mode == constants::CAPTURE_MODE_RELAXED {
        Mode::CU_STREAM_CAPTURE_MODE_RELAXED
    } else {
        Mode::CU_STREAM_CAPTURE_MODE_GLOBAL
    };
    // SAFETY: the mode outlives the call.
    let answer = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
    raw("cuThreadExchangeStreamCaptureMode", answer)
}

/// Calls in another thread, whose context is the same.
fn elsewhere(
    rig: &Rig<'_>,
    call: impl FnOnce() -> Result<(), DriverError> + Send,
) -> Result<(), DriverError> {
    std::thread::scope(|scope| {
        let other = scope.spawn(|| rig.context.try_current(|_| call()));
        other.join().unwrap_or(Err(DriverError::Budget))
    })
}
