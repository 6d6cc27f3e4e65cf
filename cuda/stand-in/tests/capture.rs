//! Capture and graphs.

#![allow(
    clippy::multiple_unsafe_ops_per_block,
    clippy::undocumented_unsafe_blocks,
    reason = "calls of the driver's C interface"
)]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use larder_cuda_abi::{Code, constants as c};
use larder_cuda_stand_in as _;

unsafe extern "C" {
    fn cuInit(flags: u32) -> Code;
    fn cuCtxCreate_v2(context: *mut usize, flags: u32, device: i32) -> Code;
    fn cuCtxSetCurrent(context: usize) -> Code;
    fn cuCtxSynchronize() -> Code;
    fn cuStreamCreate(stream: *mut usize, flags: u32) -> Code;
    fn cuStreamDestroy_v2(stream: usize) -> Code;
    fn cuStreamSynchronize(stream: usize) -> Code;
    fn cuStreamQuery(stream: usize) -> Code;
    fn cuStreamWaitEvent(stream: usize, event: usize, flags: u32) -> Code;
    fn cuEventCreate(event: *mut usize, flags: u32) -> Code;
    fn cuEventRecord(event: usize, stream: usize) -> Code;
    fn cuEventQuery(event: usize) -> Code;
    fn cuMemAlloc_v2(at: *mut u64, bytes: usize) -> Code;
    fn cuMemAllocAsync(at: *mut u64, bytes: usize, stream: usize) -> Code;
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) -> Code;
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) -> Code;
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: usize) -> Code;
    fn cuMemsetD8Async(at: u64, value: u8, count: usize, stream: usize) -> Code;
    fn cuStreamBeginCapture_v2(stream: usize, mode: u32) -> Code;
    fn cuStreamEndCapture(stream: usize, graph: *mut usize) -> Code;
    fn cuStreamIsCapturing(stream: usize, status: *mut u32) -> Code;
    fn cuStreamGetCaptureInfo_v2(
        stream: usize,
        status: *mut u32,
        id: *mut u64,
        graph: *mut usize,
        nodes: *mut *const usize,
        count: *mut usize,
    ) -> Code;
    fn cuThreadExchangeStreamCaptureMode(mode: *mut u32) -> Code;
    fn cuGraphCreate(graph: *mut usize, flags: u32) -> Code;
    fn cuGraphGetNodes(graph: usize, nodes: *mut usize, count: *mut usize) -> Code;
    fn cuGraphInstantiateWithFlags(exec: *mut usize, graph: usize, flags: u64) -> Code;
    fn cuGraphLaunch(exec: usize, stream: usize) -> Code;
    fn cuGraphExecDestroy(exec: usize) -> Code;
    fn cuGraphDestroy(graph: usize) -> Code;
    fn larder_stand_in_reset(devices: u32, bytes: u64);
    fn larder_stand_in_schedule(deferred: u32, seed: u64);
    fn larder_stand_in_findings(buf: *mut u8, len: u64) -> u64;
    fn larder_stand_in_alive(buf: *mut u8, len: u64) -> u64;
}

fn ok(code: Code) {
    assert_eq!(code, Code::SUCCESS);
}

/// A fresh driver with one context of device 0.
fn begin(seed: Option<u64>) -> (MutexGuard<'static, ()>, usize) {
    static LOCK: Mutex<()> = Mutex::new(());
    let guard = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let mut context = 0;
    unsafe {
        larder_stand_in_reset(1, 64 << 20);
        ok(cuInit(0));
        ok(cuCtxSetCurrent(0));
        ok(cuCtxCreate_v2(&mut context, 0, 0));
        if let Some(seed) = seed {
            larder_stand_in_schedule(1, seed);
        }
    }
    (guard, context)
}

fn text(of: unsafe extern "C" fn(*mut u8, u64) -> u64) -> String {
    let mut buf = vec![0; 1 << 16];
    let length = unsafe { of(buf.as_mut_ptr(), buf.len() as u64) };
    buf.truncate(length as usize);
    String::from_utf8(buf).unwrap()
}

