//! Events: the work they represent, waits for them, and their times.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use larder_cuda_abi::{Code, constants};

use crate::{
    api::{context, copy, stream},
    gpu::portable,
    hold::Hold,
    own::{Device, Event, Stream},
    refused::refusals,
};

refusals! {
    /// Rule: unknown flags of an event are refused (source: CUDA Driver API, Event Management, cuEventCreate; of the
    /// listed errors, CUDA_ERROR_INVALID_VALUE fits best).
    fn unknown_flags_of_an_event_are_refused() { stream::create_event(0x8000) } => INVALID_VALUE;

    /// Rule: unknown flags of a wait are refused (source: CUDA Driver API, Stream Management, cuStreamWaitEvent; of the
    /// listed errors, CUDA_ERROR_INVALID_VALUE fits best).
    fn unknown_flags_of_waits_are_refused(stream = Stream::blocking(), event = Event::new()) {
        stream::wait_with(stream.0, event.0, 0x8000)
    } => INVALID_VALUE;
}

/// Rule: an event that was never recorded counts as complete, and a wait for it does nothing (source: CUDA Driver API,
/// Event Management, cuEventQuery, cuEventSynchronize; Stream Management, cuStreamWaitEvent).
#[test]
fn an_event_never_recorded_is_complete() {
    let _gpu = portable();
    let (stream, event) = (Stream::non_blocking(), Event::new());
    assert_eq!(stream::query_event(event.0), Ok(()));
    assert_eq!(stream::synchronize_event(event.0), Ok(()));
    assert_eq!(stream::wait(stream.0, event.0), Ok(()));
    stream.finish();
}

/// Rule: a query of an event returns CUDA_ERROR_NOT_READY until the work before its record has ended (source: CUDA
/// Driver API, Event Management, cuEventQuery).
#[test]
fn an_event_stands_for_the_work_before_it() {
    let _gpu = portable();
    let (stream, event) = (Stream::blocking(), Event::new());
    let hold = Hold::of(stream.0);
    event.record(stream.0);
    assert_eq!(stream::query_event(event.0), Err(Code::NOT_READY));
    hold.release();
    assert_eq!(stream::synchronize_event(event.0), Ok(()));
    assert_eq!(stream::query_event(event.0), Ok(()));
}

/// Rule: work queued after a record does not keep the event from completing (source: CUDA Driver API, Event Management,
/// cuEventRecord: it "captures" the contents of the stream at the call).
#[test]
fn an_event_does_not_stand_for_later_work() {
    let _gpu = portable();
    let (stream, event) = (Stream::blocking(), Event::new());
    event.record(stream.0);
    let hold = Hold::of(stream.0);
    assert_eq!(stream::synchronize_event(event.0), Ok(()));
    assert_eq!(stream::query(stream.0), Err(Code::NOT_READY));
    hold.end(stream.0);
}

/// Rule: cuEventSynchronize returns after the recorded work (source: CUDA Driver API, Event Management,
/// cuEventSynchronize).
#[test]
fn synchronizing_an_event_waits_for_its_work() {
    let gpu = portable();
    let ours = gpu.context();
    let flags = constants::EVENT_BLOCKING_SYNC;
    let (stream, event) = (Stream::blocking(), Event::with(flags));
    let released = Arc::new(AtomicBool::new(false));
    let hold = Hold::of(stream.0);
    event.record(stream.0);
    let (handle, seen) = (event.0, Arc::clone(&released));
    let waiting = thread::spawn(move || {
        context::set(ours).expect("a context");
        stream::synchronize_event(handle).expect("work that ends well");
        assert!(seen.load(Ordering::SeqCst), "returned before the release");
    });
    released.store(true, Ordering::SeqCst);
    hold.release();
    waiting.join().expect("a thread");
}

/// Rule: work queued after cuStreamWaitEvent waits for the work before the record, across streams (source: CUDA Driver
/// API, Stream Management, cuStreamWaitEvent).
#[test]
fn a_stream_waits_for_an_event_of_another() {
    let _gpu = portable();
    let (first, second) = (Stream::non_blocking(), Stream::non_blocking());
    let (event, memory) = (Event::new(), Device::filled(256, 0));
    let hold = Hold::of(first.0);
    copy::fill8_async(memory.at, 1, 256, first.0).expect("a fill");
    event.record(first.0);
    stream::wait(second.0, event.0).expect("a wait");
    copy::fill8_async(memory.at, 2, 128, second.0).expect("a fill");
    assert_eq!(stream::query(second.0), Err(Code::NOT_READY));
    hold.end(second.0);
    assert_eq!(memory.read(), [[2; 128], [1; 128]].concat());
}

