//! The calls that a capture does not allow, and their effects on it.

use std::{sync::mpsc, thread};

use larder_cuda_abi::{Code, GraphHandle, StreamHandle, constants};

use super::{GLOBAL, Graph, RELAXED, THREAD_LOCAL, begin, during, status};
use crate::{
    api::{capture, context, copy, memory, stream},
    gpu::portable,
    own::{Device, Event, Stream},
    refused::refusals,
};

fn recorded(stream: &Stream) -> Event {
    let event = Event::new();
    event.record(stream.0);
    stream.finish();
    event
}

refusals! {
    /// Rule: a capture cannot begin in the legacy default stream (source: CUDA Driver API, Stream Management,
    /// cuStreamBeginCapture).
    ///
    /// Uncertain: the documentation does not name the code. Drivers return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, and
    /// CUDA_ERROR_INVALID_VALUE is in the list of errors.
    fn the_legacy_stream_does_not_capture() {
        capture::begin(StreamHandle::NULL, RELAXED), capture::begin(StreamHandle::LEGACY, RELAXED)
    } => STREAM_CAPTURE_UNSUPPORTED | INVALID_VALUE;

    /// Rule: in a stream that is not being captured, no capture can be ended (source: CUDA Driver API, Stream
    /// Management, cuStreamEndCapture).
    fn what_has_not_begun_does_not_end(stream = Stream::non_blocking()) {
        capture::end(stream.0)
    } => ILLEGAL_STATE | _;

    /// Rule: a stream that is being captured cannot begin another capture (source: CUDA Driver API, Stream Management,
    /// cuStreamBeginCapture: "only … if the stream is not already in capture mode").
    ///
    /// Uncertain: the documentation neither names the code nor says whether the first capture survives. Any error is
    /// accepted.
    fn a_capture_does_not_begin_twice(stream = Stream::non_blocking()) {
        during(&stream, || capture::begin(stream.0, THREAD_LOCAL))
    } => ILLEGAL_STATE | _;

    /// Rule: an event whose last record is in a capture cannot be queried or waited for: the call returns
    /// CUDA_ERROR_CAPTURED_EVENT (source: CUDA Driver API, Data types, CUresult; CUDA Programming Guide, CUDA Graphs,
    /// Prohibited and Unhandled Operations).
    fn a_captured_event_is_not_asked(stream = Stream::non_blocking(), event = Event::new()) {
        during(&stream, || {
            event.record(stream.0);
            stream::query_event(event.0)
        }),
        during(&stream, || {
            event.record(stream.0);
            stream::synchronize_event(event.0)
        })
    } => CAPTURED_EVENT;

    /// Rule: an event whose last record is in a capture has no elapsed time (source: CUDA Driver API, Data types,
    /// CUresult, CUDA_ERROR_CAPTURED_EVENT).
    ///
    /// Uncertain: CUDA_ERROR_INVALID_HANDLE, which is documented for an event that was not recorded, is accepted too.
    fn a_captured_event_tells_no_time(stream = Stream::non_blocking(), plain = recorded(&stream), event = Event::new()) {
        during(&stream, || {
            event.record(stream.0);
            stream::elapsed(plain.0, event.0)
        })
    } => CAPTURED_EVENT | INVALID_HANDLE;
}

/// Rule: a capture in an unknown mode is refused with CUDA_ERROR_INVALID_VALUE (source: CUDA Driver API, Stream
/// Management, cuStreamBeginCapture, list of errors).
///
/// Uncertain: whether cuThreadExchangeStreamCaptureMode accepts such a mode. On an H200 with driver 580 it does.
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

/// Rule: an event that was captured is an ordinary event again once it is recorded outside a capture (source: CUDA
/// Driver API, Data types, CUresult, CUDA_ERROR_CAPTURED_EVENT: "last recorded in a capturing stream").
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

/// Rule: further use of an invalidated capture returns CUDA_ERROR_STREAM_CAPTURE_INVALIDATED (source: CUDA Programming
/// Guide, CUDA Graphs, Invalidation).
#[test]
fn a_spoilt_capture_takes_no_work() {
    let _gpu = portable();
    let (stream, memory) = (Stream::non_blocking(), Device::filled(256, 0));
    begin(stream.0, THREAD_LOCAL);
    assert!(memory::alloc(256).is_err());
    let answer = copy::fill8_async(memory.at, 1, 256, stream.0);
    assert_eq!(answer, Err(Code::STREAM_CAPTURE_INVALIDATED));
    assert_eq!(status(stream.0), constants::CAPTURE_STATUS_INVALIDATED);
    let spoilt = Err(Code::STREAM_CAPTURE_INVALIDATED);
    assert_eq!(capture::end_raw(stream.0), (spoilt, GraphHandle::NULL));
    assert_eq!(status(stream.0), constants::CAPTURE_STATUS_NONE);
    copy::fill8_async(memory.at, 1, 256, stream.0).expect("a fill");
    stream.finish();
    assert_eq!(memory.read(), [1; 256]);
}

/// Rule: a capture that is not relaxed must end in the thread in which it began; otherwise the call returns
/// CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD (source: CUDA Driver API, Stream Management, cuStreamBeginCapture; Data
/// types, CUresult).
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
