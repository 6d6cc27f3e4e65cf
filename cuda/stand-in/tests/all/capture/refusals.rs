//! Tests of the calls that are not allowed during a capture.

use std::thread;

use larder_cuda_abi::{Code, constants as c};

use super::driver::*;
use crate::common::GRANULARITY;

#[test]
fn unsafe_calls_spoil_captures_as_their_modes_say() {
    let (_guard, context) = begin(None);
    let a = stream();
    let alloc_here = || cuMemAlloc_v2(&mut 0, 16);
    let alloc_there = || {
        let there = thread::spawn(move || {
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
    ok(cuThreadExchangeStreamCaptureMode(&mut mode));
    assert_eq!(mode, GLOBAL);
    capture(a, GLOBAL);
    ok(alloc_here());
    assert!(end(a).is_ok());
    ok(cuThreadExchangeStreamCaptureMode(&mut mode));
    assert_eq!(mode, RELAXED);
}

/// Documents do not say whether calls of virtual memory are unsafe, so both can be had.
#[test]
fn calls_of_virtual_memory_spoil_captures_only_if_asked_to() {
    let (_guard, _) = begin(None);
    let a = stream();
    let reserve = |at: &mut u64| cuMemAddressReserve(at, GRANULARITY, 0, 0, 0);
    let mut at = 0;
    for spoils in [false, true] {
        larder_stand_in_mapping_spoils(u32::from(spoils));
        for mode in [GLOBAL, RELAXED] {
            capture(a, mode);
            if spoils && mode == GLOBAL {
                assert_eq!(reserve(&mut at), Code::STREAM_CAPTURE_UNSUPPORTED);
                assert_eq!(end(a), Err(Code::STREAM_CAPTURE_INVALIDATED));
            } else {
                ok(reserve(&mut at));
                ok(cuMemAddressFree(at, GRANULARITY));
                assert!(end(a).is_ok());
            }
        }
    }
    larder_stand_in_mapping_spoils(0);
}

#[test]
fn nobody_waits_for_captured_work() {
    let (_guard, _) = begin(None);
    let (a, x, e) = (stream(), alloc(), event());
    type Ask = fn(usize, usize) -> Code;
    let asks: [(Ask, Code); 4] = [
        (|a, _| sync(a), Code::STREAM_CAPTURE_UNSUPPORTED),
        (|a, _| cuStreamQuery(a), Code::STREAM_CAPTURE_UNSUPPORTED),
        (|_, _| cuCtxSynchronize(), Code::STREAM_CAPTURE_UNSUPPORTED),
        (|_, e| cuEventQuery(e), Code::CAPTURED_EVENT),
    ];
    for (ask, expected) in asks {
        capture(a, RELAXED);
        ok(record(e, a));
        assert_eq!(ask(a, e), expected);
        assert_eq!(fill(x, 1, a), Code::STREAM_CAPTURE_INVALIDATED);
        assert_eq!(end(a), Err(Code::STREAM_CAPTURE_INVALIDATED));
        ok(fill(x, 1, a));
    }
    assert_eq!(cuEventQuery(e), Code::CAPTURED_EVENT);
    assert_eq!(wait(a, e), Code::CAPTURED_EVENT);
    ok(record(e, a));
    ok(cuEventQuery(e));
}

#[test]
fn the_legacy_stream_does_not_go_together_with_blocking_captures() {
    let (_guard, _) = begin(None);
    let (mut blocking, x) = (0, alloc());
    ok(cuStreamCreate(&mut blocking, 0));
    let code = cuStreamBeginCapture_v2(0, GLOBAL);
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
fn memory_of_pools_is_not_captured() {
    let (_guard, _) = begin(None);
    let a = stream();
    capture(a, GLOBAL);
    assert_eq!(cuMemAllocAsync(&mut 0, 16, a), Code::NOT_SUPPORTED);
    assert!(end(a).is_ok());
}
