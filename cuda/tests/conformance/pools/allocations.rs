//! Stream-ordered allocations and frees.

use larder_cuda_abi::{Code, StreamHandle, constants};

use super::{BYTES, Pool, ask};
use crate::{
    api::{basic, copy, memory, pointer, pool, stream},
    gpu::portable,
    hold::Hold,
    own::{Device, Event, Kernels, Stream},
    refused::refusals,
};

refusals! {
    /// Rule: a request for more memory than the device has fails at once with CUDA_ERROR_OUT_OF_MEMORY (source: CUDA
    /// Driver API, Stream Ordered Memory Allocator, cuMemAllocAsync, list of errors).
    fn more_than_there_is_is_out_of_memory_in_a_stream(stream = Stream::blocking(), own = Pool::new(), total = basic::device_bytes(0).expect("a size")) {
        pool::alloc(total * 2, stream.0), pool::alloc_from(own.0, total * 2, stream.0)
    } => OUT_OF_MEMORY;
}

/// Rule: memory can be used in the order of the stream from its allocation to its free (source: CUDA Driver API, Stream
/// Ordered Memory Allocator, cuMemAllocAsync, cuMemFreeAsync).
#[test]
fn memory_is_used_in_the_streams_order() {
    let gpu = portable();
    let kernels = Kernels::load();
    gpu.defer(51);
    let (stream, result) = (Stream::non_blocking(), Device::filled(1024, 0));
    for value in 1..=4 {
        let at = pool::alloc(1024, stream.0).expect("memory");
        kernels.fill(at, 256, value, stream.0);
        kernels.add(result.at, result.at, at, 256, stream.0);
        pool::free(at, stream.0).expect("memory");
    }
    stream.finish();
    assert_eq!(result.words(), [10; 256]);
}

/// Rule: an allocation and a free in a stream that is held up return at once (source: CUDA Driver API, Stream Ordered
/// Memory Allocator, cuMemAllocAsync: "asynchronously").
#[test]
fn allocating_in_a_stream_does_not_wait_for_it() {
    let _gpu = portable();
    let (stream, own) = (Stream::non_blocking(), Pool::keeping(u64::MAX));
    let first = pool::alloc_from(own.0, BYTES, stream.0).expect("memory");
    pool::free(first, stream.0).expect("memory");
    stream.finish();
    let hold = Hold::of(stream.0);
    let at = pool::alloc_from(own.0, BYTES, stream.0).expect("memory");
    copy::fill8_async(at, 2, BYTES, stream.0).expect("a fill");
    pool::free(at, stream.0).expect("memory");
    assert_eq!(stream::query(stream.0), Err(Code::NOT_READY));
    hold.end(stream.0);
}

/// Rule: memory freed in a stream can serve the next allocation in that stream without a wait (source: CUDA Programming
/// Guide, Stream Ordered Memory Allocator: memory freed earlier in the same stream is reused).
///
/// Uncertain: the driver chooses the address. The test asserts that no more memory is reserved.
#[test]
fn memory_freed_in_a_stream_is_reused_in_it() {
    let _gpu = portable();
    let (stream, own) = (Stream::non_blocking(), Pool::keeping(u64::MAX));
    let first = pool::alloc_from(own.0, 64 * BYTES, stream.0).expect("memory");
    let reserved = ask(own.0, constants::POOL_RESERVED_CURRENT);
    let hold = Hold::of(stream.0);
    pool::free(first, stream.0).expect("memory");
    let second = pool::alloc_from(own.0, 64 * BYTES, stream.0).expect("memory");
    assert_eq!(ask(own.0, constants::POOL_RESERVED_CURRENT), reserved);
    pool::free(second, stream.0).expect("memory");
    hold.end(stream.0);
}

/// Rule: another stream can use the memory if events order its use after the allocation and before the free (source:
/// CUDA Driver API, Stream Ordered Memory Allocator, cuMemAllocAsync).
#[test]
fn another_stream_uses_the_memory_behind_an_event() {
    let gpu = portable();
    gpu.defer(52);
    let (first, second) = (Stream::non_blocking(), Stream::non_blocking());
    let (ready, used) = (Event::new(), Event::new());
    let result = Device::filled(4096, 0);
    let at = pool::alloc(4096, first.0).expect("memory");
    ready.record(first.0);
    stream::wait(second.0, ready.0).expect("a wait");
    copy::fill8_async(at, 5, 4096, second.0).expect("a fill");
    copy::between_async(result.at, at, 4096, second.0).expect("a copy");
    used.record(second.0);
    stream::wait(first.0, used.0).expect("a wait");
    pool::free(at, first.0).expect("memory");
    first.finish();
    assert_eq!(result.read(), [5; 4096]);
}

