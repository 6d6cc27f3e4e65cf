//! The order of work in streams, and streams' attributes.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use larder_cuda_abi::{Code, StreamHandle};

use crate::{
    api::{context, copy, stream},
    gpu::portable,
    hold::Hold,
    own::{Device, Kernels, Stream},
    refused::refusals,
};

refusals! {
    /// Rule: the flags are CU_STREAM_DEFAULT or CU_STREAM_NON_BLOCKING (source: CUDA Driver API, Stream Management,
    /// cuStreamCreate; of the listed errors, CUDA_ERROR_INVALID_VALUE fits best).
    fn unknown_flags_of_a_stream_are_refused() {
        stream::create(0x8000), stream::create_with_priority(0x8000, 0)
    } => INVALID_VALUE;

    /// Rule: destroying the legacy or the per-thread stream, which no call created, is refused (source: CUDA Driver
    /// API, Stream Management, cuStreamDestroy: CUDA_ERROR_INVALID_HANDLE is listed).
    ///
    /// Uncertain: the documentation does not mention these handles. Any error is accepted.
    fn default_streams_cannot_be_destroyed() {
        stream::destroy(StreamHandle::LEGACY), stream::destroy(StreamHandle::PER_THREAD)
    } => INVALID_HANDLE | _;
}

/// Rule: work in one stream runs in the order in which it was queued (source: CUDA Programming Guide, Streams: "a
/// sequence of commands that execute in order").
#[test]
fn a_stream_keeps_its_order() {
    let gpu = portable();
    gpu.defer(1);
    let (stream, memory) = (Stream::blocking(), Device::new(4096));
    let half = memory.plus(2048);
    copy::fill8_async(memory.at, 1, 4096, stream.0).expect("a fill");
    copy::fill8_async(half, 2, 2048, stream.0).expect("a fill");
    copy::between_async(memory.at, half, 2048, stream.0).expect("a copy");
    copy::fill8_async(half, 3, 2048, stream.0).expect("a fill");
    stream.finish();
    assert_eq!(memory.read(), [[2; 2048], [3; 2048]].concat());
}

/// Rule: a copy sees the results of kernels and fills that were queued before it in its stream (source: CUDA
/// Programming Guide, Streams).
#[test]
fn a_copy_sees_earlier_kernels_of_its_stream() {
    let gpu = portable();
    let kernels = Kernels::load();
    gpu.defer(2);
    let (stream, from, to) = (Stream::blocking(), Device::new(1024), Device::new(1024));
    kernels.fill(from.at, 256, 5, stream.0);
    kernels.add(from.at, from.at, from.at, 256, stream.0);
    copy::between_async(to.at, from.at, 1024, stream.0).expect("a copy");
    stream.finish();
    assert_eq!(to.words(), [10; 256]);
}

/// Rule: cuStreamQuery returns CUDA_ERROR_NOT_READY until all work has ended, and then CUDA_SUCCESS (source: CUDA
/// Driver API, Stream Management, cuStreamQuery).
#[test]
fn a_stream_with_work_is_not_ready() {
    let _gpu = portable();
    let stream = Stream::blocking();
    assert_eq!(stream::query(stream.0), Ok(()));
    let hold = Hold::of(stream.0);
    assert_eq!(stream::query(stream.0), Err(Code::NOT_READY));
    hold.end(stream.0);
    assert_eq!(stream::query(stream.0), Ok(()));
}

/// Rule: cuStreamSynchronize returns after the work queued before the call has ended (source: CUDA Driver API, Stream
/// Management, cuStreamSynchronize).
#[test]
fn synchronizing_waits_for_the_work() {
    let gpu = portable();
    let ours = gpu.context();
    let stream = Stream::blocking();
    let released = Arc::new(AtomicBool::new(false));
    let hold = Hold::of(stream.0);
    let (handle, seen) = (stream.0, Arc::clone(&released));
    let waiting = thread::spawn(move || {
        context::set(ours).expect("a context");
        stream::synchronize(handle).expect("work that ends well");
        assert!(seen.load(Ordering::SeqCst), "returned before the release");
    });
    released.store(true, Ordering::SeqCst);
    hold.release();
    waiting.join().expect("a thread");
}

