//! The ends of captures, and the work after them.

use larder_cuda_abi::{Code, GraphHandle, StreamHandle, constants};

use super::{Graph, RELAXED, THREAD_LOCAL, begin, during, status};
use crate::{
    api::{capture, copy, stream},
    gpu::portable,
    own::{Device, Event, Stream},
    refused::refusals,
};

refusals! {
    /// Rule: a captured stream cannot wait for an event recorded outside: the call returns
    /// CUDA_ERROR_STREAM_CAPTURE_ISOLATION (source: CUDA Driver API, Data types, CUresult).
    fn a_capture_waits_for_no_event_from_outside(
        inside = Stream::non_blocking(), outside = Stream::non_blocking(), event = Event::new()
    ) {
        during(&inside, || {
            event.record(outside.0);
            stream::wait(inside.0, event.0)
        })
    } => STREAM_CAPTURE_ISOLATION;

    /// Rule: a call that queues work in the legacy default stream while a blocking stream is being captured returns
    /// CUDA_ERROR_STREAM_CAPTURE_IMPLICIT (source: CUDA Driver API, Data types, CUresult; CUDA Programming Guide, CUDA
    /// Graphs, Prohibited and Unhandled Operations).
    fn the_legacy_stream_takes_no_work_beside_a_blocking_capture(
        stream = Stream::blocking(), memory = Device::filled(256, 0)
    ) {
        during(&stream, || copy::fill8_async(memory.at, 1, 256, StreamHandle::NULL))
    } => STREAM_CAPTURE_IMPLICIT, leaving memory.read(), [0; 256];

    /// Rule: synchronous copies use the legacy default stream, so they too are refused while a blocking stream is being
    /// captured (source: CUDA Programming Guide, CUDA Graphs, Prohibited and Unhandled Operations: "invalid to call
    /// synchronous APIs in this case").
    fn synchronous_copies_are_refused_beside_a_blocking_capture(
        stream = Stream::blocking(), memory = Device::filled(256, 0)
    ) {
        during(&stream, || copy::to_device(memory.at, &[1; 256]))
    } => STREAM_CAPTURE_IMPLICIT, leaving memory.read(), [0; 256];
}

/// Rule: all streams of a capture must be joined to the first stream before the capture ends; otherwise the call that
/// ends it returns CUDA_ERROR_STREAM_CAPTURE_UNJOINED (source: CUDA Driver API, Data types, CUresult).
#[test]
fn a_capture_ends_joined() {
    let _gpu = portable();
    let (first, second) = (Stream::non_blocking(), Stream::non_blocking());
    let (fork, memory) = (Event::new(), Device::filled(256, 0));
    begin(first.0, THREAD_LOCAL);
    fork.record(first.0);
    stream::wait(second.0, fork.0).expect("a wait");
    copy::fill8_async(memory.at, 1, 256, second.0).expect("a fill");
    let (answer, graph) = capture::end_raw(first.0);
    assert_eq!(answer, Err(Code::STREAM_CAPTURE_UNJOINED));
    assert_eq!(graph, GraphHandle::NULL);
    for each in [&first, &second] {
        assert_eq!(status(each.0), constants::CAPTURE_STATUS_NONE);
        each.finish();
    }
    assert_eq!(memory.read(), [0; 256]);
}

/// Rule: a capture must end in the stream in which it began; otherwise the call returns
/// CUDA_ERROR_STREAM_CAPTURE_UNMATCHED (source: CUDA Driver API, Data types, CUresult; cuStreamEndCapture).
///
/// Uncertain: whether the capture survives. Ending it in its own stream may then succeed or fail.
#[test]
fn a_capture_ends_where_it_began() {
    let _gpu = portable();
    let (first, second) = (Stream::non_blocking(), Stream::non_blocking());
    let (fork, join) = (Event::new(), Event::new());
    begin(first.0, THREAD_LOCAL);
    fork.record(first.0);
    stream::wait(second.0, fork.0).expect("a wait");
    let answer = capture::end(second.0).map(Graph).map(drop);
    assert_eq!(answer, Err(Code::STREAM_CAPTURE_UNMATCHED));
    let joined = stream::record(join.0, second.0).and_then(|()| stream::wait(first.0, join.0));
    let ended = capture::end(first.0).map(Graph);
    assert!(joined.is_err() || ended.is_ok(), "{ended:?}");
    assert_eq!(status(first.0), constants::CAPTURE_STATUS_NONE);
}