fn stream() -> usize {
    let mut stream = 0;
    ok(unsafe { cuStreamCreate(&mut stream, c::STREAM_NON_BLOCKING) });
    stream
}

fn event() -> usize {
    let mut event = 0;
    ok(unsafe { cuEventCreate(&mut event, 0) });
    event
}

fn alloc() -> u64 {
    let mut at = 0;
    ok(unsafe { cuMemAlloc_v2(&mut at, 16) });
    at
}

fn fill(at: u64, value: u8, stream: usize) -> Code {
    unsafe { cuMemsetD8Async(at, value, 16, stream) }
}

fn copy(to: u64, from: u64, stream: usize) -> Code {
    unsafe { cuMemcpyDtoDAsync_v2(to, from, 16, stream) }
}

fn read(at: u64) -> u8 {
    let mut bytes = [0_u8; 16];
    ok(unsafe { cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), at, 16) });
    assert_eq!(bytes, [bytes[0]; 16]);
    bytes[0]
}

fn record(event: usize, stream: usize) -> Code {
    unsafe { cuEventRecord(event, stream) }
}

fn wait(stream: usize, event: usize) -> Code {
    unsafe { cuStreamWaitEvent(stream, event, 0) }
}

fn sync(stream: usize) -> Code {
    unsafe { cuStreamSynchronize(stream) }
}

fn capture(stream: usize, mode: u32) {
    ok(unsafe { cuStreamBeginCapture_v2(stream, mode) });
}

fn end(stream: usize) -> Result<usize, Code> {
    let mut graph = 1;
    let code = unsafe { cuStreamEndCapture(stream, &mut graph) };
    assert_eq!(code == Code::SUCCESS, graph != 0);
    code.check()?;
    Ok(graph)
}

fn status(stream: usize) -> Result<u32, Code> {
    let mut status = 9;
    unsafe { cuStreamIsCapturing(stream, &mut status) }.check()?;
    Ok(status)
}

fn ready(graph: usize) -> usize {
    let mut exec = 0;
    ok(unsafe { cuGraphInstantiateWithFlags(&mut exec, graph, 0) });
    exec
}

fn nodes(graph: usize) -> usize {
    let mut count = 0;
    ok(unsafe { cuGraphGetNodes(graph, null_mut(), &mut count) });
    count
}

const GLOBAL: u32 = c::CAPTURE_MODE_GLOBAL;
const LOCAL: u32 = c::CAPTURE_MODE_THREAD_LOCAL;
const RELAXED: u32 = c::CAPTURE_MODE_RELAXED;

#[test]
fn captured_work_runs_at_each_launch_and_not_before() {
    for seed in [None, Some(1), Some(2), Some(3)] {
        let (_guard, _) = begin(seed);
        let (a, x, y) = (stream(), alloc(), alloc());
        ok(fill(x, 1, a));
        ok(fill(y, 2, a));
        capture(a, GLOBAL);
        assert_eq!(status(a), Ok(c::CAPTURE_STATUS_ACTIVE));
        ok(copy(y, x, a));
        ok(fill(x, 5, a));
        let graph = end(a).unwrap();
        assert_eq!((status(a), nodes(graph)), (Ok(c::CAPTURE_STATUS_NONE), 2));
        ok(sync(a));
        assert_eq!((read(x), read(y)), (1, 2));
        let exec = ready(graph);
        ok(unsafe { cuGraphDestroy(graph) });
        ok(unsafe { cuGraphLaunch(exec, a) });
        ok(sync(a));
        assert_eq!((read(x), read(y)), (5, 1));
        ok(unsafe { cuGraphLaunch(exec, a) });
        ok(sync(a));
        assert_eq!((read(x), read(y)), (5, 5));
        assert!(text(larder_stand_in_alive).contains("exec 1 0\n"));
        ok(unsafe { cuGraphExecDestroy(exec) });
        assert!(!text(larder_stand_in_alive).contains("exec"));
        assert_eq!(text(larder_stand_in_findings), "");
    }
}