/// Rule: work queued before the wait does not wait (source: CUDA Driver API, Stream Management, cuStreamWaitEvent: "all
/// future work").
#[test]
fn work_before_a_wait_does_not_wait() {
    let _gpu = portable();
    let (first, second) = (Stream::non_blocking(), Stream::non_blocking());
    let (event, before) = (Event::new(), Event::new());
    let memory = Device::filled(256, 0);
    let hold = Hold::of(first.0);
    event.record(first.0);
    copy::fill8_async(memory.at, 1, 256, second.0).expect("a fill");
    before.record(second.0);
    stream::wait(second.0, event.0).expect("a wait");
    assert_eq!(stream::synchronize_event(before.0), Ok(()));
    assert_eq!(stream::query(second.0), Err(Code::NOT_READY));
    hold.end(second.0);
    assert_eq!(memory.read(), [1; 256]);
}

/// Rule: a wait is for the record that is current when the wait is queued; a later record does not make the wait
/// shorter (source: CUDA Driver API, Event Management, cuEventRecord: "once captured, subsequent calls … will not
/// affect" earlier calls).
#[test]
fn recording_again_does_not_shorten_a_wait() {
    let _gpu = portable();
    let streams = [(); 3].map(|()| Stream::non_blocking());
    let [held, waiting, idle] = &streams;
    let (event, memory) = (Event::new(), Device::filled(256, 0));
    let hold = Hold::of(held.0);
    copy::fill8_async(memory.at, 1, 256, held.0).expect("a fill");
    event.record(held.0);
    stream::wait(waiting.0, event.0).expect("a wait");
    copy::fill8_async(memory.at, 2, 128, waiting.0).expect("a fill");
    event.record(idle.0);
    assert_eq!(
        stream::synchronize_event(event.0),
        Ok(()),
        "the idle stream's record"
    );
    assert_eq!(stream::query(waiting.0), Err(Code::NOT_READY));
    hold.end(waiting.0);
    assert_eq!(memory.read(), [[2; 128], [1; 128]].concat());
}

/// Rule: a later record does not make an earlier wait longer (source: CUDA Driver API, Event Management,
/// cuEventRecord).
#[test]
fn recording_again_does_not_lengthen_a_wait() {
    let _gpu = portable();
    let streams = [(); 3].map(|()| Stream::non_blocking());
    let [idle, waiting, held] = &streams;
    let event = Event::new();
    event.record(idle.0);
    stream::wait(waiting.0, event.0).expect("a wait");
    let hold = Hold::of(held.0);
    event.record(held.0);
    waiting.finish();
    assert_eq!(stream::query_event(event.0), Err(Code::NOT_READY));
    hold.end(held.0);
}

/// Rule: an event that is destroyed before it is complete is released once it is complete; waits for it remain in
/// effect (source: CUDA Driver API, Event Management, cuEventDestroy).
#[test]
fn a_wait_survives_its_event() {
    let _gpu = portable();
    let (first, second) = (Stream::non_blocking(), Stream::non_blocking());
    let memory = Device::filled(256, 0);
    let event = stream::create_event(0).expect("an event");
    let hold = Hold::of(first.0);
    copy::fill8_async(memory.at, 1, 256, first.0).expect("a fill");
    stream::record(event, first.0).expect("a record");
    stream::wait(second.0, event).expect("a wait");
    assert_eq!(stream::destroy_event(event), Ok(()));
    copy::fill8_async(memory.at, 2, 128, second.0).expect("a fill");
    assert_eq!(stream::query(second.0), Err(Code::NOT_READY));
    hold.end(second.0);
    assert_eq!(memory.read(), [[2; 128], [1; 128]].concat());
}

/// Rule: the time between two completed records with timing in one stream is not negative (source: CUDA Driver API,
/// Event Management, cuEventElapsedTime).
#[test]
fn time_passes_between_two_events() {
    let _gpu = portable();
    let (stream, memory) = (Stream::blocking(), Device::new(1 << 20));
    let (start, end) = (Event::new(), Event::new());
    start.record(stream.0);
    copy::fill8_async(memory.at, 1, 1 << 20, stream.0).expect("a fill");
    end.record(stream.0);
    stream.finish();
    let milliseconds = stream::elapsed(start.0, end.0).expect("a time");
    assert!(milliseconds >= 0.0, "{milliseconds}");
    assert!(milliseconds < 60_000.0, "{milliseconds}");
}

