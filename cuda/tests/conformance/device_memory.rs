//! Memory of cuMemAlloc.

use std::thread;

use larder_cuda_abi::{Code, constants};

use crate::{
    api::{basic, context, copy, memory},
    gpu::{portable, stand_in_only},
    hold::Hold,
    own::{Device, Stream, read},
    refused::refusals,
};

refusals! {
    /// Rule: an allocation of 0 bytes returns CUDA_ERROR_INVALID_VALUE (source: CUDA Driver API, Memory Management,
    /// cuMemAlloc).
    fn an_allocation_of_nothing_is_refused() { memory::alloc(0) } => INVALID_VALUE;

    /// Rule: an allocation with a null pointer for its address returns CUDA_ERROR_INVALID_VALUE (source: CUDA Driver
    /// API, Memory Management, cuMemAlloc, list of errors).
    fn an_allocation_needs_a_place_for_its_address() {
        memory::alloc_to_null(256)
    } => INVALID_VALUE;

    /// Rule: an address that cuMemAlloc did not return, or an address inside an allocation, cannot be freed (source:
    /// CUDA Driver API, Memory Management, cuMemFree: the address "must have been returned" by an allocation; of the
    /// listed errors, CUDA_ERROR_INVALID_VALUE fits best).
    fn only_the_start_of_an_allocation_is_freed(device = Device::filled(4096, 1)) {
        memory::free(device.plus(256)), memory::free(0x1000)
    } => INVALID_VALUE, leaving device.read(), [1; 4096];
}

/// Rule: addresses are aligned to at least 256 bytes (source: CUDA Programming Guide, Device Memory Accesses: "any
/// address … returned by one of the memory allocation routines … is always aligned to at least 256 bytes").
#[test]
fn addresses_are_aligned_to_256_bytes() {
    let _gpu = portable();
    let all: Vec<_> = [1, 3, 255, 256, 257, 4095, 1 << 20]
        .into_iter()
        .map(Device::new)
        .collect();
    for memory in &all {
        assert_eq!(memory.at % 256, 0, "{:#x}", memory.at);
    }
}

/// Rule: live allocations do not overlap (source: CUDA Driver API, Memory Management, cuMemAlloc).
#[test]
fn allocations_do_not_overlap() {
    let _gpu = portable();
    let all: Vec<_> = (1..40_u8)
        .map(|at| Device::filled(usize::from(at) * 100, at))
        .collect();
    for (memory, byte) in all.iter().zip(1_u8..) {
        assert!(memory.read().iter().all(|read| *read == byte));
    }
}

/// Rule: memory cannot be freed twice (source: CUDA Driver API, Memory Management, cuMemFree; of the listed errors,
/// CUDA_ERROR_INVALID_VALUE fits best).
#[test]
fn memory_is_freed_once() {
    let _gpu = portable();
    let at = memory::alloc(4 << 20).expect("memory");
    assert_eq!(memory::free(at), Ok(()));
    assert_eq!(memory::free(at), Err(Code::INVALID_VALUE));
}

/// Rule: freeing the null address changes nothing (source: CUDA Runtime API, cudaFree: "if devPtr is 0, no operation is
/// performed").
///
/// Uncertain: the documentation of cuMemFree does not mention this. Success and CUDA_ERROR_INVALID_VALUE are both
/// accepted.
#[test]
fn freeing_null_changes_nothing() {
    let _gpu = portable();
    let memory = Device::filled(256, 1);
    let answer = memory::free(0);
    let known = [Ok(()), Err(Code::INVALID_VALUE)];
    assert!(known.contains(&answer), "{answer:?}");
    assert_eq!(memory.read(), [1; 256]);
}

/// Rule: memory may be freed in another thread than the one that allocated it (source: CUDA Driver API, Memory
/// Management, cuMemFree, with unified addressing).
#[test]
fn memory_is_freed_in_another_thread() {
    let gpu = portable();
    let ours = gpu.context();
    let at = memory::alloc(4096).expect("memory");
    let freed = thread::spawn(move || {
        context::set(ours).expect("a context");
        memory::free(at)
    });
    assert_eq!(freed.join().expect("a thread"), Ok(()));
}

/// Rule: cuMemGetInfo reports that free memory shrinks by at least the size of an allocation, and grows by as much when
/// it is freed (source: CUDA Driver API, Memory Management, cuMemGetInfo).
#[test]
fn free_memory_goes_and_comes() {
    const BYTES: usize = 256 << 20;
    let _gpu = portable();
    let (before, total) = memory::info().expect("sizes");
    let memory = Device::new(BYTES);
    let (during, total_during) = memory::info().expect("sizes");
    assert!(during + BYTES <= before, "{before} then {during}");
    assert_eq!(total, total_during);
    drop(memory);
    let (after, _) = memory::info().expect("sizes");
    assert!(after >= during + BYTES, "{during} then {after}");
}

