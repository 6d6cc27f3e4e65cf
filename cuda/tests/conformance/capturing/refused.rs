//! Calls that a capture does not allow, and what they leave of it.

use std::{sync::mpsc, thread};

use larder_cuda_abi::{Code, EventHandle, GraphHandle, StreamHandle, constants};

use super::{GLOBAL, Graph, RELAXED, THREAD_LOCAL, begin, status};
use crate::{
    api::{capture, context, copy, memory, pool, stream},
    gpu::portable,
    own::{Device, Event, Stream},
};

/// The capture was spoilt: its end says so and gives no graph.
#[track_caller]
fn assert_spoilt(stream: StreamHandle) {
    assert_eq!(status(stream), constants::CAPTURE_STATUS_INVALIDATED);
    let (answer, graph) = capture::end_raw(stream);
    assert_eq!(answer, Err(Code::STREAM_CAPTURE_INVALIDATED));
    assert_eq!(graph, GraphHandle::NULL);
    assert_eq!(status(stream), constants::CAPTURE_STATUS_NONE);
}

/// Rule: capture may not begin in the legacy default stream (source: CUDA Driver API, Stream
/// Management, cuStreamBeginCapture).
///
/// Uncertain: the code is not named; CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED is what drivers answer
/// and CUDA_ERROR_INVALID_VALUE is in the list of errors.
#[test]
fn the_legacy_stream_does_not_capture() {
    let _gpu = portable();
    let known = [
        Err(Code::STREAM_CAPTURE_UNSUPPORTED),
        Err(Code::INVALID_VALUE),
    ];
    for handle in [StreamHandle::NULL, StreamHandle::LEGACY] {
        let answer = capture::begin(handle, RELAXED);
        assert!(known.contains(&answer), "{answer:?}");
    }
}

/// Rule: a stream that captures does not begin another capture (source: CUDA Driver API, Stream
/// Management, cuStreamBeginCapture: "only … if the stream is not already in capture mode").
///
/// Uncertain: the code is not named, nor whether the first capture survives; any error is taken.
#[test]
fn a_capture_does_not_begin_twice() {
    let _gpu = portable();
    let stream = Stream::non_blocking();
    begin(stream.0, THREAD_LOCAL);
    assert!(capture::begin(stream.0, THREAD_LOCAL).is_err());
    let _ = capture::end(stream.0).map(Graph);
    assert_eq!(status(stream.0), constants::CAPTURE_STATUS_NONE);
}

/// Rule: a mode that does not exist is CUDA_ERROR_INVALID_VALUE (source: CUDA Driver API, Stream
/// Management, cuStreamBeginCapture, list of errors).
/// Uncertain: whether a thread takes such a mode; seen to do so on an H200 with driver 580.
#[test]
fn unknown_modes_are_refused() {
    let _gpu = portable();
    let stream = Stream::non_blocking();
    assert_eq!(capture::begin(stream.0, 77), Err(Code::INVALID_VALUE));
    assert_eq!(status(stream.0), constants::CAPTURE_STATUS_NONE);
    match capture::exchange_mode(77) {
        Ok(before) => drop(capture::exchange_mode(before).expect("the mode before")),
        Err(code) => assert_eq!(code, Code::INVALID_VALUE),
    }
}

/// Rule: a stream that does not capture has no capture to end (source: CUDA Driver API, Stream
/// Management, cuStreamEndCapture).
#[test]
fn what_has_not_begun_does_not_end() {
    let _gpu = portable();
    let stream = Stream::non_blocking();
    assert!(capture::end(stream.0).is_err());
}

/// Rule: in the global and thread-local modes a thread that captures may not call cuMemAlloc: it
/// answers CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and spoils the capture (source: CUDA Driver API,
/// Stream Management, cuThreadExchangeStreamCaptureMode, "potentially unsafe API calls"; CUDA
/// Programming Guide, CUDA Graphs, Invalidation).
#[test]
fn a_strict_capture_is_spoilt_by_an_allocation() {
    let _gpu = portable();
    for mode in [GLOBAL, THREAD_LOCAL] {
        let stream = Stream::non_blocking();
        begin(stream.0, mode);
        let answer = memory::alloc(256);
        assert_eq!(answer, Err(Code::STREAM_CAPTURE_UNSUPPORTED), "{mode}");
        assert_spoilt(stream.0);
    }
}

/// Rule: memory of a pool in another stream is such a call (source: seen on an H200 with driver 580; documents
/// say nothing).
#[test]
fn a_strict_capture_is_spoilt_by_memory_of_a_pool_in_another_stream() {
    let _gpu = portable();
    let other = Stream::non_blocking();
    for mode in [GLOBAL, THREAD_LOCAL] {
        let stream = Stream::non_blocking();
        begin(stream.0, mode);
        let answer = pool::alloc(256, other.0);
        assert_eq!(answer, Err(Code::STREAM_CAPTURE_UNSUPPORTED), "{mode}");
        assert_spoilt(stream.0);
    }
}