#[test]
fn a_fork_and_its_join_keep_their_order_under_every_seed() {
    for seed in 0..30 {
        let (_guard, _) = begin(Some(seed));
        let (a, b, other) = (stream(), stream(), stream());
        let (x, y, z) = (alloc(), alloc(), alloc());
        let (fork, join) = (event(), event());
        capture(a, LOCAL);
        ok(fill(x, 3, a));
        ok(record(fork, a));
        ok(wait(b, fork));
        assert_eq!(status(b), Ok(c::CAPTURE_STATUS_ACTIVE));
        ok(copy(y, x, b));
        ok(copy(z, x, a));
        ok(record(join, b));
        ok(wait(a, join));
        ok(copy(x, y, a));
        ok(fill(y, 8, a));
        let graph = end(a).unwrap();
        assert_eq!(nodes(graph), 5);
        assert_eq!(status(b), Ok(c::CAPTURE_STATUS_NONE));
        let exec = ready(graph);
        ok(fill(x, 1, a));
        ok(unsafe { cuGraphLaunch(exec, a) });
        ok(unsafe { cuGraphLaunch(exec, other) });
        ok(fill(z, 9, other));
        ok(sync(other));
        assert_eq!((read(x), read(y), read(z)), (3, 8, 9));
        assert_eq!(text(larder_stand_in_findings), "", "seed {seed}");
    }
}

#[test]
fn branches_without_an_order_race_when_they_run() {
    let (_guard, _) = begin(None);
    let (a, b, x) = (stream(), stream(), alloc());
    let (fork, join) = (event(), event());
    capture(a, GLOBAL);
    ok(record(fork, a));
    ok(wait(b, fork));
    ok(fill(x, 1, a));
    ok(fill(x, 2, b));
    ok(record(join, b));
    ok(wait(a, join));
    let exec = ready(end(a).unwrap());
    assert_eq!(text(larder_stand_in_findings), "");
    ok(unsafe { cuGraphLaunch(exec, a) });
    assert!(text(larder_stand_in_findings).starts_with("race: a fill"));
}

#[test]
fn a_graph_reads_pageable_memory_when_it_runs() {
    let (_guard, _) = begin(None);
    let (a, x) = (stream(), alloc());
    let mut bytes = [1_u8; 16];
    let place = bytes.as_mut_ptr();
    capture(a, GLOBAL);
    ok(unsafe { cuMemcpyHtoDAsync_v2(x, place.cast(), 16, a) });
    let exec = ready(end(a).unwrap());
    unsafe { place.write_bytes(4, 16) };
    ok(unsafe { cuGraphLaunch(exec, a) });
    ok(sync(a));
    assert_eq!(read(x), 4);
}

#[test]
fn unsafe_calls_spoil_captures_as_their_modes_say() {
    let (_guard, context) = begin(None);
    let a = stream();
    let alloc_here = || unsafe { cuMemAlloc_v2(&mut 0, 16) };
    let alloc_there = || {
        let there = thread::spawn(move || unsafe {
            ok(cuCtxSetCurrent(context));
            cuMemAlloc_v2(&mut 0, 16)
        });
        there.join().unwrap()
    };
    let refused = Code::STREAM_CAPTURE_UNSUPPORTED;
    let cases = [
        (GLOBAL, refused, refused),
        (LOCAL, refused, Code::SUCCESS),
        (RELAXED, Code::SUCCESS, Code::SUCCESS),
    ];
    for (mode, here, there) in cases {
        for (expected, call) in [
            (here, &alloc_here as &dyn Fn() -> Code),
            (there, &alloc_there),
        ] {
            capture(a, mode);
            assert_eq!(call(), expected);
            if expected == Code::SUCCESS {
                assert!(end(a).is_ok());
            } else {
                assert_eq!(status(a), Ok(c::CAPTURE_STATUS_INVALIDATED));
                assert_eq!(end(a), Err(Code::STREAM_CAPTURE_INVALIDATED));
            }
        }
    }
    let mut mode = RELAXED;
    ok(unsafe { cuThreadExchangeStreamCaptureMode(&mut mode) });
    assert_eq!(mode, GLOBAL);
    capture(a, GLOBAL);
    ok(alloc_here());
    assert!(end(a).is_ok());
    ok(unsafe { cuThreadExchangeStreamCaptureMode(&mut mode) });
    assert_eq!(mode, RELAXED);
}