/// Rule: a request for more memory than the device has returns CUDA_ERROR_OUT_OF_MEMORY (source: CUDA Driver API,
/// Memory Management, cuMemAlloc; Data types, CUresult).
#[test]
fn more_than_there_is_is_out_of_memory() {
    let _gpu = portable();
    let total = basic::device_bytes(0).expect("a size");
    assert_eq!(memory::alloc(total * 2), Err(Code::OUT_OF_MEMORY));
    assert_eq!(memory::alloc(1 << 46), Err(Code::OUT_OF_MEMORY));
    drop(Device::new(256));
}

/// Rule: when all memory has been allocated, allocations fail; after a free they succeed again (source: CUDA Driver
/// API, Memory Management, cuMemAlloc).
#[test]
fn memory_runs_out_and_comes_back() {
    let _gpu = portable();
    let (free, _) = memory::info().expect("sizes");
    let most_of_it = Device::new(free / 4 * 3);
    assert_eq!(memory::alloc(free / 2), Err(Code::OUT_OF_MEMORY));
    drop(most_of_it);
    drop(Device::new(free / 2));
}

/// Rule: memory is not freed before the work that uses it has ended (source: CUDA Driver API, API synchronization
/// behavior; CUDA Programming Guide, Stream Ordered Memory Allocator: cuMemFree synchronises, unlike cuMemFreeAsync).
///
/// Uncertain: the documentation does not promise a wait explicitly. The test asserts that such a free does not harm
/// earlier work.
#[test]
fn a_free_does_no_harm_to_earlier_work() {
    let gpu = portable();
    gpu.expect_findings();
    let ours = gpu.context();
    let (stream, other) = (Stream::blocking(), Device::filled(4096, 0));
    let at = memory::alloc(4096).expect("memory");
    let hold = Hold::of(stream.0);
    copy::fill8_async(at, 3, 4096, stream.0).expect("a fill");
    copy::between_async(other.at, at, 4096, stream.0).expect("a copy");
    let freed = thread::spawn(move || {
        context::set(ours).expect("a context");
        memory::free(at)
    });
    hold.release();
    assert_eq!(freed.join().expect("a thread"), Ok(()));
    stream.finish();
    assert_eq!(other.read(), [3; 4096]);
}

/// Rule: the device and the host have one address space: no host allocation lies where device memory lies (source: CUDA
/// Driver API, Unified Addressing, Overview).
#[test]
fn device_and_host_addresses_are_distinct() {
    let _gpu = portable();
    let unified = basic::device_attribute(constants::DEVICE_UNIFIED_ADDRESSING, 0);
    assert_eq!(unified, Ok(1));
    let device = Device::new(1 << 20);
    let host = vec![0_u8; 1 << 20];
    let start = host.as_ptr() as u64;
    assert!(start + (1 << 20) <= device.at || device.plus(1 << 20) <= start);
}

/// Rule: with unified addressing, memory of one context can be used in another context of the same device (source: CUDA
/// Driver API, Unified Addressing, Overview: contexts of one device share addresses).
#[test]
fn memory_is_known_in_another_context_of_its_device() {
    let _gpu = portable();
    let memory = Device::filled(256, 5);
    let second = context::create(0, 0).expect("a context");
    assert_eq!(read(memory.at, 256), [5; 256]);
    context::destroy(second).expect("a context");
    assert_eq!(memory.read(), [5; 256]);
}

/// Rule: all memory that cuMemGetInfo reports as free can be allocated (source: CUDA Driver API, Memory Management,
/// cuMemGetInfo: the amount that can be allocated "may be lower"; that it is not lower is a promise of our stand-in
/// only).
#[test]
fn all_free_memory_can_be_allocated() {
    let Some(_gpu) = stand_in_only("a real device needs some of its free memory itself") else {
        return;
    };
    let (free, _) = memory::info().expect("sizes");
    let all = Device::new(free);
    assert_eq!(memory::info().expect("sizes").0, 0);
    assert_eq!(memory::alloc(1), Err(Code::OUT_OF_MEMORY));
    drop(all);
    assert_eq!(memory::info().expect("sizes").0, free);
}

/// Rule: the rows of pitched memory are at least as long as requested, for elements of 4, 8 or 16 bytes (source: CUDA
/// Driver API, Memory Management, cuMemAllocPitch).
#[test]
fn rows_are_as_long_as_was_asked_at_least() {
    let _gpu = portable();
    let (at, pitch) = memory::alloc_pitch(1000, 10, 4).expect("memory");
    assert!(pitch >= 1000 && pitch % 4 == 0, "{pitch}");
    copy::fill8(at, 7, 9 * pitch + 1000).expect("a fill");
    assert_eq!(read(at + 9 * pitch as u64, 1000), [7; 1000]);
    memory::free(at).expect("a free");
    let refused = Err(Code::INVALID_VALUE);
    assert_eq!(memory::alloc_pitch(1000, 10, 3), refused);
    assert_eq!(memory::alloc_pitch(0, 10, 4), refused);
}