/// Rule: a stream that captures is not asked for its number, in no mode: cuStreamGetId answers
/// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and spoils the capture (source: seen on an H200 with driver 580;
/// documents say nothing).
#[test]
fn a_capturing_stream_is_not_asked_for_its_number() {
    let _gpu = portable();
    for mode in [GLOBAL, THREAD_LOCAL, RELAXED] {
        let stream = Stream::non_blocking();
        begin(stream.0, mode);
        let answer = stream::id(stream.0);
        assert_eq!(answer, Err(Code::STREAM_CAPTURE_UNSUPPORTED), "{mode}");
        assert_spoilt(stream.0);
    }
}

/// Rule: in the relaxed mode it may (source: CUDA Driver API, Stream Management,
/// cuThreadExchangeStreamCaptureMode, CU_STREAM_CAPTURE_MODE_RELAXED).
#[test]
fn a_relaxed_capture_allows_an_allocation() {
    let _gpu = portable();
    let stream = Stream::non_blocking();
    begin(stream.0, RELAXED);
    let memory = Device::new(256);
    copy::fill8_async(memory.at, 1, 256, stream.0).expect("a fill");
    assert_eq!(status(stream.0), constants::CAPTURE_STATUS_ACTIVE);
    drop(Graph::end(stream.0));
}

/// What cuMemAlloc answers in another thread while this one captures in `mode`, where that thread
/// is in the mode `thread_mode`.
fn allocation_elsewhere(stream: &Stream, mode: u32, thread_mode: u32) -> Result<(), Code> {
    let ours = context::current().expect("a context");
    begin(stream.0, mode);
    let other = thread::spawn(move || {
        context::set(ours).expect("a context");
        assert_eq!(
            capture::exchange_mode(thread_mode),
            Ok(GLOBAL),
            "a thread's first mode"
        );
        memory::alloc(256)
    });
    let answer = other.join().expect("a thread");
    if answer.is_ok() {
        assert_eq!(status(stream.0), constants::CAPTURE_STATUS_ACTIVE);
        drop(Graph::end(stream.0));
    }
    answer.map(|at| memory::free(at).expect("memory"))
}

/// Rule: a global capture forbids unsafe calls in other threads too (source: CUDA Driver API, Stream
/// Management, cuThreadExchangeStreamCaptureMode, CU_STREAM_CAPTURE_MODE_GLOBAL).
#[test]
fn a_global_capture_is_spoilt_by_another_threads_allocation() {
    let _gpu = portable();
    let stream = Stream::non_blocking();
    let answer = allocation_elsewhere(&stream, GLOBAL, GLOBAL);
    assert_eq!(answer, Err(Code::STREAM_CAPTURE_UNSUPPORTED));
    assert_spoilt(stream.0);
}

/// Rule: a thread-local capture does not (source: CUDA Driver API, Stream Management,
/// cuThreadExchangeStreamCaptureMode, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).
#[test]
fn a_thread_local_capture_allows_another_threads_allocation() {
    let _gpu = portable();
    let stream = Stream::non_blocking();
    assert_eq!(allocation_elsewhere(&stream, THREAD_LOCAL, GLOBAL), Ok(()));
}

/// Rule: a thread in the thread-local or relaxed mode minds no other thread's capture (source: CUDA
/// Driver API, Stream Management, cuThreadExchangeStreamCaptureMode).
#[test]
fn a_thread_may_stop_minding_other_threads_captures() {
    let _gpu = portable();
    for thread_mode in [THREAD_LOCAL, RELAXED] {
        let stream = Stream::non_blocking();
        let answer = allocation_elsewhere(&stream, GLOBAL, thread_mode);
        assert_eq!(answer, Ok(()), "{thread_mode}");
    }
}

/// Rule: cuThreadExchangeStreamCaptureMode gives the mode before; a thread in the relaxed mode may
/// make unsafe calls in its own strict capture (source: CUDA Driver API, Stream Management,
/// cuThreadExchangeStreamCaptureMode: "the local thread is not prohibited").
#[test]
fn a_thread_may_relax_its_own_mode() {
    let _gpu = portable();
    let stream = Stream::non_blocking();
    begin(stream.0, GLOBAL);
    assert_eq!(capture::exchange_mode(RELAXED), Ok(GLOBAL));
    let allocated = memory::alloc(256);
    assert_eq!(capture::exchange_mode(GLOBAL), Ok(RELAXED));
    let active = status(stream.0);
    drop(Graph::end(stream.0));
    memory::free(allocated.expect("memory")).expect("memory");
    assert_eq!(active, constants::CAPTURE_STATUS_ACTIVE);
}

