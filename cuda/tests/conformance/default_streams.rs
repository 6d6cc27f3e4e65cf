//! The legacy default stream, which waits for blocking streams, as they do for it; the per-thread
//! default streams.

use std::thread;

use larder_cuda_abi::{Code, StreamHandle};

use crate::{
    api::{context, copy, stream},
    gpu::portable,
    hold::Hold,
    own::{Device, Event, Stream},
};

const LEGACY: StreamHandle = StreamHandle::NULL;

/// Rule: work in the legacy default stream waits for the blocking streams' earlier work (source:
/// CUDA Driver API, Stream synchronization behavior, Legacy default stream).
#[test]
fn the_legacy_stream_waits_for_blocking_streams() {
    let _gpu = portable();
    let (stream, memory) = (Stream::blocking(), Device::filled(256, 0));
    let hold = Hold::of(stream.0);
    copy::fill8_async(memory.at, 1, 256, stream.0).expect("a fill");
    copy::fill8_async(memory.at, 2, 128, LEGACY).expect("a fill");
    assert_eq!(stream::query(LEGACY), Err(Code::NOT_READY));
    hold.release();
    stream::synchronize(LEGACY).expect("work that ends well");
    assert_eq!(memory.read(), [[2; 128], [1; 128]].concat());
}

/// Rule: later work in blocking streams waits for the legacy default stream (source: CUDA Driver
/// API, Stream synchronization behavior, Legacy default stream).
#[test]
fn blocking_streams_wait_for_the_legacy_stream() {
    let _gpu = portable();
    let (stream, memory) = (Stream::blocking(), Device::filled(256, 0));
    let hold = Hold::of(LEGACY);
    copy::fill8_async(memory.at, 1, 256, LEGACY).expect("a fill");
    copy::fill8_async(memory.at, 2, 128, stream.0).expect("a fill");
    assert_eq!(stream::query(stream.0), Err(Code::NOT_READY));
    hold.release();
    stream.finish();
    assert_eq!(memory.read(), [[2; 128], [1; 128]].concat());
}

/// Rule: a blocking stream waits for the legacy stream's work of before also where that had to wait
/// for a third stream (source: CUDA Driver API, Stream synchronization behavior).
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
    hold.release();
    second.finish();
    assert_eq!(
        memory.read(),
        [vec![3; 64], vec![2; 64], vec![1; 128]].concat()
    );
}

/// Rule: non-blocking streams do not wait for the legacy default stream (source: CUDA Driver API,
/// Stream Management, cuStreamCreate, CU_STREAM_NON_BLOCKING).
#[test]
fn non_blocking_streams_do_not_wait_for_the_legacy_stream() {
    let _gpu = portable();
    let (stream, memory) = (Stream::non_blocking(), Device::filled(256, 0));
    let hold = Hold::of(LEGACY);
    copy::fill8_async(memory.at, 1, 256, stream.0).expect("a fill");
    stream.finish();
    assert_eq!(stream::query(LEGACY), Err(Code::NOT_READY));
    hold.release();
    stream::synchronize(LEGACY).expect("work that ends well");
    assert_eq!(memory.read(), [1; 256]);
}

/// Rule: the legacy default stream does not wait for non-blocking streams (source: CUDA Driver API,
/// Stream Management, cuStreamCreate, CU_STREAM_NON_BLOCKING).
#[test]
fn the_legacy_stream_does_not_wait_for_non_blocking_streams() {
    let _gpu = portable();
    let (stream, memory) = (Stream::non_blocking(), Device::filled(256, 0));
    let hold = Hold::of(stream.0);
    copy::fill8_async(memory.at, 1, 256, LEGACY).expect("a fill");
    stream::synchronize(LEGACY).expect("work that ends well");
    assert_eq!(stream::query(stream.0), Err(Code::NOT_READY));
    hold.release();
    stream.finish();
    assert_eq!(memory.read(), [1; 256]);
}

/// Rule: null and CU_STREAM_LEGACY are the same stream (source: CUDA Driver API, Data types,
/// CU_STREAM_LEGACY; without per-thread compilation null is the legacy default stream).
#[test]
fn null_and_legacy_are_one_stream() {
    let _gpu = portable();
    let memory = Device::filled(256, 0);
    let hold = Hold::of(StreamHandle::LEGACY);
    assert_eq!(stream::query(StreamHandle::NULL), Err(Code::NOT_READY));
    copy::fill8_async(memory.at, 1, 256, StreamHandle::NULL).expect("a fill");
    copy::fill8_async(memory.at, 2, 128, StreamHandle::LEGACY).expect("a fill");
    hold.release();
    stream::synchronize(StreamHandle::NULL).expect("work that ends well");
    assert_eq!(stream::query(StreamHandle::LEGACY), Ok(()));
    assert_eq!(memory.read(), [[2; 128], [1; 128]].concat());
}

/// Rule: each thread has a per-thread default stream of its own, and these do not wait for each
/// other (source: CUDA Driver API, Stream synchronization behavior, Per-thread default stream).
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
    hold.release();
    stream::synchronize(StreamHandle::PER_THREAD).expect("work that ends well");
}

/// Rule: the per-thread default stream and the legacy default stream wait for each other (source:
/// CUDA Driver API, Stream synchronization behavior, Per-thread default stream: it "is not a
/// non-blocking stream and will synchronize with the legacy default stream if both are used").
#[test]
fn the_per_thread_stream_waits_for_the_legacy_stream() {
    let _gpu = portable();
    let memory = Device::filled(256, 0);
    let hold = Hold::of(LEGACY);
    copy::fill8_async(memory.at, 1, 256, LEGACY).expect("a fill");
    copy::fill8_async(memory.at, 2, 128, StreamHandle::PER_THREAD).expect("a fill");
    assert_eq!(
        stream::query(StreamHandle::PER_THREAD),
        Err(Code::NOT_READY)
    );
    hold.release();
    stream::synchronize(StreamHandle::PER_THREAD).expect("work that ends well");
    assert_eq!(memory.read(), [[2; 128], [1; 128]].concat());
}

/// Rule: an event recorded in the legacy default stream is behind the blocking streams' work
/// (source: CUDA Driver API, Stream synchronization behavior, Legacy default stream).
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
