//! The legacy default stream, which waits for blocking streams and for which they wait, and the per-thread default
//! streams.

use std::thread;

use larder_cuda_abi::{Code, StreamHandle};

use crate::{
    api::{context, copy, stream},
    gpu::portable,
    hold::Hold,
    own::{Device, Event, Stream},
};

const LEGACY: StreamHandle = StreamHandle::NULL;

/// A kind of stream. The default streams always exist.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Legacy,
    PerThread,
    Blocking,
    NonBlocking,
}
use Kind::*;

impl Kind {
    /// Returns a stream of this kind, and its owner if it was created.
    fn stream(self) -> (StreamHandle, Option<Stream>) {
        let made = |stream: Stream| (stream.0, Some(stream));
        match self {
            Legacy => (LEGACY, None),
            PerThread => (StreamHandle::PER_THREAD, None),
            Blocking => made(Stream::blocking()),
            NonBlocking => made(Stream::non_blocking()),
        }
    }
}

/// A stream with earlier work, a stream with later work, and whether the later work waits for the earlier.
const WAITS: [(Kind, Kind, bool); 8] = [
    // CUDA Driver API, Stream synchronization behavior, Legacy default stream.
    (Blocking, Legacy, true),
    (Legacy, Blocking, true),
    // CUDA Driver API, Stream Management, cuStreamCreate, CU_STREAM_NON_BLOCKING.
    (Legacy, NonBlocking, false),
    (NonBlocking, Legacy, false),
    // CUDA Driver API, Stream synchronization behavior, Per-thread default stream: it "is not a
    // non-blocking stream and will synchronize with the legacy default stream if both are used".
    (Legacy, PerThread, true),
    (PerThread, Legacy, true),
    // CUDA Programming Guide, Streams: "different streams may execute out of order or concurrently".
    (Blocking, Blocking, false),
    (NonBlocking, NonBlocking, false),
];

/// Rule: streams without an event between them do not wait for each other, except that the legacy default stream waits
/// for blocking streams and for the per-thread default stream, and they wait for it (source: at each row of the table).
#[test]
fn streams_wait_for_the_legacy_stream_and_it_for_them() {
    let _gpu = portable();
    for (earlier, later, waits) in WAITS {
        let case = format!("{later:?} behind {earlier:?}");
        let memory = Device::filled(256, 0);
        let ((first, _first), (second, _second)) = (earlier.stream(), later.stream());
        let hold = Hold::of(first);
        // If the second fill waits, the fills overlap, and the result shows their order.
        let offset = if waits { 0 } else { 128 };
        copy::fill8_async(memory.plus(offset), 1, 256 - offset as usize, first).expect("a fill");
        copy::fill8_async(memory.at, 2, 128, second).expect("a fill");
        if waits {
            assert_eq!(stream::query(second), Err(Code::NOT_READY), "{case}");
        } else {
            stream::synchronize(second).expect("work that ends well");
            assert_eq!(stream::query(first), Err(Code::NOT_READY), "{case}");
        }
        hold.release();
        for each in [first, second] {
            stream::synchronize(each).expect("work that ends well");
        }
        assert_eq!(memory.read(), [[2; 128], [1; 128]].concat(), "{case}");
    }
}

/// Rule: a blocking stream waits for the legacy stream's earlier work even if that work had to wait for a third stream
/// (source: CUDA Driver API, Stream synchronization behavior).
#[test]
fn the_legacy_stream_orders_two_blocking_streams() {
    let _gpu = portable();
    let (first, second) = (Stream::blocking(), Stream::blocking());
    let memory = Device::filled(256, 0);
    let hold = Hold::of(first.0);
    copy::fill8_async(memory.at, 1, 256, first.0).expect("a fill");
    copy::fill8_async(memory.at, 2, 128, LEGACY).expect("a fill");
    copy::fill8_async(memory.at, 3, 64, second.0).expect("a fill");
    assert_eq!(stream::query(second.0), Err(Code::NOT_READY));
    hold.end(second.0);
    assert_eq!(
        memory.read(),
        [vec![3; 64], vec![2; 64], vec![1; 128]].concat()
    );
}

/// Rule: null and CU_STREAM_LEGACY are the same stream (source: CUDA Driver API, Data types, CU_STREAM_LEGACY; without
/// per-thread compilation null is the legacy default stream).
#[test]
fn null_and_legacy_are_one_stream() {
    let _gpu = portable();
    let memory = Device::filled(256, 0);
    let hold = Hold::of(StreamHandle::LEGACY);
    assert_eq!(stream::query(StreamHandle::NULL), Err(Code::NOT_READY));
    copy::fill8_async(memory.at, 1, 256, StreamHandle::NULL).expect("a fill");
    copy::fill8_async(memory.at, 2, 128, StreamHandle::LEGACY).expect("a fill");
    hold.end(StreamHandle::NULL);
    assert_eq!(stream::query(StreamHandle::LEGACY), Ok(()));
    assert_eq!(memory.read(), [[2; 128], [1; 128]].concat());
}

/// Rule: each thread has a per-thread default stream of its own, and these do not wait for each other (source: CUDA
/// Driver API, Stream synchronization behavior, Per-thread default stream).
#[test]
fn each_thread_has_a_default_stream_of_its_own() {
    let gpu = portable();
    let ours = gpu.context();
    let hold = Hold::of(StreamHandle::PER_THREAD);
    let other = thread::spawn(move || {
        context::set(ours).expect("a context");
        let (stream, event) = (StreamHandle::PER_THREAD, Event::new());
        event.record(stream);
        stream::synchronize(stream).expect("work that ends well");
        stream::query_event(event.0)
    });
    assert_eq!(other.join().expect("a thread"), Ok(()));
    assert_eq!(
        stream::query(StreamHandle::PER_THREAD),
        Err(Code::NOT_READY)
    );
    hold.end(StreamHandle::PER_THREAD);
}

/// Rule: an event recorded in the legacy default stream completes after the blocking streams' earlier work (source:
/// CUDA Driver API, Stream synchronization behavior, Legacy default stream).
#[test]
fn an_event_in_the_legacy_stream_is_behind_blocking_streams() {
    let _gpu = portable();
    let (stream, event) = (Stream::blocking(), Event::new());
    let hold = Hold::of(stream.0);
    event.record(LEGACY);
    assert_eq!(stream::query_event(event.0), Err(Code::NOT_READY));
    hold.release();
    stream::synchronize_event(event.0).expect("work that ends well");
    assert_eq!(stream::query(stream.0), Ok(()));
}