/// Rule: a stream that captures is not waited for (source: CUDA Programming Guide, CUDA Graphs,
/// Prohibited and Unhandled Operations; CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED).
#[test]
fn a_capturing_stream_is_not_waited_for() {
    let _gpu = portable();
    let stream = Stream::non_blocking();
    begin(stream.0, RELAXED);
    let answer = stream::synchronize(stream.0);
    assert_eq!(answer, Err(Code::STREAM_CAPTURE_UNSUPPORTED));
    assert_spoilt(stream.0);
}

/// Rule: nor is it queried (source: CUDA Programming Guide, CUDA Graphs, Prohibited and Unhandled
/// Operations; CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED).
#[test]
fn a_capturing_stream_is_not_queried() {
    let _gpu = portable();
    let stream = Stream::non_blocking();
    begin(stream.0, RELAXED);
    let answer = stream::query(stream.0);
    assert_eq!(answer, Err(Code::STREAM_CAPTURE_UNSUPPORTED));
    assert_spoilt(stream.0);
}

/// Rule: the context is not waited for while one of its streams captures (source: CUDA Programming
/// Guide, CUDA Graphs, Prohibited and Unhandled Operations: "a broader handle which encompasses
/// active stream capture, such as a device or context handle").
#[test]
fn a_context_is_not_waited_for_while_a_stream_captures() {
    let _gpu = portable();
    let stream = Stream::non_blocking();
    begin(stream.0, RELAXED);
    let answer = context::synchronize();
    let _ = capture::end(stream.0).map(Graph);
    assert_eq!(answer, Err(Code::STREAM_CAPTURE_UNSUPPORTED));
}

/// Rule: an event last recorded in a capture is neither queried nor waited for:
/// CUDA_ERROR_CAPTURED_EVENT (source: CUDA Driver API, Data types, CUresult; CUDA Programming Guide,
/// CUDA Graphs, Prohibited and Unhandled Operations).
#[test]
fn a_captured_event_is_not_asked() {
    let _gpu = portable();
    let ask = |call: fn(&Event) -> Result<(), Code>| {
        let (stream, event) = (Stream::non_blocking(), Event::new());
        begin(stream.0, RELAXED);
        event.record(stream.0);
        let answer = call(&event);
        let _ = capture::end(stream.0).map(Graph);
        answer
    };
    let refused = Err(Code::CAPTURED_EVENT);
    assert_eq!(ask(|event| stream::query_event(event.0)), refused);
    assert_eq!(ask(|event| stream::synchronize_event(event.0)), refused);
}

/// Rule: nor does it tell a time (source: CUDA Driver API, Data types, CUresult,
/// CUDA_ERROR_CAPTURED_EVENT).
///
/// Uncertain: CUDA_ERROR_INVALID_HANDLE is taken too, which is documented for an event that was not
/// recorded.
#[test]
fn a_captured_event_tells_no_time() {
    let _gpu = portable();
    let (stream, plain) = (Stream::non_blocking(), Event::new());
    plain.record(stream.0);
    stream.finish();
    let event = Event::new();
    begin(stream.0, RELAXED);
    event.record(stream.0);
    let answer = stream::elapsed(plain.0, event.0).map(|_| ());
    let _ = capture::end(stream.0).map(Graph);
    let known = [Err(Code::CAPTURED_EVENT), Err(Code::INVALID_HANDLE)];
    assert!(known.contains(&answer), "{answer:?}");
}

/// What cuEventQuery and cuEventSynchronize answer for an event that was recorded before a capture began in
/// `mode`, in a thread of this mode: another one, or the one that captures. The captures' states follow.
fn asked_in_a_capture(
    mode: u32,
    thread_mode: u32,
    elsewhere: bool,
) -> [(Result<(), Code>, u32); 2] {
    let ours = context::current().expect("a context");
    let calls: [fn(EventHandle) -> Result<(), Code>; 2] =
        [stream::query_event, stream::synchronize_event];
    calls.map(|call| {
        let (stream, event) = (Stream::non_blocking(), Event::new());
        event.record(stream.0);
        stream::synchronize(stream.0).expect("no work");
        begin(stream.0, mode);
        let asked = event.0;
        let ask = move || {
            context::set(ours).expect("a context");
            let before = capture::exchange_mode(thread_mode).expect("a mode");
            let answer = call(asked);
            capture::exchange_mode(before).expect("a mode");
            answer
        };
        let answer = match elsewhere {
            true => thread::spawn(ask).join().expect("a thread"),
            false => ask(),
        };
        let after = status(stream.0);
        let _ = capture::end(stream.0).map(Graph);
        (answer, after)
    })
}