/// Rule: two captures cannot be joined into one: the call returns CUDA_ERROR_STREAM_CAPTURE_MERGE (source: CUDA Driver
/// API, Data types, CUresult).
#[test]
fn two_captures_do_not_merge() {
    let _gpu = portable();
    let (first, second) = (Stream::non_blocking(), Stream::non_blocking());
    let event = Event::new();
    begin(first.0, THREAD_LOCAL);
    begin(second.0, THREAD_LOCAL);
    event.record(first.0);
    let answer = stream::wait(second.0, event.0);
    for each in [&first, &second] {
        let _ = capture::end(each.0).map(Graph);
        assert_eq!(status(each.0), constants::CAPTURE_STATUS_NONE);
    }
    assert_eq!(answer, Err(Code::STREAM_CAPTURE_MERGE));
}

/// Rule: a query of the legacy default stream's capture status returns CUDA_ERROR_STREAM_CAPTURE_IMPLICIT while a
/// blocking stream is being captured, and does not invalidate that stream's capture (source: CUDA Driver API, Stream
/// Management, cuStreamIsCapturing).
#[test]
fn asking_the_legacy_stream_spoils_no_capture() {
    let _gpu = portable();
    let stream = Stream::blocking();
    begin(stream.0, THREAD_LOCAL);
    let answer = capture::status(StreamHandle::NULL);
    assert_eq!(answer, Err(Code::STREAM_CAPTURE_IMPLICIT));
    assert_eq!(status(stream.0), constants::CAPTURE_STATUS_ACTIVE);
    drop(Graph::end(stream.0));
}

/// Rule: a non-blocking stream's capture does not affect the legacy default stream (source: CUDA Programming Guide,
/// CUDA Graphs, Prohibited and Unhandled Operations: streams "not created with cudaStreamNonBlocking").
#[test]
fn the_legacy_stream_works_beside_a_non_blocking_capture() {
    let _gpu = portable();
    let (stream, memory) = (Stream::non_blocking(), Device::filled(256, 0));
    begin(stream.0, RELAXED);
    copy::fill8_async(memory.at, 1, 256, StreamHandle::NULL).expect("a fill");
    stream::synchronize(StreamHandle::NULL).expect("work that ends well");
    drop(Graph::end(stream.0));
    assert_eq!(memory.read(), [1; 256]);
}

/// Rule: other streams continue to work while a stream is being captured (source: CUDA Programming Guide, CUDA Graphs,
/// Creating a Graph Using Stream Capture).
#[test]
fn other_streams_work_beside_a_capture() {
    let _gpu = portable();
    let (capturing, other) = (Stream::non_blocking(), Stream::non_blocking());
    let memory = Device::filled(256, 0);
    begin(capturing.0, RELAXED);
    copy::fill8_async(memory.at, 1, 256, other.0).expect("a fill");
    other.finish();
    assert_eq!(status(other.0), constants::CAPTURE_STATUS_NONE);
    drop(Graph::end(capturing.0));
    assert_eq!(memory.read(), [1; 256]);
}

/// Rule: work queued in the same stream before the capture is still ordered before the graph's work (source: CUDA
/// Driver API, Data types, CUresult, CUDA_ERROR_STREAM_CAPTURE_ISOLATION: "only implicit in-stream ordering
/// dependencies are allowed to cross the boundary").
#[test]
fn a_stream_begins_a_capture_with_work_in_it() {
    let _gpu = portable();
    let (stream, memory) = (Stream::non_blocking(), Device::filled(256, 0));
    let hold = crate::hold::Hold::of(stream.0);
    copy::fill8_async(memory.at, 1, 256, stream.0).expect("a fill");
    begin(stream.0, RELAXED);
    drop(Graph::end(stream.0));
    hold.end(stream.0);
    assert_eq!(memory.read(), [1; 256]);
}
