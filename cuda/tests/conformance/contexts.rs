//! Contexts: each thread has a stack of contexts, whose top is the current one; primary contexts are reference-counted.

use std::thread;

use larder_cuda_abi::{Code, ContextHandle, StreamHandle};

use crate::{
    api::{basic, context, memory, stream},
    child,
    gpu::{self, portable},
    own::{Device, Stream},
    refused::refusals,
};

refusals! {
    /// Rule: a context can be created only on a device that exists (source: CUDA Driver API, Context Management,
    /// cuCtxCreate, list of errors: CUDA_ERROR_INVALID_DEVICE).
    fn a_context_is_made_on_a_device_that_is_there() {
        context::create(0, gpu::absent_device())
    } => INVALID_DEVICE;
}

/// Rule: a new thread has no context: cuCtxGetCurrent succeeds and returns null (source: CUDA Driver API, Context
/// Management, cuCtxGetCurrent).
#[test]
fn a_new_thread_has_no_context() {
    let _gpu = portable();
    let current = thread::spawn(context::current).join().expect("a thread");
    assert_eq!(current, Ok(ContextHandle::NULL));
}

/// Rule: calls that need a context return CUDA_ERROR_INVALID_CONTEXT if none is current (source: CUDA Driver API, Data
/// types, CUresult, CUDA_ERROR_INVALID_CONTEXT).
#[test]
fn calls_without_a_context_are_refused() {
    let _gpu = portable();
    let check = || {
        assert_eq!(context::synchronize(), Err(Code::INVALID_CONTEXT));
        assert_eq!(memory::alloc(256), Err(Code::INVALID_CONTEXT));
        assert_eq!(memory::info(), Err(Code::INVALID_CONTEXT));
        assert_eq!(memory::host_alloc(256, 0), Err(Code::INVALID_CONTEXT));
        assert_eq!(stream::create(0), Err(Code::INVALID_CONTEXT));
        assert_eq!(stream::create_event(0), Err(Code::INVALID_CONTEXT));
    };
    thread::spawn(check).join().expect("a thread");
}

/// Rule: cuCtxPopCurrent without a context returns CUDA_ERROR_INVALID_CONTEXT (source: CUDA Driver API, Context
/// Management, list of errors).
#[test]
fn nothing_can_be_popped_from_an_empty_stack() {
    let _gpu = portable();
    let popped = thread::spawn(context::pop).join().expect("a thread");
    assert_eq!(popped, Err(Code::INVALID_CONTEXT));
}

/// Rule: a context may be current in several threads at once (source: CUDA Driver API, Context Management,
/// cuCtxSetCurrent).
#[test]
fn threads_share_a_context() {
    let gpu = portable();
    let ours = gpu.context();
    let memory = Device::filled(64, 7);
    let at = memory.at;
    let read = thread::spawn(move || {
        context::set(ours).expect("a context");
        assert_eq!(context::current(), Ok(ours));
        crate::own::read(at, 64)
    });
    assert_eq!(read.join().expect("a thread"), [7; 64]);
}

/// Rule: each retain returns the same primary context, which stays active until it has been released as often as
/// retained (source: CUDA Driver API, Primary Context Management).
#[test]
fn a_primary_context_is_counted() {
    let gpu = portable();
    assert_eq!(context::retain_primary(0), Ok(gpu.context()));
    assert_eq!(context::release_primary(0), Ok(()));
    assert!(context::primary_state(0).expect("a state").1 == 1);
    assert_eq!(context::synchronize(), Ok(()));
}

/// Rule: a primary context is inactive until the first retain and after the last release (source: CUDA Driver API,
/// Primary Context Management, cuDevicePrimaryCtxGetState, …Release).
#[test]
fn a_primary_context_lives_from_first_retain_to_last_release() {
    child::bare(|| {
        let active = || context::primary_state(0).expect("a state").1 == 1;
        basic::init(0).expect("a driver");
        assert!(!active());
        context::retain_primary(0).expect("a context");
        assert!(active());
        context::release_primary(0).expect("a release");
        assert!(!active());
    });
}

/// Rule: cuDevicePrimaryCtxRetain does not push the context onto the stack (source: CUDA Driver API, Primary Context
/// Management, cuDevicePrimaryCtxRetain: "unlike cuCtxCreate() the newly retained context is not pushed onto the
/// stack").
#[test]
fn retaining_makes_nothing_current() {
    let _gpu = portable();
    let check = || {
        context::retain_primary(0).expect("a context");
        let current = context::current();
        context::release_primary(0).expect("a release");
        current
    };
    let current = thread::spawn(check).join().expect("a thread");
    assert_eq!(current, Ok(ContextHandle::NULL));
}