/// Rule: an event recorded before a strict capture is neither queried nor waited for by the thread that
/// captures, nor by others in a global capture: it spoils the capture (source: CUDA Driver API, Stream
/// Management, cuThreadExchangeStreamCaptureMode, "potentially unsafe API calls").
///
/// Uncertain: the documents do not list the calls; that these two are of them is what pytorch#104487 and
/// pytorch#148594 met on devices.
#[test]
fn an_event_of_before_is_not_asked_in_a_strict_capture() {
    let _gpu = portable();
    for (mode, elsewhere) in [(GLOBAL, false), (GLOBAL, true), (THREAD_LOCAL, false)] {
        for (answer, after) in asked_in_a_capture(mode, GLOBAL, elsewhere) {
            assert_eq!(answer, Err(Code::STREAM_CAPTURE_UNSUPPORTED), "{mode}");
            assert_eq!(after, constants::CAPTURE_STATUS_INVALIDATED, "{mode}");
        }
    }
}

/// Rule: a thread in the relaxed mode asks such an event and spoils nothing (source: CUDA Driver API, Stream
/// Management, cuThreadExchangeStreamCaptureMode: "the local thread is not prohibited").
#[test]
fn a_relaxed_thread_asks_events_of_before() {
    let _gpu = portable();
    for (mode, elsewhere) in [(GLOBAL, false), (GLOBAL, true), (THREAD_LOCAL, false)] {
        for (answer, after) in asked_in_a_capture(mode, RELAXED, elsewhere) {
            assert_eq!(answer, Ok(()), "{mode}");
            assert_eq!(after, constants::CAPTURE_STATUS_ACTIVE, "{mode}");
        }
    }
}

/// Rule: other threads ask such an event while a thread-local capture goes on (source: CUDA Driver API,
/// Stream Management, cuThreadExchangeStreamCaptureMode, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).
#[test]
fn a_thread_local_capture_allows_other_threads_to_ask_events() {
    let _gpu = portable();
    for (answer, after) in asked_in_a_capture(THREAD_LOCAL, GLOBAL, true) {
        assert_eq!(answer, Ok(()));
        assert_eq!(after, constants::CAPTURE_STATUS_ACTIVE);
    }
}

/// Rule: an event captured before is an ordinary one once it is recorded outside (source: CUDA
/// Driver API, Data types, CUresult, CUDA_ERROR_CAPTURED_EVENT: "last recorded in a capturing
/// stream").
#[test]
fn a_captured_event_is_free_again_once_recorded_outside() {
    let _gpu = portable();
    let (stream, event) = (Stream::non_blocking(), Event::new());
    begin(stream.0, THREAD_LOCAL);
    event.record(stream.0);
    drop(Graph::end(stream.0));
    event.record(stream.0);
    assert_eq!(stream::synchronize_event(event.0), Ok(()));
    assert_eq!(stream::query_event(event.0), Ok(()));
}

/// Rule: further use of a spoilt capture answers CUDA_ERROR_STREAM_CAPTURE_INVALIDATED (source: CUDA
/// Programming Guide, CUDA Graphs, Invalidation).
#[test]
fn a_spoilt_capture_takes_no_work() {
    let _gpu = portable();
    let (stream, memory) = (Stream::non_blocking(), Device::filled(256, 0));
    begin(stream.0, THREAD_LOCAL);
    assert!(memory::alloc(256).is_err());
    let answer = copy::fill8_async(memory.at, 1, 256, stream.0);
    assert_eq!(answer, Err(Code::STREAM_CAPTURE_INVALIDATED));
    assert_spoilt(stream.0);
    copy::fill8_async(memory.at, 1, 256, stream.0).expect("a fill");
    stream.finish();
    assert_eq!(memory.read(), [1; 256]);
}

/// Rule: a capture that is not relaxed ends in the thread in which it began, else
/// CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD (source: CUDA Driver API, Stream Management,
/// cuStreamBeginCapture; Data types, CUresult).
#[test]
fn a_strict_capture_ends_in_its_thread() {
    let gpu = portable();
    let ours = gpu.context();
    let ends_elsewhere = |mode| {
        let stream = Stream::non_blocking();
        begin(stream.0, mode);
        let (send, receive) = mpsc::channel();
        let handle = stream.0;
        thread::spawn(move || {
            context::set(ours).expect("a context");
            send.send(capture::end(handle)).expect("a listener");
        });
        let answer = receive.recv().expect("a sender");
        if answer.is_err() {
            let _ = capture::end(stream.0).map(Graph);
        }
        answer.map(Graph).map(drop)
    };
    for mode in [GLOBAL, THREAD_LOCAL] {
        let refused = Err(Code::STREAM_CAPTURE_WRONG_THREAD);
        assert_eq!(ends_elsewhere(mode), refused, "{mode}");
    }
    assert_eq!(ends_elsewhere(RELAXED), Ok(()));
}