#[test]
fn nobody_waits_for_captured_work() {
    let (_guard, _) = begin(None);
    let (a, x, e) = (stream(), alloc(), event());
    type Ask = fn(usize, usize) -> Code;
    let asks: [(Ask, Code); 4] = [
        (|a, _| sync(a), Code::STREAM_CAPTURE_UNSUPPORTED),
        (
            |a, _| unsafe { cuStreamQuery(a) },
            Code::STREAM_CAPTURE_UNSUPPORTED,
        ),
        (
            |_, _| unsafe { cuCtxSynchronize() },
            Code::STREAM_CAPTURE_UNSUPPORTED,
        ),
        (|_, e| unsafe { cuEventQuery(e) }, Code::CAPTURED_EVENT),
    ];
    for (ask, expected) in asks {
        capture(a, RELAXED);
        ok(record(e, a));
        assert_eq!(ask(a, e), expected);
        assert_eq!(fill(x, 1, a), Code::STREAM_CAPTURE_INVALIDATED);
        assert_eq!(end(a), Err(Code::STREAM_CAPTURE_INVALIDATED));
        ok(fill(x, 1, a));
    }
    assert_eq!(unsafe { cuEventQuery(e) }, Code::CAPTURED_EVENT);
    assert_eq!(wait(a, e), Code::CAPTURED_EVENT);
    ok(record(e, a));
    ok(unsafe { cuEventQuery(e) });
}

#[test]
fn the_legacy_stream_does_not_go_together_with_blocking_captures() {
    let (_guard, _) = begin(None);
    let (mut blocking, x) = (0, alloc());
    ok(unsafe { cuStreamCreate(&mut blocking, 0) });
    let code = unsafe { cuStreamBeginCapture_v2(0, GLOBAL) };
    assert_eq!(code, Code::STREAM_CAPTURE_UNSUPPORTED);
    capture(blocking, RELAXED);
    assert_eq!(status(0), Err(Code::STREAM_CAPTURE_IMPLICIT));
    assert_eq!(status(blocking), Ok(c::CAPTURE_STATUS_ACTIVE));
    assert_eq!(fill(x, 1, 0), Code::STREAM_CAPTURE_IMPLICIT);
    assert_eq!(end(blocking), Err(Code::STREAM_CAPTURE_INVALIDATED));
    let a = stream();
    capture(a, RELAXED);
    ok(fill(x, 1, 0));
    assert!(end(a).is_ok());
}