/// Rule: releasing a primary context that was not retained returns CUDA_ERROR_INVALID_CONTEXT (source: CUDA Driver API,
/// Primary Context Management, cuDevicePrimaryCtxRelease).
#[test]
fn a_release_without_a_retain_is_refused() {
    child::bare(|| {
        basic::init(0).expect("a driver");
        let answer = context::release_primary(0);
        assert_eq!(answer, Err(Code::INVALID_CONTEXT));
    });
}

/// Rule: a push makes a context current above the previous one; a pop returns it and makes the previous one current
/// again (source: CUDA Driver API, Context Management, cuCtxPushCurrent, cuCtxPopCurrent).
#[test]
fn contexts_are_a_stack() {
    let gpu = portable();
    let first = gpu.context();
    let second = context::create(0, 0).expect("a context");
    assert_eq!(
        context::current(),
        Ok(second),
        "a created context is pushed"
    );
    assert_eq!(context::push(first), Ok(()));
    assert_eq!(context::current(), Ok(first));
    assert_eq!(context::pop(), Ok(first));
    assert_eq!(context::current(), Ok(second));
    assert_eq!(context::pop(), Ok(second));
    assert_eq!(context::current(), Ok(first));
    assert_eq!(context::destroy(second), Ok(()));
}

/// Rule: cuCtxSetCurrent replaces the top of the stack (source: CUDA Driver API, Context Management, cuCtxSetCurrent).
#[test]
fn setting_replaces_the_top() {
    let gpu = portable();
    let first = gpu.context();
    let second = context::create(0, 0).expect("a context");
    assert_eq!(context::set(first), Ok(()));
    assert_eq!(context::pop(), Ok(first));
    assert_eq!(context::current(), Ok(first), "the one below");
    assert_eq!(context::destroy(second), Ok(()));
}

/// Rule: cuCtxSetCurrent with null pops the top, and does nothing if the stack is empty (source: CUDA Driver API,
/// Context Management, cuCtxSetCurrent).
#[test]
fn setting_null_pops() {
    let gpu = portable();
    let ours = gpu.context();
    let check = move || {
        assert_eq!(context::set(ContextHandle::NULL), Ok(()));
        context::push(ours).expect("a context");
        context::push(ours).expect("a context");
        assert_eq!(context::set(ContextHandle::NULL), Ok(()));
        assert_eq!(context::current(), Ok(ours), "the one below");
        assert_eq!(context::set(ContextHandle::NULL), Ok(()));
        assert_eq!(context::current(), Ok(ContextHandle::NULL));
    };
    thread::spawn(check).join().expect("a thread");
}

/// Rule: destroying the current context pops it (source: CUDA Driver API, Context Management, cuCtxDestroy).
#[test]
fn destroying_the_current_context_pops_it() {
    let gpu = portable();
    let second = context::create(0, 0).expect("a context");
    assert_eq!(context::current(), Ok(second));
    assert_eq!(context::destroy(second), Ok(()));
    assert_eq!(context::current(), Ok(gpu.context()));
}

/// Rule: a context that one thread destroys stays current in another thread, where calls return
/// CUDA_ERROR_CONTEXT_IS_DESTROYED (source: CUDA Driver API, Context Management, cuCtxDestroy).
#[test]
fn a_context_destroyed_elsewhere_is_known_as_destroyed() {
    let gpu = portable();
    let second = context::create(0, 0).expect("a context");
    context::pop().expect("the second");
    assert_eq!(context::current(), Ok(gpu.context()));
    thread::scope(|scope| {
        let (set, is_set) = std::sync::mpsc::channel();
        let (gone, is_gone) = std::sync::mpsc::channel::<()>();
        let other = scope.spawn(move || {
            context::set(second).expect("a context");
            set.send(()).expect("a listener");
            is_gone.recv().expect("a sender");
            memory::alloc(256)
        });
        is_set.recv().expect("a sender");
        context::destroy(second).expect("a context");
        gone.send(()).expect("a listener");
        let answer = other.join().expect("a thread");
        assert_eq!(answer, Err(Code::CONTEXT_IS_DESTROYED));
    });
}