/// Rule: memory of cuMemAllocAsync may be freed in a stream other than its own (source: CUDA Driver API, Stream Ordered
/// Memory Allocator, cuMemFreeAsync).
#[test]
fn memory_is_freed_in_another_stream() {
    let _gpu = portable();
    let (first, second) = (Stream::non_blocking(), Stream::non_blocking());
    let at = pool::alloc(4096, first.0).expect("memory");
    first.finish();
    assert_eq!(pool::free(at, second.0), Ok(()));
    second.finish();
}

/// Rule: cuMemFree frees memory of cuMemAllocAsync (source: CUDA Programming Guide, Stream Ordered Memory Allocator;
/// CUDA Driver API, cuMemFree: it may have been returned by cuMemAllocAsync).
///
/// Uncertain: when the pool counts the memory as free. On an H200 with driver 580, it still counts the memory as used
/// after the call, after a wait for the context, and after its next allocation.
#[test]
fn memory_of_a_pool_is_freed_without_a_stream() {
    let _gpu = portable();
    let (stream, own) = (Stream::blocking(), Pool::new());
    let at = pool::alloc_from(own.0, BYTES, stream.0).expect("memory");
    copy::fill8_async(at, 1, BYTES, stream.0).expect("a fill");
    stream.finish();
    assert_eq!(memory::free(at), Ok(()));
}

/// Rule: cuMemFreeAsync frees memory of cuMemAlloc (source: CUDA Programming Guide, Stream Ordered Memory Allocator, on
/// cudaMalloc and cudaFreeAsync).
#[test]
fn ordinary_memory_is_freed_in_a_stream() {
    let _gpu = portable();
    let stream = Stream::blocking();
    let at = memory::alloc(64 * BYTES).expect("memory");
    copy::fill8_async(at, 1, BYTES, stream.0).expect("a fill");
    assert_eq!(pool::free(at, stream.0), Ok(()));
    stream.finish();
    assert!(memory::free(at).is_err());
}

/// Rule: an allocation of 0 bytes is refused (source: CUDA Driver API, Stream Ordered Memory Allocator,
/// cuMemAllocAsync; of the listed errors, CUDA_ERROR_INVALID_VALUE fits best).
///
/// Uncertain: the documentation does not say this for this call. Success with memory that can be freed is accepted.
#[test]
fn an_allocation_of_nothing_in_a_stream_does_no_harm() {
    let _gpu = portable();
    let stream = Stream::blocking();
    match pool::alloc(0, stream.0) {
        Ok(0) => {}
        Ok(at) => pool::free(at, stream.0).expect("memory"),
        Err(code) => assert_eq!(code, Code::INVALID_VALUE),
    }
    stream.finish();
}

/// Rule: memory that was freed in a stream cannot be freed again (source: CUDA Driver API, Stream Ordered Memory
/// Allocator, cuMemFreeAsync; of the listed errors, CUDA_ERROR_INVALID_VALUE fits best).
#[test]
fn memory_is_freed_once_in_a_stream() {
    let _gpu = portable();
    let stream = Stream::blocking();
    let at = pool::alloc(64 * BYTES, stream.0).expect("memory");
    assert_eq!(pool::free(at, stream.0), Ok(()));
    assert_eq!(pool::free(at, stream.0), Err(Code::INVALID_VALUE));
    stream.finish();
}

/// Rule: cuPointerGetAttribute reports memory of a pool as device memory (source: CUDA Driver API, Unified Addressing,
/// cuPointerGetAttribute).
#[test]
fn memory_of_a_pool_is_the_devices() {
    let _gpu = portable();
    let legacy = StreamHandle::NULL;
    let at = pool::alloc(BYTES, legacy).expect("memory");
    let kind = pointer::memory_type(at + 10);
    let device = pointer::device_ordinal(at + 10);
    pool::free(at, legacy).expect("memory");
    stream::synchronize(legacy).expect("work that ends well");
    assert_eq!(kind, Ok(constants::MEMORY_TYPE_DEVICE));
    assert_eq!(device, Ok(0));
}

/// Rule: a pool's addresses, too, are aligned to at least 256 bytes (source: CUDA Programming Guide, Device Memory
/// Accesses).
#[test]
fn addresses_of_a_pool_are_aligned() {
    let _gpu = portable();
    let stream = Stream::blocking();
    for bytes in [1, 100, 4097] {
        let at = pool::alloc(bytes, stream.0).expect("memory");
        pool::free(at, stream.0).expect("memory");
        assert_eq!(at % 256, 0, "{at:#x}");
    }
    stream.finish();
}
