//! Pinned and registered host memory.

use std::{ptr, slice};

use larder_cuda_abi::Code;
use larder_cuda_abi::constants as c;

use super::gpu::*;

/// Host memory that the driver gave.
fn bytes_at<'a>(at: usize, count: usize) -> &'a mut [u8] {
    let start: *mut u8 = ptr::with_exposed_provenance_mut(at);
    // SAFETY: the callers name memory of their own of that length, that no queued work uses.
    unsafe { slice::from_raw_parts_mut(start, count) }
}

#[test]
fn pinned_memory_is_one_address_for_both() {
    let _gpu = gpu();
    let before = free();
    let at = made(|at| cuMemHostAlloc(at, 5000, c::HOST_ALLOC_PORTABLE));
    assert_eq!(free(), before, "it is no memory of the device");
    assert_eq!(alive(), "pinned 1 5000");
    bytes_at(at, 5000).fill(3);
    let to = made(|to| cuMemHostGetDevicePointer_v2(to, at + 10, 0));
    assert_eq!(to, at as u64 + 10);
    ok(cuMemsetD8_v2(to, 4, 10));
    assert_eq!(
        bytes_at(at, 5000)[9..21],
        [3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 3]
    );
    assert_eq!(cuMemFree_v2(at as u64), Code::INVALID_VALUE);
    assert_eq!(cuMemFreeHost(at + 10), Code::INVALID_VALUE);
    assert_eq!(cuMemHostUnregister(at), Code::HOST_MEMORY_NOT_REGISTERED);
    ok(cuMemFreeHost(at));
    assert_eq!(cuMemFreeHost(at), Code::INVALID_VALUE);
    assert_eq!(alive(), "");
}

#[test]
fn pinned_memory_checks_what_it_is_asked_for() {
    let _gpu = gpu();
    let mut at = 0;
    assert_eq!(cuMemHostAlloc(&mut at, 0, 0), Code::INVALID_VALUE);
    assert_eq!(cuMemHostAlloc(&mut at, 1, 8), Code::INVALID_VALUE);
    assert_eq!(cuMemHostAlloc(&mut at, usize::MAX, 0), Code::OUT_OF_MEMORY);
    assert_eq!(cuMemFreeHost(0), Code::INVALID_VALUE);
    larder_stand_in_poison(1);
    ok(cuMemHostAlloc(&mut at, 100, 0));
    assert_eq!(bytes_at(at, 100), [0xa5; 100]);
    ok(cuCtxSetCurrent(0));
    assert_eq!(cuMemHostAlloc(&mut at, 100, 0), Code::INVALID_CONTEXT);
}

#[test]
fn copies_of_pinned_memory_are_asynchronous_and_a_free_waits_for_them() {
    let gpu = gpu();
    larder_stand_in_schedule(1, 2);
    let at = made(|at| cuMemHostAlloc(at, 100, 0));
    ok(cuCtxSetCurrent(gpu.contexts[1]));
    let device = made(|at| cuMemAlloc_v2(at, 100));
    let stream = made(|stream| cuStreamCreate(stream, 1));
    bytes_at(at, 100).fill(1);
    ok(cuMemcpyHtoDAsync_v2(device, at, 100, stream));
    for value in 0..20 {
        ok(cuMemsetD8Async(device, value, 50, stream));
    }
    ok(cuMemcpyDtoHAsync_v2(at, device, 100, stream));
    assert_eq!(cuStreamQuery(stream), Code::NOT_READY);
    // Another context is current, and still it waits for all.
    ok(cuCtxSetCurrent(gpu.contexts[0]));
    ok(cuMemFreeHost(at));
    ok(cuStreamQuery(stream));
    ok(cuCtxSetCurrent(gpu.contexts[1]));
    let seen = read(device, 100);
    assert_eq!((seen[0], seen[99]), (19, 1));
    assert_eq!(findings(), "");
}

