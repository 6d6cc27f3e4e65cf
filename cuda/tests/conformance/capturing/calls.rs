//! Which calls are allowed during a capture, by its mode and the mode of the calling thread, and whether the capture
//! survives them.
//!
//! A call uses objects that were made before the capture began, and a stream that is not being captured unless the
//! call's name ends in `-captured`.

use std::{collections::BTreeMap, thread};

use larder_cuda_abi::{Code, ContextHandle, EventHandle, GraphHandle, MemoryHandle, constants};

use super::{GLOBAL, Graph, RELAXED, THREAD_LOCAL, begin, status};
use crate::{
    api::{
        Answer, capture, context, copy, memory, pointer, pool, stream, unified,
        virtual_memory as vmm,
    },
    gpu::{self, Gpu, portable},
    own::{Device, Stream},
    virtual_memory::{granule, plain},
};

const BYTES: usize = 4096;

struct Rig {
    context: ContextHandle,
    /// A stream that is not being captured.
    other: Stream,
    /// The stream that is being captured.
    captured: Stream,
    work: Device,
    page: usize,
}

/// The objects of a call: an address, or a handle as a number. Mapped memory has both.
type Made = [u64; 2];

/// The kind of object that exists before a call, or after it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Nothing,
    Plain,
    Pinned,
    Addresses,
    Handle,
    /// Addresses, and memory that is not mapped there.
    Unmapped,
    /// A mapped page without access.
    Mapped,
    /// A completed event of the other stream.
    Event,
    /// An event of the captured stream, recorded before the capture.
    CapturedEvent,
    /// Memory of a pool, in the order of the other stream.
    Pooled,
}
use Kind::*;

impl Kind {
    fn make(self, rig: &Rig) -> Answer<Made> {
        Ok(match self {
            Nothing => [0; 2],
            Plain => [memory::alloc(BYTES)?, 0],
            Pinned => [unified(memory::host_alloc(BYTES, 0)?), 0],
            Addresses => [vmm::reserve(rig.page, 0, 0, 0)?, 0],
            Handle => [vmm::create(rig.page, &plain(), 0)?.0, 0],
            Unmapped => [Addresses.make(rig)?[0], Handle.make(rig)?[0]],
            Mapped => {
                let made = Unmapped.make(rig)?;
                vmm::map(made[0], rig.page, 0, MemoryHandle(made[1]))?;
                made
            }
            Event | CapturedEvent => {
                let event = stream::create_event(0)?;
                let at = match self {
                    Event => rig.other.0,
                    _ => rig.captured.0,
                };
                stream::record(event, at)?;
                stream::synchronize_event(event)?;
                [event.0 as u64, 0]
            }
            Pooled => [pool::alloc(BYTES, rig.other.0)?, 0],
        })
    }

    fn give_back(self, rig: &Rig, made: Made) -> Answer {
        let [first, second] = made;
        match self {
            Nothing => Ok(()),
            Plain => memory::free(first),
            Pinned => memory::free_host(first as usize),
            Addresses => vmm::free_address(first, rig.page),
            Handle => vmm::release(MemoryHandle(first)),
            Unmapped => {
                Handle.give_back(rig, [second, 0])?;
                Addresses.give_back(rig, made)
            }
            Mapped => {
                vmm::unmap(first, rig.page)?;
                Unmapped.give_back(rig, made)
            }
            Event | CapturedEvent => stream::destroy_event(event(first)),
            Pooled => pool::free(first, rig.other.0),
        }
    }
}

const fn event(made: u64) -> EventHandle {
    EventHandle(made as usize)
}

