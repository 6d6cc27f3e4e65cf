//! Which calls a capture allows, by its mode and the thread that calls, and whether it survives them.
//!
//! A call uses another stream than the captured one, and events from before the capture. What is made for it
//! stays until the process ends. Calls that Larder makes in the relaxed mode only are made
//! by the binding here.

use std::collections::BTreeMap;
use std::error::Error;

use cudarc::driver::{CudaStream, result, sys};
use larder_cuda::driver::abi::{
    Code, DevicePtr, EventHandle, MemoryHandle, StreamHandle, constants,
};
use larder_cuda::driver::{CaptureStatus, Driver, DriverError, MemoryUse};
use larder_cuda::{Context, Event, EventConfig};

use crate::answers::{Assumption, decide, say};

const BYTES: u64 = 4096;

/// What the calls are made with.
struct Rig<'a> {
    driver: &'a Driver,
    context: &'a Context,
    /// A stream that captures nothing.
    other: StreamHandle,
    /// The one that does.
    captured: StreamHandle,
    page_bytes: u64,
}

/// What a call is made with: a number, and for `cuMemMap` the handle.
type Made = [u64; 2];

/// A call, and what is made for it before the capture begins.
struct Call {
    name: &'static str,
    before: fn(&Rig<'_>) -> Result<Made, DriverError>,
    call: fn(&Rig<'_>, Made) -> Result<(), DriverError>,
}

impl Call {
    const fn new(
        name: &'static str,
        before: fn(&Rig<'_>) -> Result<Made, DriverError>,
        call: fn(&Rig<'_>, Made) -> Result<(), DriverError>,
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

const GLOBAL: Mode = Mode::CU_STREAM_CAPTURE_MODE_GLOBAL;
const THREAD_LOCAL: Mode = Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
const RELAXED: Mode = Mode::CU_STREAM_CAPTURE_MODE_RELAXED;

const CASES: [(&str, Mode, Caller); 8] = [
    ("global, own thread", GLOBAL, Caller::Same),
    ("global, own thread relaxed", GLOBAL, Caller::SameRelaxed),
    ("global, other thread", GLOBAL, Caller::Other),
    ("global, other thread relaxed", GLOBAL, Caller::OtherRelaxed),
    ("thread-local, own thread", THREAD_LOCAL, Caller::Same),
    ("thread-local, other thread", THREAD_LOCAL, Caller::Other),
    ("relaxed, own thread", RELAXED, Caller::Same),
    ("relaxed, other thread", RELAXED, Caller::Other),
];

fn nothing(_: &Rig<'_>) -> Result<Made, DriverError> {
    Ok([0; 2])
}

fn memory(rig: &Rig<'_>) -> Result<Made, DriverError> {
    Ok([rig.driver.alloc_device(BYTES)?, 0])
}

fn pinned(rig: &Rig<'_>) -> Result<Made, DriverError> {
    let at = rig.driver.alloc_host(BYTES, 0)?;
    Ok([at.expose_provenance() as u64, 0])
}

fn addresses(rig: &Rig<'_>) -> Result<Made, DriverError> {
    Ok([rig.driver.reserve(rig.page_bytes, 0)?, 0])
}

fn handle(rig: &Rig<'_>) -> Result<Made, DriverError> {
    let (ordinal, bytes) = (rig.context.ordinal(), rig.page_bytes);
    let handle = rig
        .driver
        .create_memory(ordinal, MemoryUse::default(), bytes)?;
    Ok([handle.0, 0])
}

/// Addresses, and memory for them.
fn unmapped(rig: &Rig<'_>) -> Result<Made, DriverError> {
    Ok([addresses(rig)?[0], handle(rig)?[0]])
}

/// A page that is mapped, without access.
fn mapped(rig: &Rig<'_>) -> Result<Made, DriverError> {
    let made = unmapped(rig)?;
    let [start, handle] = made;
    // SAFETY: reserved and created just now.
    unsafe { rig.driver.map(start, rig.page_bytes, MemoryHandle(handle)) }?;
    Ok(made)
}

/// An event that was recorded on the other stream, and is done.
fn event(rig: &Rig<'_>) -> Result<Made, DriverError> {
    let event = rig.driver.create_event(0)?;
    // SAFETY: both exist.
    unsafe { rig.driver.record_event(event, rig.other) }?;
    // SAFETY: it exists.
    unsafe { rig.driver.synchronize_event(event) }?;
    Ok([event.0 as u64, 0])
}

fn given(rig: &Rig<'_>) -> Result<Made, DriverError> {
    // SAFETY: the stream exists.
    Ok([unsafe { rig.driver.alloc_async(BYTES, rig.other) }?, 0])
}

/// The device of the context.
fn place(rig: &Rig<'_>) -> sys::CUmemLocation {
    sys::CUmemLocation {
        type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id: rig.context.ordinal(),
    }
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
const CALLS: &[Call] = &[
    Call::new("cuMemAlloc", nothing, |_, _| {
        let mut at = 0;
        raw("cuMemAlloc", unsafe {
            sys::cuMemAlloc_v2(&raw mut at, BYTES as usize)
        })
    }),
    Call::new("cuMemFree", memory, |_, [at, _]| {
        raw("cuMemFree", unsafe { sys::cuMemFree_v2(at) })
    }),
    Call::new("cuMemHostAlloc", nothing, |_, _| {
        let mut at = std::ptr::null_mut();
        raw("cuMemHostAlloc", unsafe {
            sys::cuMemHostAlloc(&raw mut at, BYTES as usize, 0)
        })
    }),
    Call::new("cuMemFreeHost", pinned, |_, [at, _]| {
        raw("cuMemFreeHost", unsafe { sys::cuMemFreeHost(host_of(at)) })
    }),
    Call::new("cuMemHostGetDevicePointer", pinned, |rig, [at, _]| {
        unsafe { rig.driver.device_pointer(host_of(at)) }.map(drop)
    }),
    Call::new("cuMemAllocManaged", nothing, |_, _| {
        let (mut at, flags) = (0, constants::MEM_ATTACH_GLOBAL);
        let answer = unsafe { sys::cuMemAllocManaged(&raw mut at, BYTES as usize, flags) };
        raw("cuMemAllocManaged", answer)
    }),
    Call::new("cuMemGetInfo", nothing, |rig, _| {
        rig.driver.memory_info().map(drop)
    }),
    Call::new("cuPointerGetAttribute", memory, |rig, [at, _]| {
        rig.driver.pointer_kind(at).map(drop)
    }),
    Call::new("cuMemAddressReserve", nothing, |rig, _| {
        let (mut at, bytes) = (0, rig.page_bytes as usize);
        raw("cuMemAddressReserve", unsafe {
            sys::cuMemAddressReserve(&raw mut at, bytes, 0, 0, 0)
        })
    }),
    Call::new("cuMemAddressFree", addresses, |rig, [at, _]| {
        raw("cuMemAddressFree", unsafe {
            sys::cuMemAddressFree(at, rig.page_bytes as usize)
        })
    }),
    Call::new("cuMemCreate", nothing, |rig, _| {
        let (mut handle, bytes) = (0, rig.page_bytes as usize);
        // Numbers, of which zero is nothing.
        let mut properties: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
        properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = place(rig);
        raw("cuMemCreate", unsafe {
            sys::cuMemCreate(&raw mut handle, bytes, &raw const properties, 0)
        })
    }),
    Call::new("cuMemRelease", handle, |_, [made, _]| {
        raw("cuMemRelease", unsafe { sys::cuMemRelease(made) })
    }),
    Call::new("cuMemMap", unmapped, |rig, [at, handle]| {
        let bytes = rig.page_bytes as usize;
        raw("cuMemMap", unsafe {
            sys::cuMemMap(at, bytes, 0, handle, 0)
        })
    }),
    Call::new("cuMemSetAccess", mapped, |rig, [at, _]| {
        let bytes = rig.page_bytes as usize;
        let access = sys::CUmemAccessDesc {
            location: place(rig),
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        raw("cuMemSetAccess", unsafe {
            sys::cuMemSetAccess(at, bytes, &raw const access, 1)
        })
    }),
    Call::new("cuMemUnmap", mapped, |rig, [at, _]| {
        raw("cuMemUnmap", unsafe {
            sys::cuMemUnmap(at, rig.page_bytes as usize)
        })
    }),
    Call::new("cuEventCreate", nothing, |rig, _| {
        rig.driver.create_event(0).map(drop)
    }),
    Call::new("cuEventDestroy", event, |rig, [made, _]| unsafe {
        rig.driver.destroy_event(event_of(made))
    }),
    Call::new("cuEventRecord", event, |rig, [made, _]| unsafe {
        rig.driver.record_event(event_of(made), rig.other)
    }),
    Call::new("cuEventQuery", event, |_, [made, _]| {
        raw("cuEventQuery", unsafe {
            sys::cuEventQuery(raw_event(made))
        })
    }),
    Call::new("cuEventSynchronize", event, |_, [made, _]| {
        raw("cuEventSynchronize", unsafe {
            sys::cuEventSynchronize(raw_event(made))
        })
    }),
    Call::new("cuEventElapsedTime", event, |_, [made, _]| {
        let mut elapsed = 0.0;
        let event = raw_event(made);
        raw("cuEventElapsedTime", unsafe {
            sys::cuEventElapsedTime(&raw mut elapsed, event, event)
        })
    }),
    Call::new("cuStreamWaitEvent", event, |rig, [made, _]| unsafe {
        rig.driver.wait_event(rig.other, event_of(made))
    }),
    Call::new("cuStreamQuery", nothing, |rig, _| {
        raw("cuStreamQuery", unsafe {
            sys::cuStreamQuery(raw_stream(rig.other))
        })
    }),
    Call::new("cuStreamSynchronize", nothing, |rig, _| {
        raw("cuStreamSynchronize", unsafe {
            sys::cuStreamSynchronize(raw_stream(rig.other))
        })
    }),
    Call::new("cuStreamGetId", nothing, |rig, _| {
        unsafe { rig.driver.stream_number(rig.other) }.map(drop)
    }),
    Call::new("cuStreamGetId-captured", nothing, |rig, _| {
        unsafe { rig.driver.stream_number(rig.captured) }.map(drop)
    }),
    Call::new("cuStreamGetCtx-captured", nothing, |rig, _| {
        unsafe { rig.driver.stream_context(rig.captured) }.map(drop)
    }),
    Call::new("cuStreamIsCapturing-captured", nothing, |rig, _| {
        unsafe { rig.driver.capture_status(rig.captured) }.map(drop)
    }),
    Call::new("cuMemAllocAsync-captured", nothing, |rig, _| {
        unsafe { rig.driver.alloc_async(BYTES, rig.captured) }.map(drop)
    }),
    Call::new("cuCtxSynchronize", nothing, |_, _| {
        raw("cuCtxSynchronize", unsafe { sys::cuCtxSynchronize() })
    }),
    Call::new("cuMemAllocAsync", nothing, |rig, _| given(rig).map(drop)),
    Call::new("cuMemFreeAsync", given, |rig, [at, _]| unsafe {
        rig.driver.free_async(at, rig.other)
    }),
    Call::new("cuMemsetD8Async", memory, |rig, [at, _]| unsafe {
        rig.driver.fill_bytes(at, 1, BYTES, rig.other)
    }),
];

/// The names of the calls that are tried.
pub(crate) fn calls() -> impl Iterator<Item = &'static str> {
    CALLS.iter().map(|call| call.name)
}

/// Tries one call in every case, and says which captures it spoils.
pub(crate) fn probe(context: &Context, name: &str) -> Result<(), Box<dyn Error>> {
    let call = CALLS.iter().find(|call| call.name == name);
    let call = call.ok_or_else(|| format!("no call is named {name:?}"))?;
    let other = context.cudarc().new_stream()?;
    let captured = context.cudarc().new_stream()?;
    context.with_current(|driver| -> Result<(), Box<dyn Error>> {
        let rig = Rig {
            driver,
            context,
            other: StreamHandle(other.cu_stream().expose_provenance()),
            captured: StreamHandle(captured.cu_stream().expose_provenance()),
            page_bytes: driver.page_bytes(context.ordinal(), MemoryUse::default(), false)?,
        };
        // Something to capture.
        let at = driver.alloc_device(BYTES)?;
        let (mut spoilt, mut relaxed_spoils, mut all_tried) = (BTreeMap::new(), false, true);
        for (case, mode, caller) in CASES {
            let found = tried(&rig, &captured, at, call, (mode, caller))?;
            all_tried &= found.is_tried;
            if found.spoils && matches!(caller, Caller::SameRelaxed | Caller::OtherRelaxed) {
                relaxed_spoils = true;
            }
            if found.words != ALLOWED {
                spoilt
                    .entry(found.words)
                    .or_insert_with(Vec::new)
                    .push(case);
            }
        }
        let words = spoilt
            .iter()
            .map(|(found, cases)| format!("{found} ({})", cases.join("; ")));
        let answer = match spoilt.is_empty() {
            true => "allowed in every mode".to_owned(),
            false => words.collect::<Vec<_>>().join("; "),
        };
        let count: usize = spoilt.values().map(Vec::len).sum();
        let number = format!("{count} of {} cases", CASES.len());
        let question = format!("{name} during a capture");
        if SPOILS_ALWAYS.contains(&name) || !all_tried {
            say(&question, answer, number);
        } else {
            let words = "a call in the relaxed mode spoils no capture";
            decide(
                &question,
                answer,
                number,
                Assumption::new(words, !relaxed_spoils),
            );
        }
        // SAFETY: given above; the graphs are gone.
        Ok(unsafe { driver.free_device(at) }?)
    })??;
    // Events of the binding's own way still work.
    Event::new(context, EventConfig::default())?.record(&other)?;
    other.synchronize()?;
    Ok(())
}

/// What is found of a call that is allowed and spoils nothing.
const ALLOWED: &str = "allowed";

/// What spoils captures in any mode: of its context as documents say, and of its stream as was seen.
const SPOILS_ALWAYS: [&str; 2] = ["cuCtxSynchronize", "cuStreamGetId-captured"];

/// What became of a call and of the capture beside it.
struct Found {
    words: String,
    is_tried: bool,
    spoils: bool,
}

/// Makes the call during a capture.
fn tried(
    rig: &Rig<'_>,
    captured: &CudaStream,
    at: DevicePtr,
    call: &Call,
    (mode, caller): (Mode, Caller),
) -> Result<Found, Box<dyn Error>> {
    let made = match (call.before)(rig) {
        Ok(made) => made,
        Err(error) => {
            return Ok(Found {
                words: format!("not tried: {error}"),
                is_tried: false,
                spoils: false,
            });
        }
    };
    let stream = captured.cu_stream();
    // SAFETY: the stream exists and captures nothing.
    unsafe { result::stream::begin_capture(stream, mode) }?;
    // SAFETY: the memory is ours until all is over.
    unsafe {
        rig.driver
            .fill_words(at, 1, BYTES / 4, StreamHandle(stream.expose_provenance()))
    }?;
    let answer = match caller {
        Caller::Same => (call.call)(rig, made),
        Caller::SameRelaxed => relaxed(|| (call.call)(rig, made)),
        Caller::Other => elsewhere(rig, || (call.call)(rig, made)),
        Caller::OtherRelaxed => elsewhere(rig, || relaxed(|| (call.call)(rig, made))),
    };
    let status = rig.context.capture_status(captured);
    // SAFETY: the stream exists.
    let ended = unsafe { result::stream::end_capture(stream) };
    if let Some(graph) = ended.as_ref().ok().filter(|graph| !graph.is_null()) {
        // SAFETY: it was given just now, and is not instantiated.
        unsafe { result::graph::destroy(*graph) }?;
    }
    let answer = match answer {
        Ok(()) => ALLOWED.to_owned(),
        Err(error) => match error.code() {
            Some(code) => format!("{code:?}"),
            None => error.to_string(),
        },
    };
    let whole = status == Ok(CaptureStatus::Active) && ended.is_ok();
    Ok(Found {
        words: answer + if whole { "" } else { ", capture spoilt" },
        is_tried: true,
        spoils: !whole,
    })
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