#[test]
fn registered_memory_stays_the_programs() {
    let _gpu = gpu();
    let mut mine = vec![0_u8; 3 * 4096];
    let at = mine.as_mut_ptr().expose_provenance();
    ok(cuMemHostRegister_v2(
        at + 100,
        4096,
        c::HOST_REGISTER_PORTABLE,
    ));
    assert_eq!(alive(), "registered 1 4096");
    let again = |at, bytes| cuMemHostRegister_v2(at, bytes, 0);
    assert_eq!(again(at + 100, 1), Code::HOST_MEMORY_ALREADY_REGISTERED);
    assert_eq!(again(at, 101), Code::HOST_MEMORY_ALREADY_REGISTERED);
    assert_eq!(again(at + 4195, 9), Code::HOST_MEMORY_ALREADY_REGISTERED);
    assert_eq!(again(at + 4196, 0), Code::INVALID_VALUE);
    assert_eq!(again(0, 100), Code::INVALID_VALUE);
    assert_eq!(
        again(1 << 20, 100),
        Code::INVALID_VALUE,
        "no memory is there"
    );
    assert_eq!(again(usize::MAX - 9, 100), Code::INVALID_VALUE);
    assert_eq!(cuMemHostRegister_v2(at, 1, 16), Code::INVALID_VALUE);
    ok(again(at + 4196, 100));
    let to = made(|to| cuMemHostGetDevicePointer_v2(to, at + 100, 0));
    ok(cuMemsetD8_v2(to, 6, 10));
    assert_eq!(mine[99..111], [0, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 0]);
    assert_eq!(cuMemFreeHost(at + 100), Code::INVALID_VALUE);
    let inside = cuMemHostUnregister(at + 101);
    assert_eq!(inside, Code::HOST_MEMORY_NOT_REGISTERED);
    ok(cuMemHostUnregister(at + 100));
    let twice = cuMemHostUnregister(at + 100);
    assert_eq!(twice, Code::HOST_MEMORY_NOT_REGISTERED);
    mine.fill(1);
}

#[test]
fn a_partly_registered_range_counts_as_pageable() {
    let _gpu = gpu();
    larder_stand_in_schedule(1, 3);
    let mut mine = vec![1_u8; 200];
    let at = mine.as_mut_ptr().expose_provenance();
    ok(cuMemHostRegister_v2(at, 100, 0));
    let device = made(|at| cuMemAlloc_v2(at, 200));
    let stream = made(|stream| cuStreamCreate(stream, 1));
    ok(cuMemcpyHtoDAsync_v2(device, at, 200, stream));
    // It was staged, so the program may change it now.
    bytes_at(at, 200).fill(2);
    ok(cuMemcpyDtoHAsync_v2(at, device, 200, stream));
    // It was pageable, so it is there now.
    assert_eq!(bytes_at(at, 200), [1; 200]);
    // Two registrations side by side are no one range either.
    ok(cuMemHostRegister_v2(at + 100, 100, 0));
    ok(cuMemcpyHtoDAsync_v2(device, at, 200, stream));
    bytes_at(at, 200).fill(2);
    ok(cuStreamSynchronize(stream));
    assert_eq!(read(device, 200), [1; 200]);
    // One of them is.
    ok(cuMemcpyHtoDAsync_v2(device, at, 100, stream));
    bytes_at(at, 100).fill(3);
    ok(cuStreamSynchronize(stream));
    assert_eq!(read(device, 1), [3]);
    ok(cuMemHostUnregister(at + 100));
    ok(cuMemHostUnregister(at));
}

#[test]
fn a_contexts_end_takes_its_memory_along() {
    let gpu = gpu();
    let mut mine = vec![1_u8; 200];
    let at = mine.as_mut_ptr().expose_provenance();
    ok(cuMemHostRegister_v2(at, 100, 0));
    made(|at| cuMemHostAlloc(at, 100, 0));
    made(|at| cuMemAlloc_v2(at, 100));
    made(|at| cuMemAllocManaged(at, 100, c::MEM_ATTACH_GLOBAL));
    let at = reserve(GRANULARITY);
    map(at, GRANULARITY, create(GRANULARITY));
    ok(cuCtxSetCurrent(gpu.contexts[1]));
    made(|at| cuMemHostAlloc(at, 50, 0));
    ok(cuDevicePrimaryCtxRelease_v2(0));
    assert_eq!(
        alive(),
        "handle 1 2097152, mapping 1 2097152, pinned 1 50, reservation 1 2097152"
    );
    assert_eq!(larder_stand_in_used(0), GRANULARITY as u64);
    mine.fill(2);
}