/// A call's name, the kinds of object before and after the call, and the function that makes the call. If there is no
/// object before the call, the function returns the object that it creates.
type Call = (&'static str, Kind, Kind, fn(&Rig, Made) -> Answer<u64>);

fn done<T>(answer: Answer<T>) -> Answer<u64> {
    answer.map(|_| 0)
}

macro_rules! calls {
    ($($name:literal $before:ident => $after:ident: |$rig:pat_param, $made:pat_param| $call:expr;)*) => {
        &[$(($name, $before, $after, |$rig, $made| $call)),*]
    };
}

const UNSAFE: &[Call] = calls! {
    "cuMemAlloc" Nothing => Plain: |_, _| memory::alloc(BYTES);
    "cuMemFree" Plain => Nothing: |_, [at, _]| done(memory::free(at));
    "cuMemHostAlloc" Nothing => Pinned: |_, _| memory::host_alloc(BYTES, 0).map(unified);
    "cuMemFreeHost" Pinned => Nothing: |_, [at, _]| done(memory::free_host(at as usize));
    "cuMemAllocManaged" Nothing => Plain: |_, _| memory::alloc_managed(BYTES, constants::MEM_ATTACH_GLOBAL);
    "cuMemAllocAsync" Nothing => Pooled: |rig, _| pool::alloc(BYTES, rig.other.0);
    "cuMemFreeAsync" Pooled => Nothing: |rig, [at, _]| done(pool::free(at, rig.other.0));
    "cuEventQuery" Event => Event: |_, [made, _]| done(stream::query_event(event(made)));
    "cuEventQuery-captured" CapturedEvent => CapturedEvent: |_, [made, _]| done(stream::query_event(event(made)));
    "cuEventSynchronize" Event => Event: |_, [made, _]| done(stream::synchronize_event(event(made)));
    "cuEventSynchronize-captured" CapturedEvent => CapturedEvent: |_, [made, _]| done(stream::synchronize_event(event(made)));
    "cuStreamQuery" Nothing => Nothing: |rig, _| done(stream::query(rig.other.0));
    "cuStreamSynchronize" Nothing => Nothing: |rig, _| done(stream::synchronize(rig.other.0));
};

/// Calls that the documentation does not mention in the context of captures, and that Larder makes only in the relaxed
/// mode.
const OPEN: &[Call] = calls! {
    "cuMemAddressReserve" Nothing => Addresses: |rig, _| vmm::reserve(rig.page, 0, 0, 0);
    "cuMemAddressFree" Addresses => Nothing: |rig, [at, _]| done(vmm::free_address(at, rig.page));
    "cuMemCreate" Nothing => Handle: |rig, _| vmm::create(rig.page, &plain(), 0).map(|handle| handle.0);
    "cuMemRelease" Handle => Nothing: |_, [made, _]| done(vmm::release(MemoryHandle(made)));
    "cuMemMap" Unmapped => Mapped: |rig, [at, handle]| done(vmm::map(at, rig.page, 0, MemoryHandle(handle)));
    "cuMemSetAccess" Mapped => Mapped: |rig, [at, _]| { let flags = constants::MEM_ACCESS_READ_WRITE; done(vmm::set_access(at, rig.page, 0, flags)) };
    "cuMemUnmap" Mapped => Unmapped: |rig, [at, _]| done(vmm::unmap(at, rig.page));
    "cuEventElapsedTime" Event => Event: |_, [made, _]| done(stream::elapsed(event(made), event(made)));
    "cuMemAllocAsync-captured" Nothing => Nothing: |rig, _| pool::alloc(BYTES, rig.captured.0);
};

/// Calls that concern the captured stream or its context, and invalidate every capture.
const NEVER: &[Call] = calls! {
    "cuCtxSynchronize" Nothing => Nothing: |_, _| done(context::synchronize());
    "cuStreamGetId-captured" Nothing => Nothing: |rig, _| stream::id(rig.captured.0);
    "cuStreamQuery-captured" Nothing => Nothing: |rig, _| done(stream::query(rig.captured.0));
    "cuStreamSynchronize-captured" Nothing => Nothing: |rig, _| done(stream::synchronize(rig.captured.0));
};

/// Calls that Larder makes in any mode of the thread.
const SAFE: &[Call] = calls! {
    "cuMemHostGetDevicePointer" Pinned => Pinned: |_, [at, _]| done(memory::host_device_pointer(at as usize, 0));
    "cuMemGetInfo" Nothing => Nothing: |_, _| done(memory::info());
    "cuPointerGetAttribute" Plain => Plain: |_, [at, _]| done(pointer::memory_type(at));
    "cuEventCreate" Nothing => Event: |_, _| stream::create_event(0).map(|event| event.0 as u64);
    "cuEventDestroy" Event => Nothing: |_, [made, _]| done(stream::destroy_event(event(made)));
    "cuEventRecord" Event => Event: |rig, [made, _]| done(stream::record(event(made), rig.other.0));
    "cuStreamWaitEvent" Event => Event: |rig, [made, _]| done(stream::wait(rig.other.0, event(made)));
    "cuStreamGetId" Nothing => Nothing: |rig, _| stream::id(rig.other.0);
    "cuMemsetD8Async" Plain => Plain: |rig, [at, _]| done(copy::fill8_async(at, 1, BYTES, rig.other.0));
    "cuStreamGetCtx-captured" Nothing => Nothing: |rig, _| done(stream::context(rig.captured.0));
    "cuStreamIsCapturing-captured" Nothing => Nothing: |rig, _| done(capture::status(rig.captured.0));
};

/// A name, the mode of the capture, the mode of the calling thread, and whether the calling thread is not the capturing
/// one.
#[derive(Clone, Copy)]
struct Case(&'static str, u32, u32, bool);

/// The cases in which the documentation forbids unsafe calls.
const STRICT: [Case; 3] = [
    Case("global, own thread", GLOBAL, GLOBAL, false),
    Case("global, other thread", GLOBAL, GLOBAL, true),
    Case("thread-local, own thread", THREAD_LOCAL, GLOBAL, false),
];

/// The cases in which the documentation allows unsafe calls.
const LENIENT: [Case; 6] = [
    Case("global, own thread relaxed", GLOBAL, RELAXED, false),
    Case("global, other thread relaxed", GLOBAL, RELAXED, true),
    Case(
        "global, other thread thread-local",
        GLOBAL,
        THREAD_LOCAL,
        true,
    ),
    Case("thread-local, other thread", THREAD_LOCAL, GLOBAL, true),
    Case("relaxed, own thread", RELAXED, GLOBAL, false),
    Case("relaxed, other thread", RELAXED, GLOBAL, true),
];

#[derive(Clone, Copy, PartialEq, Eq)]
struct Found {
    answer: Answer,
    /// The state of the capture after the call, and the result of ending it.
    capture: (Answer<u32>, Answer),
}

impl Found {
    const WHOLE: (Answer<u32>, Answer) = (Ok(constants::CAPTURE_STATUS_ACTIVE), Ok(()));
    const SPOILT: (Answer<u32>, Answer) = (
        Ok(constants::CAPTURE_STATUS_INVALIDATED),
        Err(Code::STREAM_CAPTURE_INVALIDATED),
    );

    fn is_allowed(self) -> bool {
        self.capture == Self::WHOLE && self.answer == Ok(())
    }

    fn is_refused(self) -> bool {
        let refused = Err(Code::STREAM_CAPTURE_UNSUPPORTED);
        self.capture == Self::SPOILT && self.answer == refused
    }

    fn words(self) -> String {
        let answer = match self.answer {
            Ok(()) => "allowed".to_owned(),
            Err(code) => format!("{code:?}"),
        };
        match self.capture {
            Self::WHOLE => answer,
            Self::SPOILT => answer + ", capture spoilt",
            other => format!("{answer}, capture {other:?}"),
        }
    }
}

/// Makes a call during a capture, and releases the objects.
fn tried(rig: &Rig, call: &Call, case: Case) -> Found {
    let (&(_, before, after, call), Case(_, mode, thread_mode, is_elsewhere)) = (call, case);
    let made = before.make(rig).expect("what is called with");
    begin(rig.captured.0, mode);
    copy::fill32_async(rig.work.at, 1, BYTES / 4, rig.captured.0).expect("a fill");
    let ask = || {
        context::set(rig.context).expect("a context");
        assert_eq!(capture::exchange_mode(thread_mode), Ok(GLOBAL), "at first");
        let answer = call(rig, made);
        assert_eq!(capture::exchange_mode(GLOBAL), Ok(thread_mode));
        answer
    };
    let answer = match is_elsewhere {
        true => thread::scope(|scope| scope.spawn(ask).join().expect("a thread")),
        false => ask(),
    };
    let state = capture::status(rig.captured.0);
    let (ended, graph) = capture::end_raw(rig.captured.0);
    match ended {
        Ok(()) => drop(Graph(graph)),
        Err(_) => assert_eq!(graph, GraphHandle::NULL),
    }
    assert_eq!(status(rig.captured.0), constants::CAPTURE_STATUS_NONE);
    let left = match answer {
        Ok(new) if before == Nothing => after.give_back(rig, [new, 0]),
        Ok(_) => after.give_back(rig, made),
        Err(_) => before.give_back(rig, made),
    };
    left.expect("what was made is given back");
    rig.other.finish();
    Found {
        answer: answer.map(|_| ()),
        capture: (state, ended),
    }
}

/// Makes each call in every case and prints the outcomes. Fails unless the rule holds in all cases.
fn assert_calls(gpu: &Gpu, calls: &[Call], rule: &str, holds: impl Fn(Found, bool) -> bool) {
    let rig = Rig {
        context: gpu.context(),
        other: Stream::non_blocking(),
        captured: Stream::non_blocking(),
        work: Device::new(BYTES),
        page: granule(),
    };
    let mut all_hold = true;
    for call in calls {
        let cases = STRICT.map(|case| (case, true)).into_iter();
        let cases = cases.chain(LENIENT.map(|case| (case, false)));
        let (mut others, mut count, mut does_hold) = (BTreeMap::new(), 0, true);
        for (case, is_strict) in cases {
            let found = tried(&rig, call, case);
            does_hold &= holds(found, is_strict);
            if found.words() != "allowed" {
                count += 1;
                others
                    .entry(found.words())
                    .or_insert_with(Vec::new)
                    .push(case.0);
            }
        }
        let others = others
            .iter()
            .map(|(words, cases)| format!("{words} ({})", cases.join("; ")));
        let answer = match count {
            0 => "allowed in every mode".to_owned(),
            _ => others.collect::<Vec<_>>().join("; "),
        };
        let question = format!("{} during a capture", call.0);
        let number = format!("{count} of {} cases", STRICT.len() + LENIENT.len());
        all_hold &= gpu::answer(&question, &answer, &number, rule, does_hold);
    }
    assert!(all_hold, "see the answers");
}

/// Rule: unsafe calls return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and invalidate the capture if the calling thread
/// captures in the global or thread-local mode, or is affected by another thread's global capture; otherwise they are
/// allowed (source: CUDA Driver API, Stream Management, cuThreadExchangeStreamCaptureMode, "potentially unsafe API
/// calls"; CUDA Programming Guide, CUDA Graphs, Invalidation).
///
/// Uncertain: the documentation names only cuMemAlloc. That the other calls are unsafe, too, was observed on an H200
/// with driver 580; the calls on events were reported in pytorch#104487 and pytorch#148594.
#[test]
fn unsafe_calls_spoil_strict_captures_only() {
    let gpu = portable();
    let rule = "an unsafe call spoils strict captures, and no other";
    assert_calls(&gpu, UNSAFE, rule, |found, is_strict| match is_strict {
        true => found.is_refused(),
        false => found.is_allowed(),
    });
}

/// Rule: no call invalidates a relaxed capture, or a capture that does not affect the calling thread (source: CUDA
/// Driver API, Stream Management, cuThreadExchangeStreamCaptureMode: "the local thread is not prohibited").
///
/// Uncertain: whether these calls are unsafe. Their effect on a strict capture is printed, not asserted; on an H200
/// with driver 580 they are allowed in every mode.
#[test]
fn other_calls_spoil_no_capture_that_is_not_strict() {
    let gpu = portable();
    let rule = "a call in the relaxed mode spoils no capture";
    // The stand-in cannot capture allocations, and says so.
    let unsupported = (Err(Code::NOT_SUPPORTED), Found::WHOLE);
    assert_calls(&gpu, OPEN, rule, |found, is_strict| {
        is_strict || found.is_allowed() || (found.answer, found.capture) == unsupported
    });
}

/// Rule: in no mode can a stream that is being captured, or its context, be waited for or queried: the call returns
/// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED (source: CUDA Programming Guide, CUDA Graphs, Prohibited and Unhandled
/// Operations: also "a broader handle which encompasses active stream capture"). That the stream's id cannot be queried
/// either was observed on an H200 with driver 580.
#[test]
fn what_captures_is_neither_waited_for_nor_queried() {
    let gpu = portable();
    let rule = "the call spoils every capture";
    assert_calls(&gpu, NEVER, rule, |found, _| found.is_refused());
}

/// Rule: during a capture in any mode, events can be created, recorded and waited for, other streams accept work, and
/// queries are answered, including those of the captured stream's capture status and context (source: CUDA Driver API,
/// Stream Management, cuStreamIsCapturing; CUDA Programming Guide, CUDA Graphs, Creating a Graph Using Stream Capture).
///
/// Uncertain: the documentation does not mention most of these calls. On an H200 with driver 580 all calls on other
/// streams were allowed.
#[test]
fn safe_calls_spoil_no_capture() {
    let gpu = portable();
    let rule = "a call that Larder makes in any mode spoils no capture";
    assert_calls(&gpu, SAFE, rule, |found, _| found.is_allowed());
}