/// Rule: if a stream is destroyed with work in it, the call returns at once and the work still ends (source: CUDA
/// Driver API, Stream Management, cuStreamDestroy).
#[test]
fn work_of_a_destroyed_stream_still_ends() {
    let _gpu = portable();
    let memory = Device::filled(256, 0);
    let handle = stream::create(0).expect("a stream");
    let hold = Hold::of(handle);
    copy::fill8_async(memory.at, 4, 256, handle).expect("a fill");
    assert_eq!(
        stream::destroy(handle),
        Ok(()),
        "returns while work is held"
    );
    hold.release();
    context::synchronize().expect("work that ends well");
    assert_eq!(memory.read(), [4; 256]);
}

/// Rule: lower numbers are greater priorities; the range lies around 0 (source: CUDA Driver API, Context Management,
/// cuCtxGetStreamPriorityRange).
#[test]
fn greater_priorities_have_lower_numbers() {
    let _gpu = portable();
    let (least, greatest) = context::priorities().expect("a range");
    assert!(greatest <= 0 && 0 <= least, "{greatest} to {least}");
}

/// Rule: a stream can be created with any priority; a priority outside the range is moved to the nearest end of the
/// range (source: CUDA Driver API, Stream Management, cuStreamCreateWithPriority).
#[test]
fn a_priority_outside_the_range_is_taken() {
    let _gpu = portable();
    let (least, greatest) = context::priorities().expect("a range");
    for wish in [least, greatest, least + 100, greatest - 100] {
        let stream = Stream(stream::create_with_priority(0, wish).expect("a stream"));
        assert_eq!(stream::query(stream.0), Ok(()), "wish {wish}");
    }
}

/// Rule: host functions run in order with the stream's other work (source: CUDA Driver API, Execution Control,
/// cuLaunchHostFunc).
#[test]
fn host_functions_keep_their_place() {
    let gpu = portable();
    gpu.defer(4);
    let stream = Stream::blocking();
    let seen = Arc::new(Mutex::new(Vec::new()));
    for number in 0..5 {
        let seen = Arc::clone(&seen);
        let body = move || seen.lock().expect("a list").push(number);
        stream::host_function(stream.0, body).expect("a host function");
    }
    stream.finish();
    assert_eq!(*seen.lock().expect("a list"), [0, 1, 2, 3, 4]);
}

/// Rule: work queued after a host function does not begin before the function has returned (source: CUDA Driver API,
/// Execution Control, cuLaunchHostFunc: "the host function will block work added after it").
#[test]
fn work_waits_for_the_host_function_before_it() {
    let gpu = portable();
    gpu.expect_findings();
    let (stream, other) = (Stream::non_blocking(), Stream::non_blocking());
    let (memory, copied) = (Device::filled(256, 0), Device::filled(256, 9));
    let hold = Hold::of(stream.0);
    copy::fill8_async(memory.at, 1, 256, stream.0).expect("a fill");
    copy::between_async(copied.at, memory.at, 256, other.0).expect("a copy");
    other.finish();
    hold.end(stream.0);
    assert_eq!(copied.read(), [0; 256], "the fill was held");
    assert_eq!(memory.read(), [1; 256]);
}

/// Rule: each stream has an id that no other stream of the process has had or will have (source: CUDA Driver API,
/// Stream Management, cuStreamGetId: "unique for the life of the program").
#[test]
fn each_stream_has_a_number_of_its_own() {
    let _gpu = portable();
    let mut seen = vec![stream::id(StreamHandle::LEGACY).expect("a number")];
    assert_eq!(stream::id(StreamHandle::NULL), Ok(seen[0]));
    for _ in 0..10 {
        let made = Stream::non_blocking();
        let number = stream::id(made.0).expect("a number");
        assert_eq!(stream::id(made.0), Ok(number));
        assert!(!seen.contains(&number));
        seen.push(number);
    }
}