/// Rule: a context's memory is freed when the context is destroyed (source: CUDA Driver API, Context Management,
/// cuCtxDestroy: "Destroys and cleans up all resources associated with the context").
#[test]
fn memory_goes_with_its_context() {
    const BYTES: usize = 64 << 20;
    let gpu = portable();
    let second = context::create(0, 0).expect("a context");
    let at = memory::alloc(BYTES).expect("memory");
    let (with, _) = memory::info().expect("sizes");
    assert_eq!(context::destroy(second), Ok(()));
    assert_eq!(context::current(), Ok(gpu.context()));
    let (without, _) = memory::info().expect("sizes");
    assert!(without >= with + BYTES, "{with} then {without}");
    assert!(memory::free(at).is_err());
}

/// Rule: cuCtxSynchronize returns when all work queued before it has ended (source: CUDA Driver API, Context
/// Management, cuCtxSynchronize).
#[test]
fn a_context_waits_for_all_its_streams() {
    let gpu = portable();
    gpu.defer(3);
    let streams = [Stream::blocking(), Stream::non_blocking()];
    let memory = Device::filled(512, 0);
    for (index, stream) in streams.iter().enumerate() {
        let at = memory.plus(256 * index as u64);
        crate::api::copy::fill8_async(at, 9, 256, stream.0).expect("a fill");
    }
    context::synchronize().expect("work that ends well");
    for stream in &streams {
        assert_eq!(stream::query(stream.0), Ok(()));
    }
    assert_eq!(memory.read(), [9; 512]);
}

/// Rule: a reset of the primary context frees everything in it; the context can be used again (source: CUDA Driver API,
/// Primary Context Management, cuDevicePrimaryCtxReset).
#[test]
fn a_reset_primary_context_is_used_anew() {
    child::bare(|| {
        const BYTES: usize = 256 << 20;
        basic::init(0).expect("a driver");
        let ours = context::retain_primary(0).expect("a context");
        context::set(ours).expect("a context");
        let at = memory::alloc(BYTES).expect("memory");
        context::reset_primary(0).expect("a reset");
        assert!(memory::free(at).is_err());
        let ours = context::retain_primary(0).expect("a context");
        context::set(ours).expect("a context");
        let memory = Device::filled(256, 3);
        assert_eq!(memory.read(), [3; 256]);
        drop(memory);
        // "Resetting the primary context does not release it."
        assert_eq!(context::release_primary(0), Ok(()));
    });
}

/// Rule: the flags of a context may select only one way of waiting (source: CUDA Driver API, Context Management,
/// cuCtxCreate: "Only one of the scheduling flags can be set"; of the listed errors, CUDA_ERROR_INVALID_VALUE fits
/// best).
#[test]
fn a_context_waits_in_one_way() {
    let gpu = portable();
    for flags in [3, 5, 6, 7] {
        let answer = context::create(flags, 0);
        assert_eq!(answer, Err(Code::INVALID_VALUE), "{flags}");
    }
    assert_eq!(context::current(), Ok(gpu.context()));
    for flags in [0, 1, 2, 4] {
        let other = context::create(flags, 0).expect("a context");
        context::destroy(other).expect("a context");
    }
}

/// Rule: cuCtxGetDevice returns the device of the current context, and cuStreamGetCtx returns a stream's context
/// (source: CUDA Driver API, Context Management, cuCtxGetDevice; Stream Management, cuStreamGetCtx).
#[test]
fn a_context_knows_its_device_and_a_stream_its_context() {
    let _gpu = portable();
    assert_eq!(context::device(), Ok(0));
    let stream = Stream::blocking();
    assert_eq!(stream::context(stream.0), context::current());
}

/// Rule: cuStreamGetCtx returns the context in which a stream was created. For the null, legacy and per-thread streams
/// it returns the current context, or CUDA_ERROR_INVALID_CONTEXT if there is none (source: CUDA Driver API, Stream
/// Management, cuStreamGetCtx).
#[test]
fn a_stream_knows_the_context_it_was_made_in() {
    let gpu = portable();
    let second = context::create(0, 0).expect("a context");
    let stream = Stream::blocking();
    assert_eq!(context::pop(), Ok(second));
    assert_eq!(stream::context(stream.0), Ok(second));
    let special = [
        StreamHandle::NULL,
        StreamHandle::LEGACY,
        StreamHandle::PER_THREAD,
    ];
    for one in special {
        assert_eq!(stream::context(one), Ok(gpu.context()));
    }
    let without = move || special.map(stream::context);
    let answers = thread::spawn(without).join().expect("a thread");
    assert_eq!(answers, [Err(Code::INVALID_CONTEXT); 3]);
    drop(stream);
    assert_eq!(context::destroy(second), Ok(()));
}