#[test]
fn no_more_is_pinned_than_may_be() {
    let _gpu = gpu();
    larder_stand_in_set_pinned(4 * 4096);
    let mut at = 0;
    assert_eq!(
        cuMemHostAlloc(&mut at, 4 * 4096 + 1, 0),
        Code::OUT_OF_MEMORY
    );
    let one = made(|at| cuMemHostAlloc(at, 4097, 0));
    let mut mine = vec![0_u8; 4 * 4096];
    let start = mine.as_mut_ptr().expose_provenance();
    let page = start.next_multiple_of(4096);
    // Whole pages are pinned, also of what is registered.
    assert_eq!(
        cuMemHostRegister_v2(page + 1, 2 * 4096, 0),
        Code::OUT_OF_MEMORY
    );
    ok(cuMemHostRegister_v2(page + 1, 4096, 0));
    assert_eq!(cuMemHostAlloc(&mut at, 1, 0), Code::OUT_OF_MEMORY);
    ok(cuMemHostUnregister(page + 1));
    let two = made(|at| cuMemHostAlloc(at, 1, c::HOST_ALLOC_WRITECOMBINED));
    // A lower limit takes nothing away.
    larder_stand_in_set_pinned(4096);
    ok(cuMemFreeHost(one));
    ok(cuMemFreeHost(two));
    assert_eq!(cuMemHostAlloc(&mut at, 4097, 0), Code::OUT_OF_MEMORY);
    ok(cuMemHostAlloc(&mut at, 4096, 0));
    ok(cuMemFreeHost(at));
    // It is the host's, and devices are asked for nothing.
    larder_stand_in_reset(2, DEVICE as u64);
    assert_eq!(alive(), "");
}

#[test]
fn each_device_has_an_address_of_its_own_for_write_combined_memory() {
    let gpu = gpu();
    larder_stand_in_schedule(1, 5);
    let at = made(|at| cuMemHostAlloc(at, 5000, c::HOST_ALLOC_WRITECOMBINED));
    assert_eq!(alive(), "pinned 1 5000");
    let address = |at| made(|to| cuMemHostGetDevicePointer_v2(to, at, 0));
    let first = address(at);
    assert_eq!(address(at + 10), first + 10);
    ok(cuCtxSetCurrent(gpu.contexts[1]));
    let second = address(at);
    assert!(first != at as u64 && second != at as u64 && first != second);
    // Host and device mean the same memory.
    ok(cuMemsetD8_v2(second + 10, 4, 10));
    bytes_at(at, 5000)[0] = 7;
    let plain = made(|at| cuMemAlloc_v2(at, 100));
    ok(cuMemcpyHtoD_v2(plain, at, 100));
    let seen = read(plain, 100);
    assert_eq!((seen[0], seen[10], seen[19], seen[20]), (7, 4, 4, 0));
    assert_eq!(read(second, 20)[9..11], [0, 4]);
    let asked = |attribute, at| ask(attribute, at).unwrap();
    assert_eq!(asked(c::POINTER_DEVICE_POINTER, at as u64 + 3), second + 3);
    assert_eq!(asked(c::POINTER_HOST_POINTER, second + 3), at as u64 + 3);
    assert_eq!(findings(), "");
    assert_eq!(cuMemFree_v2(second), Code::INVALID_VALUE);
    ok(cuMemFreeHost(at));
    assert_eq!(cuMemsetD8_v2(second, 1, 1), Code::INVALID_VALUE);
    let again = made(|at| cuMemHostAlloc(at, 5000, c::HOST_ALLOC_WRITECOMBINED));
    ok(cuMemFreeHost(again));
    assert_eq!(alive(), "device 1 100");
}

/// One memory, whatever address it is used by.
#[test]
fn races_of_write_combined_memory_are_found_between_its_addresses() {
    let _gpu = gpu();
    let at = made(|at| cuMemHostAlloc(at, 100, c::HOST_ALLOC_WRITECOMBINED));
    let device = made(|to| cuMemHostGetDevicePointer_v2(to, at, 0));
    let plain = made(|at| cuMemAlloc_v2(at, 100));
    let streams = [(); 2].map(|()| made(|stream| cuStreamCreate(stream, 1)));
    ok(cuMemsetD8Async(device, 1, 100, streams[0]));
    ok(cuMemcpyHtoDAsync_v2(plain, at, 100, streams[1]));
    assert!(findings().contains("race"));
}