/// Rule: cuEventElapsedTime returns CUDA_ERROR_NOT_READY while a recorded event is not complete (source: CUDA Driver
/// API, Event Management, cuEventElapsedTime).
#[test]
fn no_time_is_told_before_both_events() {
    let _gpu = portable();
    let (stream, start, end) = (Stream::blocking(), Event::new(), Event::new());
    start.record(stream.0);
    let hold = Hold::of(stream.0);
    end.record(stream.0);
    assert_eq!(stream::elapsed(start.0, end.0), Err(Code::NOT_READY));
    hold.end(stream.0);
    assert!(stream::elapsed(start.0, end.0).is_ok());
}

/// Rule: cuEventElapsedTime returns CUDA_ERROR_INVALID_HANDLE if an event was never recorded or has timing disabled
/// (source: CUDA Driver API, Event Management, cuEventElapsedTime, CU_EVENT_DISABLE_TIMING).
#[test]
fn no_time_is_told_of_an_event_never_recorded_or_without_timing() {
    let _gpu = portable();
    let (stream, timed, never) = (Stream::blocking(), Event::new(), Event::new());
    let untimed = Event::with(constants::EVENT_DISABLE_TIMING);
    timed.record(stream.0);
    untimed.record(stream.0);
    stream.finish();
    for other in [&never, &untimed] {
        let refused = Err(Code::INVALID_HANDLE);
        assert_eq!(stream::elapsed(timed.0, other.0), refused);
        assert_eq!(stream::elapsed(other.0, timed.0), refused);
    }
}

/// Rule: an event that is shared with other processes must have timing disabled (source: CUDA Driver API, Event
/// Management, cuEventCreate, CU_EVENT_INTERPROCESS; of the listed errors, CUDA_ERROR_INVALID_VALUE fits best).
#[test]
fn an_event_for_other_processes_keeps_no_time() {
    let _gpu = portable();
    let shared = constants::EVENT_INTERPROCESS;
    assert_eq!(stream::create_event(shared), Err(Code::INVALID_VALUE));
    drop(Event::with(shared | constants::EVENT_DISABLE_TIMING));
}

/// Rule: the event and the stream of a record must belong to one context; otherwise the call returns
/// CUDA_ERROR_INVALID_HANDLE (source: CUDA Driver API, Event Management, cuEventRecord).
#[test]
fn an_event_is_not_recorded_in_another_context() {
    let _gpu = portable();
    let event = Event::new();
    let second = context::create(0, 0).expect("a context");
    let other = Stream::blocking();
    assert_eq!(stream::record(event.0, other.0), Err(Code::INVALID_HANDLE));
    drop(other);
    context::destroy(second).expect("a context");
}

/// Rule: a stream may wait for an event of another context (source: CUDA Driver API, Stream Management,
/// cuStreamWaitEvent: the event "may be from a different context or device").
#[test]
fn a_stream_waits_for_an_event_of_another_context() {
    let _gpu = portable();
    let (stream, event) = (Stream::non_blocking(), Event::new());
    let second = context::create(0, 0).expect("a context");
    let other = Stream::non_blocking();
    let hold = Hold::of(stream.0);
    event.record(stream.0);
    assert_eq!(stream::wait(other.0, event.0), Ok(()));
    assert_eq!(stream::query(other.0), Err(Code::NOT_READY));
    hold.end(other.0);
    drop(other);
    context::destroy(second).expect("a context");
}

/// Rule: an event may be recorded many times; queries and waits refer to its last record (source: CUDA Driver API,
/// Event Management, cuEventRecord).
#[test]
fn an_event_tells_of_its_last_record() {
    let _gpu = portable();
    let (held, idle) = (Stream::non_blocking(), Stream::non_blocking());
    let event = Event::new();
    event.record(idle.0);
    stream::synchronize_event(event.0).expect("work that ends well");
    let hold = Hold::of(held.0);
    event.record(held.0);
    assert_eq!(stream::query_event(event.0), Err(Code::NOT_READY));
    event.record(idle.0);
    assert_eq!(stream::synchronize_event(event.0), Ok(()));
    hold.end(held.0);
}