#[test]
fn captures_end_as_they_began() {
    let (_guard, _) = begin(None);
    let (a, b, x) = (stream(), stream(), alloc());
    let (fork, before) = (event(), event());
    assert_eq!(end(a), Err(Code::ILLEGAL_STATE));
    // A branch that is not joined.
    capture(a, GLOBAL);
    ok(record(fork, a));
    ok(wait(b, fork));
    ok(fill(x, 1, b));
    assert_eq!(end(a), Err(Code::STREAM_CAPTURE_UNJOINED));
    // The wrong stream.
    capture(a, GLOBAL);
    ok(record(fork, a));
    ok(wait(b, fork));
    assert_eq!(end(b), Err(Code::STREAM_CAPTURE_UNMATCHED));
    assert_eq!(end(a), Err(Code::STREAM_CAPTURE_INVALIDATED));
    // The wrong thread.
    capture(a, LOCAL);
    let there = thread::spawn(move || end(a));
    assert_eq!(
        there.join().unwrap(),
        Err(Code::STREAM_CAPTURE_WRONG_THREAD)
    );
    assert!(end(a).is_ok());
    capture(a, RELAXED);
    assert!(thread::spawn(move || end(a)).join().unwrap().is_ok());
    // Work from outside.
    ok(record(before, b));
    capture(a, GLOBAL);
    assert_eq!(wait(a, before), Code::STREAM_CAPTURE_ISOLATION);
    assert_eq!(end(a), Err(Code::STREAM_CAPTURE_INVALIDATED));
    // Two captures.
    capture(a, GLOBAL);
    capture(b, GLOBAL);
    ok(record(fork, a));
    assert_eq!(wait(b, fork), Code::STREAM_CAPTURE_MERGE);
    assert_eq!(end(a), Err(Code::STREAM_CAPTURE_INVALIDATED));
    assert_eq!(end(b), Err(Code::STREAM_CAPTURE_INVALIDATED));
}

#[test]
fn a_capture_tells_what_it_is() {
    let (_guard, _) = begin(None);
    let (a, x) = (stream(), alloc());
    let (mut state, mut id, mut graph, mut count) = (9, 0, 0, 9);
    let mut told = null_mut::<usize>().cast_const();
    let mut info = || {
        ok(unsafe {
            cuStreamGetCaptureInfo_v2(a, &mut state, &mut id, &mut graph, &mut told, &mut count)
        });
        (state, id, graph, count, told)
    };
    assert_eq!(info().0, c::CAPTURE_STATUS_NONE);
    capture(a, GLOBAL);
    assert_eq!(info().3, 0);
    ok(fill(x, 1, a));
    let (state, id, graph, count, told) = info();
    assert_eq!((state, count), (c::CAPTURE_STATUS_ACTIVE, 1));
    assert_ne!(id, 0);
    assert_ne!(unsafe { *told }, 0);
    assert_eq!(unsafe { cuGraphDestroy(graph) }, Code::INVALID_VALUE);
    assert_eq!(end(a), Ok(graph));
}

#[test]
fn memory_of_pools_is_not_captured() {
    let (_guard, _) = begin(None);
    let a = stream();
    capture(a, GLOBAL);
    assert_eq!(
        unsafe { cuMemAllocAsync(&mut 0, 16, a) },
        Code::NOT_SUPPORTED
    );
    assert!(end(a).is_ok());
}

#[test]
fn a_launch_in_a_capture_becomes_part_of_it() {
    let (_guard, _) = begin(Some(7));
    let (a, x, y) = (stream(), alloc(), alloc());
    capture(a, GLOBAL);
    ok(fill(x, 6, a));
    let inner = ready(end(a).unwrap());
    capture(a, GLOBAL);
    ok(fill(y, 1, a));
    ok(unsafe { cuGraphLaunch(inner, a) });
    ok(copy(y, x, a));
    let graph = end(a).unwrap();
    assert_eq!(nodes(graph), 3);
    ok(unsafe { cuGraphLaunch(ready(graph), a) });
    ok(sync(a));
    assert_eq!(read(y), 6);
}

#[test]
fn an_empty_graph_and_a_lost_capture_do_no_harm() {
    let (_guard, _) = begin(None);
    let (a, mut graph) = (stream(), 0);
    ok(unsafe { cuGraphCreate(&mut graph, 0) });
    ok(unsafe { cuGraphLaunch(ready(graph), a) });
    ok(sync(a));
    capture(a, GLOBAL);
    ok(unsafe { cuStreamDestroy_v2(a) });
    assert!(text(larder_stand_in_findings).contains("is destroyed while a capture"));
    assert!(text(larder_stand_in_alive).contains("graph 1 0\n"));
}
