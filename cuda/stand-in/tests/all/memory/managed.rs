//! Managed memory.

use std::slice;

use larder_cuda_abi::constants as c;
use larder_cuda_abi::{Code, Location};

use super::gpu::*;

fn managed(bytes: usize) -> u64 {
    made(|at| cuMemAllocManaged(at, bytes, c::MEM_ATTACH_GLOBAL))
}

#[test]
fn host_and_devices_share_it() {
    let gpu = gpu();
    let at = managed(1000);
    assert_eq!(larder_stand_in_used(0), 0, "its pages move");
    assert_eq!(alive(), "managed 1 1000");
    let start: *const u8 = std::ptr::with_exposed_provenance(at as usize);
    // SAFETY: memory of that length that nothing queued uses.
    let seen = || unsafe { slice::from_raw_parts(start, 1000) }.to_vec();
    ok(cuMemsetD8_v2(at, 1, 1000));
    ok(cuCtxSetCurrent(gpu.contexts[1]));
    ok(cuMemsetD8_v2(at, 2, 500));
    assert_eq!((seen()[0], seen()[999]), (2, 1));
    assert_eq!(findings(), "");
    assert_eq!(cuMemFreeHost(at as usize), Code::INVALID_VALUE);
    ok(cuMemFree_v2(at));
    assert_eq!(cuMemFree_v2(at), Code::INVALID_VALUE);
}

#[test]
fn there_may_be_more_than_the_device_has() {
    let _gpu = gpu();
    let at = managed(3 * DEVICE);
    ok(cuMemsetD8_v2(at + 2 * DEVICE as u64, 1, 100));
    made(|at| cuMemAlloc_v2(at, DEVICE));
    ok(cuMemFree_v2(at));
}

#[test]
fn without_concurrent_access_it_counts_against_the_device() {
    let _gpu = gpu();
    larder_stand_in_managed_concurrently(0);
    let at = managed(1000);
    assert_eq!(larder_stand_in_used(0), 1024);
    // What was made before counts as it did then.
    larder_stand_in_managed_concurrently(1);
    ok(cuMemFree_v2(at));
    assert_eq!(larder_stand_in_used(0), 0);
    larder_stand_in_managed_concurrently(0);
    let mut at = 0;
    let code = cuMemAllocManaged(&mut at, DEVICE + 1, c::MEM_ATTACH_GLOBAL);
    assert_eq!(code, Code::OUT_OF_MEMORY);
    for flags in [0, 4, 3] {
        let code = cuMemAllocManaged(&mut at, 1, flags);
        assert_eq!(code, Code::INVALID_VALUE);
    }
    let code = cuMemAllocManaged(&mut at, 0, c::MEM_ATTACH_GLOBAL);
    assert_eq!(code, Code::INVALID_VALUE);
    managed(DEVICE);
    assert_eq!(cuMemAlloc_v2(&mut at, 1), Code::OUT_OF_MEMORY);
}

#[test]
fn a_free_waits_for_every_device() {
    let gpu = gpu();
    larder_stand_in_schedule(1, 4);
    let at = managed(1000);
    ok(cuCtxSetCurrent(gpu.contexts[1]));
    let stream = made(|stream| cuStreamCreate(stream, 1));
    for value in 0..20 {
        ok(cuMemsetD8Async(at, value, 10, stream));
    }
    ok(cuCtxSetCurrent(gpu.contexts[0]));
    ok(cuMemFree_v2(at));
    ok(cuStreamQuery(stream));
    ok(cuStreamSynchronize(stream));
    assert_eq!(findings(), "");
}

#[test]
fn advice_and_prefetches_are_checked() {
    let _gpu = gpu();
    let at = managed(1000);
    let plain = made(|at| cuMemAlloc_v2(at, 1000));
    let device = |id| Location {
        kind: c::MEM_LOCATION_DEVICE,
        id,
    };
    let host = Location {
        kind: c::MEM_LOCATION_HOST,
        id: 0,
    };
    let advise = |at, bytes, advice, id| cuMemAdvise_v2(at, bytes, advice, device(id));
    for advice in 1..=6 {
        ok(advise(at, 1000, advice, 1));
        ok(cuMemAdvise_v2(at, 1000, advice, host));
    }
    for no_place in [1, 2, 4] {
        ok(advise(at, 1000, no_place, 99));
    }
    assert_eq!(advise(at, 1001, 1, 0), Code::INVALID_VALUE);
    assert_eq!(advise(at, 0, 1, 0), Code::INVALID_VALUE);
    assert_eq!(advise(plain, 1000, 1, 0), Code::INVALID_VALUE);
    assert_eq!(advise(at, 1000, 9, 0), Code::INVALID_VALUE);
    assert_eq!(advise(at, 1000, 3, 5), Code::INVALID_DEVICE);
    let prefetch = |at, bytes, id| cuMemPrefetchAsync_v2(at, bytes, device(id), 0, 0);
    ok(prefetch(at, 1000, 1));
    ok(cuMemPrefetchAsync_v2(at, 1000, host, 0, 0));
    assert_eq!(prefetch(plain, 1000, 0), Code::INVALID_VALUE);
    assert_eq!(prefetch(at, 1001, 0), Code::INVALID_VALUE);
    assert_eq!(prefetch(at, 1000, 5), Code::INVALID_DEVICE);
}

#[test]
fn it_can_be_attached_as_a_whole() {
    let _gpu = gpu();
    let at = managed(1000);
    let stream = made(|stream| cuStreamCreate(stream, 0));
    let attach = |stream, at, bytes, flags| cuStreamAttachMemAsync(stream, at, bytes, flags);
    ok(attach(stream, at, 0, c::MEM_ATTACH_SINGLE));
    ok(attach(stream, at, 1000, c::MEM_ATTACH_HOST));
    ok(attach(0, at, 0, c::MEM_ATTACH_GLOBAL));
    let refused = [
        attach(0, at, 0, c::MEM_ATTACH_SINGLE),
        attach(stream, at, 10, c::MEM_ATTACH_SINGLE),
        attach(stream, at + 1, 0, c::MEM_ATTACH_SINGLE),
        attach(stream, at, 0, 3),
    ];
    assert_eq!(refused, [Code::INVALID_VALUE; 4]);
}
