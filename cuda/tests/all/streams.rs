//! Events and streams, as far as allocators use them.

use crate::common;

use common::{MIB, alone_and_clean, apart, assert_filled, fill, request, together};
use cudarc::driver::{CudaStream, sys};
use larder_core::SubAllocator;
use larder_cuda::driver::CaptureStatus;
use larder_cuda::{Context, DeviceMemory, DriverPool, Event, EventConfig, StreamAllocator};
use larder_cuda_abi::Code;

#[test]
fn an_event_that_recorded_nothing_is_done() {
    let _turn = together();
    let context = Context::new(0).unwrap();
    let event = Event::new(&context, EventConfig::default()).unwrap();
    assert_eq!(event.query(), Ok(true));
    assert_eq!(event.synchronize(), Ok(()));
}

#[test]
fn an_event_orders_work_of_two_streams() {
    let _turn = together();
    let context = Context::new(0).unwrap();
    let one = context.cudarc().new_stream().unwrap();
    let two = context.cudarc().new_stream().unwrap();
    let device = DeviceMemory::new(&context);
    let at = device.grow(request(4 * MIB)).unwrap().start().get();
    let event = Event::new(&context, EventConfig::default()).unwrap();
    for round in 0..8 {
        fill(&one, at, 4 * MIB, round);
        event.record(&one).unwrap();
        event.wait_on(&two).unwrap();
        assert_filled(&two, at, 4 * MIB, round);
        event.record(&two).unwrap();
        event.wait_on(&one).unwrap();
    }
    event.synchronize().unwrap();
    context.wait_for(&one).unwrap();
    assert_eq!(context.is_done(&one), Ok(true));
}

#[test]
fn time_passes_between_events_that_keep_it() {
    let _turn = together();
    let context = Context::new(0).unwrap();
    let stream = context.cudarc().new_stream().unwrap();
    let timed = EventConfig {
        timing: true,
        blocking: true,
    };
    let first = Event::new(&context, timed).unwrap();
    let last = Event::new(&context, timed).unwrap();
    first.record(&stream).unwrap();
    last.record(&stream).unwrap();
    last.synchronize().unwrap();
    assert!(first.elapsed_ms(&last).unwrap() >= 0.0);
    let plain = Event::new(&context, EventConfig::default()).unwrap();
    plain.record(&stream).unwrap();
    plain.synchronize().unwrap();
    let error = first.elapsed_ms(&plain).unwrap_err();
    assert_eq!(error.code(), Some(Code::INVALID_HANDLE));
}

#[test]
fn work_that_is_not_done_is_seen_so() {
    alone_and_clean(|control| {
        let context = Context::new(0).unwrap();
        let stream = context.cudarc().new_stream().unwrap();
        let device = DeviceMemory::new(&context);
        let at = device.grow(request(MIB)).unwrap().start().get();
        let event = Event::new(&context, EventConfig::default()).unwrap();
        // Under every seed the work is done in the end; under some it is first seen to be queued.
        let mut seen_before = false;
        for seed in 0..64 {
            control.schedule_deferred(seed);
            fill(&stream, at, MIB, 1);
            event.record(&stream).unwrap();
            seen_before |= !event.query().unwrap();
            seen_before |= !context.is_done(&stream).unwrap();
            event.synchronize().unwrap();
            assert_eq!(event.query(), Ok(true));
        }
        assert!(seen_before);
        context.wait_for(&stream).unwrap();
        control.schedule_eagerly();
    });
}

/// Ends a stream's capture and destroys the graph. Returns the driver's answer.
fn end_capture(stream: &CudaStream) -> Code {
    let mut graph = std::ptr::null_mut();
    // SAFETY: the stream is being captured; the handle outlives the call.
    let code = unsafe { sys::cuStreamEndCapture(stream.cu_stream(), &raw mut graph) };
    if !graph.is_null() {
        // SAFETY: the graph has just been created.
        unsafe { sys::cuGraphDestroy(graph) }.result().unwrap();
    }
    Code(code as u32)
}

const RELAXED: sys::CUstreamCaptureMode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;

#[test]
fn a_capture_is_seen_and_has_a_number() {
    let _turn = apart();
    let context = Context::new(0).unwrap();
    let stream = context.cudarc().new_stream().unwrap();
    assert_eq!(context.capture_status(&stream), Ok(CaptureStatus::None));
    let mut numbers = Vec::new();
    for _ in 0..2 {
        stream.begin_capture(RELAXED).unwrap();
        assert_eq!(context.capture_status(&stream), Ok(CaptureStatus::Active));
        let (status, number) = context.capture_id(&stream).unwrap();
        assert_eq!(status, CaptureStatus::Active);
        numbers.push(number);
        let event = Event::new(&context, EventConfig::default()).unwrap();
        event.record(&stream).unwrap();
        assert_eq!(end_capture(&stream), Code::SUCCESS);
    }
    assert_ne!(numbers[0], numbers[1]);
    assert_eq!(context.capture_status(&stream), Ok(CaptureStatus::None));
}

#[test]
fn an_event_of_a_capture_is_not_asked() {
    let _turn = apart();
    let context = Context::new(0).unwrap();
    let stream = context.cudarc().new_stream().unwrap();
    let event = Event::new(&context, EventConfig::default()).unwrap();
    stream.begin_capture(RELAXED).unwrap();
    event.record(&stream).unwrap();
    let error = event.query().unwrap_err();
    assert_eq!(error.code(), Some(Code::CAPTURED_EVENT), "{error}");
    // The query may have invalidated the capture.
    end_capture(&stream);
    assert_eq!(context.capture_status(&stream), Ok(CaptureStatus::None));
    event.record(&stream).unwrap();
    assert_eq!(event.synchronize(), Ok(()));
}

/// The handle of the default stream means the default stream of whichever context is current.
#[test]
fn the_default_stream_of_another_context_is_that_contexts() {
    alone_and_clean(|control| {
        let (one, two) = (Context::new(0).unwrap(), Context::new(1).unwrap());
        let (first, second) = (one.cudarc().default_stream(), two.cudarc().default_stream());
        let device = DeviceMemory::new(&two);
        let at = device.grow(request(MIB)).unwrap().start().get();
        control.schedule_deferred(1);

        // One context waits for a stream of the other.
        fill(&second, at, MIB, 1);
        one.wait_for(&second).unwrap();
        assert_eq!(two.is_done(&second), Ok(true));

        // An event of one context cannot be recorded on a stream of the other.
        let event = Event::new(&one, EventConfig::default()).unwrap();
        assert!(event.record(&second).is_err());

        // But the stream may wait for the event.
        let source = DeviceMemory::new(&one);
        let from = source.grow(request(MIB)).unwrap().start().get();
        for seed in 0..32 {
            control.schedule_deferred(seed);
            fill(&first, from, MIB, 2);
            event.record(&first).unwrap();
            event.wait_on(&second).unwrap();
            two.wait_for(&second).unwrap();
            assert_eq!(event.query(), Ok(true), "the other's stream had to wait");
        }

        // A pool of one context allocates in the order of the other's stream.
        let pool = DriverPool::new(&one).unwrap();
        let mut queued_there = false;
        for seed in 0..32 {
            control.schedule_deferred(seed);
            let block = pool.alloc(&second, MIB).unwrap();
            queued_there |= !two.is_done(&second).unwrap();
            pool.free(&second, block).unwrap();
        }
        assert!(queued_there);
        two.wait_for(&second).unwrap();
        control.schedule_eagerly();
    });
}
