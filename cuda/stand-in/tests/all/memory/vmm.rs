//! Virtual memory.

use larder_cuda_abi::Code;
use larder_cuda_abi::constants as c;

use super::gpu::*;

#[test]
fn the_same_memory_at_two_addresses_shows_the_same_bytes() {
    let _gpu = gpu();
    let at = reserve(2 * GRANULARITY);
    let handle = create(GRANULARITY);
    map(at, GRANULARITY, handle);
    map(at + GRANULARITY as u64, GRANULARITY, handle);
    assert_eq!(larder_stand_in_used(0), GRANULARITY as u64);
    ok(cuMemsetD8_v2(at + 100, 7, 50));
    let seen = read(at + GRANULARITY as u64, 200);
    assert_eq!(seen[..100], [0; 100]);
    assert_eq!(seen[100..150], [7; 50]);
    ok(cuMemcpyHtoD_v2(
        at + GRANULARITY as u64,
        [1_u8, 2, 3].as_ptr() as usize,
        3,
    ));
    assert_eq!(read(at, 3), [1, 2, 3]);
    assert_eq!(findings(), "");
}

#[test]
fn the_same_memory_at_two_addresses_can_be_raced_for() {
    let _gpu = gpu();
    let at = reserve(2 * GRANULARITY);
    let handle = create(GRANULARITY);
    map(at, GRANULARITY, handle);
    map(at + GRANULARITY as u64, GRANULARITY, handle);
    let streams = [0; 2].map(|_: i32| made(|stream| cuStreamCreate(stream, 1)));
    ok(cuMemsetD8Async(at, 1, 10, streams[0]));
    ok(cuMemsetD8Async(
        at + GRANULARITY as u64 + 10,
        2,
        10,
        streams[1],
    ));
    assert_eq!(findings(), "");
    ok(cuMemsetD8Async(
        at + GRANULARITY as u64 + 9,
        2,
        10,
        streams[1],
    ));
    assert!(findings().contains("race"), "{}", findings());
}

#[test]
fn a_life_from_reservation_to_the_end() {
    let _gpu = gpu();
    let before = free();
    let at = reserve(4 * GRANULARITY);
    assert_eq!(free(), before, "addresses cost nothing");
    let handle = create(2 * GRANULARITY);
    assert_eq!(
        free(),
        before - 2 * GRANULARITY,
        "memory counts before it is mapped"
    );
    map(at + GRANULARITY as u64, 2 * GRANULARITY, handle);
    ok(cuMemRelease(handle));
    assert_eq!(
        alive(),
        format!(
            "mapping 1 {}, reservation 1 {}",
            2 * GRANULARITY,
            4 * GRANULARITY
        )
    );
    ok(cuMemsetD8_v2(at + GRANULARITY as u64, 9, 2 * GRANULARITY));
    assert_eq!(free(), before - 2 * GRANULARITY, "mapped memory stays");
    assert_eq!(cuMemAddressFree(at, 4 * GRANULARITY), Code::INVALID_VALUE);
    ok(cuMemUnmap(at + GRANULARITY as u64, 2 * GRANULARITY));
    assert_eq!(free(), before);
    assert_eq!(cuMemRelease(handle), Code::INVALID_VALUE);
    assert_eq!(cuMemAddressFree(at, 2 * GRANULARITY), Code::INVALID_VALUE);
    assert_eq!(
        cuMemAddressFree(at + GRANULARITY as u64, GRANULARITY),
        Code::INVALID_VALUE
    );
    ok(cuMemAddressFree(at, 4 * GRANULARITY));
    assert_eq!(alive(), "");
    assert_ne!(
        reserve(4 * GRANULARITY),
        at,
        "addresses are not reused soon"
    );
}

#[test]
fn reservations_check_what_they_are_asked_for() {
    let _gpu = gpu();
    let mut at = 0;
    assert_eq!(
        cuMemAddressReserve(&mut at, 0, 0, 0, 0),
        Code::INVALID_VALUE
    );
    assert_eq!(
        cuMemAddressReserve(&mut at, GRANULARITY + 4096, 0, 0, 0),
        Code::INVALID_VALUE
    );
    assert_eq!(
        cuMemAddressReserve(&mut at, GRANULARITY, 3, 0, 0),
        Code::INVALID_VALUE
    );
    assert_eq!(
        cuMemAddressReserve(&mut at, GRANULARITY, 0, 0, 1),
        Code::INVALID_VALUE
    );
    assert_eq!(
        cuMemAddressReserve(&mut at, usize::MAX / GRANULARITY * GRANULARITY, 0, 0, 0),
        Code::OUT_OF_MEMORY
    );
    ok(cuMemAddressReserve(
        &mut at,
        GRANULARITY,
        64 * GRANULARITY,
        0,
        0,
    ));
    assert!(at.is_multiple_of(64 * GRANULARITY as u64));
    let wish = at + 1024 * GRANULARITY as u64;
    let there = made(|at| cuMemAddressReserve(at, GRANULARITY, 0, wish, 0));
    assert_eq!(there, wish);
    let elsewhere = made(|at| cuMemAddressReserve(at, GRANULARITY, 0, wish, 0));
    assert_ne!(elsewhere, wish, "the wish is taken already");
}

#[test]
fn mappings_check_what_they_are_asked_for() {
    let _gpu = gpu();
    let at = reserve(2 * GRANULARITY);
    let piece = GRANULARITY as u64;
    let beside = made(|out| cuMemAddressReserve(out, GRANULARITY, 0, at + 2 * piece, 0));
    assert_eq!(beside, at + 2 * piece);
    let (one, two) = (create(GRANULARITY), create(2 * GRANULARITY));
    let refused = |at, bytes, offset, handle| {
        assert_eq!(cuMemMap(at, bytes, offset, handle, 0), Code::INVALID_VALUE);
    };
    refused(at, 2 * GRANULARITY, 0, one);
    refused(at, GRANULARITY, 0, two);
    refused(at, GRANULARITY, GRANULARITY, two);
    refused(at + 4096, GRANULARITY, 0, one);
    refused(at, GRANULARITY, 0, one + 1);
    // It would reach into the reservation beside it.
    refused(at + piece, 2 * GRANULARITY, 0, two);
    refused(at + 3 * piece, GRANULARITY, 0, one);
    map(at, GRANULARITY, one);
    refused(at, GRANULARITY, 0, one);
    refused(at, 2 * GRANULARITY, 0, two);
    assert_eq!(cuMemUnmap(at, 2 * GRANULARITY), Code::INVALID_VALUE);
    assert_eq!(cuMemUnmap(at + piece, GRANULARITY), Code::INVALID_VALUE);
    assert_eq!(cuMemFree_v2(at), Code::INVALID_VALUE);
    ok(cuMemUnmap(at, GRANULARITY));
    map(at, 2 * GRANULARITY, two);
    assert_eq!(cuMemUnmap(at, GRANULARITY), Code::INVALID_VALUE);
    assert_eq!(cuMemUnmap(at + piece, GRANULARITY), Code::INVALID_VALUE);
    map(beside, GRANULARITY, one);
    ok(cuMemUnmap(at, 3 * GRANULARITY));
    assert_eq!(cuMemUnmap(at, 3 * GRANULARITY), Code::INVALID_VALUE);
}

#[test]
fn memory_checks_what_it_is_asked_for() {
    let _gpu = gpu();
    let mut handle = 0;
    let good = prop(0);
    let mut refused = |bytes, prop, code| {
        assert_eq!(cuMemCreate(&mut handle, bytes, &prop, 0), code);
    };
    refused(0, good, Code::INVALID_VALUE);
    refused(GRANULARITY + 512, good, Code::INVALID_VALUE);
    refused(GRANULARITY, prop(2), Code::INVALID_DEVICE);
    let mut bad = good;
    bad.kind = 0;
    refused(GRANULARITY, bad, Code::INVALID_VALUE);
    let mut bad = good;
    bad.location.kind = c::MEM_LOCATION_HOST;
    refused(GRANULARITY, bad, Code::NOT_SUPPORTED);
    let mut bad = good;
    // A handle of Windows.
    bad.handle_types = 2;
    refused(GRANULARITY, bad, Code::NOT_SUPPORTED);
    refused(DEVICE + GRANULARITY, good, Code::OUT_OF_MEMORY);
    ok(cuMemCreate(&mut handle, DEVICE, &good, 0));
    let mut more = 0;
    let code = cuMemCreate(&mut more, GRANULARITY, &good, 0);
    assert_eq!(code, Code::OUT_OF_MEMORY);
    assert_eq!(cuMemAlloc_v2(&mut more, 1), Code::OUT_OF_MEMORY);
    ok(cuMemCreate(&mut more, GRANULARITY, &prop(1), 0));
    assert_eq!(larder_stand_in_used(1), GRANULARITY as u64);
    let size = made(|size| cuMemGetAllocationGranularity(size, &good, 1));
    assert_eq!(size, GRANULARITY);
}

#[test]
fn what_a_device_may_do_is_checked_when_it_does_it() {
    let gpu = gpu();
    let at = reserve(GRANULARITY);
    let handle = create(GRANULARITY);
    ok(cuMemMap(at, GRANULARITY, 0, handle, 0));
    let rights = |device| {
        let location = right(device, 0).location;
        made(|flags| cuMemGetAccess(flags, &location, at))
    };
    assert_eq!((rights(0), rights(1)), (0, 0));
    ok(allow(at, GRANULARITY, 0, c::MEM_ACCESS_READ_WRITE));
    ok(allow(at, GRANULARITY, 1, c::MEM_ACCESS_READ));
    assert_eq!((rights(0), rights(1)), (3, 1));
    ok(cuMemsetD8_v2(at, 5, 10));
    ok(cuCtxSynchronize());
    ok(cuCtxSetCurrent(gpu.contexts[1]));
    assert_eq!(read(at, 3), [5; 3]);
    ok(cuMemsetD8_v2(at, 6, 10));
    assert_eq!(cuCtxSynchronize(), Code::ILLEGAL_ADDRESS);
    assert!(findings().contains("only read"), "{}", findings());
    ok(cuCtxSetCurrent(gpu.contexts[0]));
    assert_eq!(read(at, 3), [5; 3]);
    ok(allow(at, GRANULARITY, 0, c::MEM_ACCESS_NONE));
    let mut byte = 0_u8;
    assert_eq!(
        cuMemcpyDtoH_v2(&raw mut byte as usize, at, 1),
        Code::ILLEGAL_ADDRESS
    );
    assert!(findings().contains("no access"), "{}", findings());
}

#[test]
fn access_is_set_for_whole_mappings() {
    let _gpu = gpu();
    let at = reserve(4 * GRANULARITY);
    let (one, two) = (create(GRANULARITY), create(2 * GRANULARITY));
    ok(cuMemMap(at, GRANULARITY, 0, one, 0));
    ok(cuMemMap(
        at + GRANULARITY as u64,
        2 * GRANULARITY,
        0,
        two,
        0,
    ));
    let refused = |at, bytes, flags| {
        assert_eq!(allow(at, bytes, 0, flags), Code::INVALID_VALUE);
    };
    refused(at, 4 * GRANULARITY, 3);
    refused(at, 2 * GRANULARITY, 3);
    refused(at + 4096, GRANULARITY, 3);
    refused(at, 3 * GRANULARITY, 2);
    refused(at, 0, 3);
    assert_eq!(allow(at, GRANULARITY, 5, 3), Code::INVALID_DEVICE);
    let mut host = right(0, 3);
    host.location.kind = c::MEM_LOCATION_HOST;
    assert_eq!(
        cuMemSetAccess(at, GRANULARITY, &host, 1),
        Code::NOT_SUPPORTED
    );
    ok(allow(at, 3 * GRANULARITY, 0, 3));
    // A copy may span mappings side by side.
    ok(cuMemsetD8_v2(at, 4, 3 * GRANULARITY));
    assert_eq!(read(at + GRANULARITY as u64 - 2, 4), [4; 4]);
    assert_eq!(
        cuMemsetD8_v2(at, 4, 3 * GRANULARITY + 1),
        Code::INVALID_VALUE
    );
    // A new mapping starts without rights.
    ok(cuMemUnmap(at, GRANULARITY));
    ok(cuMemMap(at, GRANULARITY, 0, one, 0));
    ok(cuMemsetD8_v2(at, 4, 1));
    assert_eq!(cuCtxSynchronize(), Code::ILLEGAL_ADDRESS);
}

#[test]
fn an_unmap_takes_memory_from_under_queued_work() {
    let _gpu = gpu();
    larder_stand_in_schedule(1, 1);
    let at = reserve(GRANULARITY);
    map(at, GRANULARITY, create(GRANULARITY));
    let stream = made(|stream| cuStreamCreate(stream, 1));
    for value in 0..20 {
        ok(cuMemsetD8Async(at, value, 10, stream));
    }
    ok(cuMemUnmap(at, GRANULARITY));
    assert_eq!(cuStreamSynchronize(stream), Code::ILLEGAL_ADDRESS);
    assert!(findings().contains("where no memory is"), "{}", findings());
}

#[test]
fn an_unmap_waits_for_queued_work_if_mapping_waits() {
    let _gpu = gpu();
    larder_stand_in_mapping_waits(1);
    larder_stand_in_schedule(1, 1);
    let at = reserve(2 * GRANULARITY);
    let handle = create(GRANULARITY);
    map(at, GRANULARITY, handle);
    map(at + GRANULARITY as u64, GRANULARITY, handle);
    let stream = made(|stream| cuStreamCreate(stream, 1));
    for value in 0..20 {
        ok(cuMemsetD8Async(at, value, 10, stream));
    }
    ok(cuMemUnmap(at, GRANULARITY));
    ok(cuStreamQuery(stream));
    assert_eq!(read(at + GRANULARITY as u64, 1), [19]);
    assert_eq!(findings(), "");
    larder_stand_in_mapping_waits(0);
}

#[test]
fn setting_access_waits_for_queued_work_if_mapping_waits() {
    let _gpu = gpu();
    larder_stand_in_schedule(1, 6);
    let at = reserve(GRANULARITY);
    map(at, GRANULARITY, create(GRANULARITY));
    let stream = made(|stream| cuStreamCreate(stream, 1));
    for value in 0..20 {
        ok(cuMemsetD8Async(at, value, 10, stream));
    }
    ok(allow(at, GRANULARITY, 1, c::MEM_ACCESS_READ_WRITE));
    assert_eq!(cuStreamQuery(stream), Code::NOT_READY);
    larder_stand_in_mapping_waits(1);
    ok(allow(at, GRANULARITY, 0, c::MEM_ACCESS_READ));
    ok(cuStreamQuery(stream));
    assert_eq!(findings(), "");
    assert_eq!(larder_stand_in_mapping_waits(0), 1);
}

#[test]
fn work_that_touches_unmapped_memory_fails() {
    let _gpu = gpu();
    let at = reserve(GRANULARITY);
    assert_eq!(cuMemsetD8_v2(at, 1, 1), Code::INVALID_VALUE);
    let handle = create(GRANULARITY);
    map(at, GRANULARITY, handle);
    ok(cuMemUnmap(at, GRANULARITY));
    assert_eq!(cuMemsetD8_v2(at, 1, 1), Code::INVALID_VALUE);
}

#[test]
fn a_copy_between_peers_goes_by_each_device() {
    let gpu = gpu();
    let at = reserve(GRANULARITY);
    let handle = made(|out| cuMemCreate(out, GRANULARITY, &prop(1), 0));
    ok(cuMemMap(at, GRANULARITY, 0, handle, 0));
    ok(allow(at, GRANULARITY, 1, c::MEM_ACCESS_READ_WRITE));
    let plain = made(|out| cuMemAlloc_v2(out, 100));
    ok(cuMemsetD8_v2(plain, 8, 100));
    let [zero, one] = gpu.contexts;
    ok(cuMemcpyPeerAsync(at, one, plain, zero, 100, 0));
    ok(cuCtxSynchronize());
    ok(cuMemcpyDtoD_v2(at, plain, 100));
    assert_eq!(cuCtxSynchronize(), Code::ILLEGAL_ADDRESS);
    ok(cuCtxSetCurrent(one));
    assert_eq!(read(at, 2), [8; 2]);
}

#[test]
fn poisoned_memory_is_not_zero() {
    let _gpu = gpu();
    larder_stand_in_poison(1);
    let at = reserve(GRANULARITY);
    map(at, GRANULARITY, create(GRANULARITY));
    assert_eq!(read(at + GRANULARITY as u64 - 3, 3), [0xa5; 3]);
}

#[test]
fn handles_need_no_descriptors() {
    const HANDLES: usize = 2000;
    let _gpu = gpu();
    ok(larder_stand_in_set_memory(
        0,
        (HANDLES * GRANULARITY) as u64,
    ));
    let at = reserve(HANDLES * GRANULARITY);
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    let inner = prop(0);
    let create = |_| made(|handle| cuMemCreate(handle, GRANULARITY, &inner, 0));
    let handles: Vec<u64> = (0..HANDLES).map(create).collect();
    assert!(open() < before + 100, "{before} before, {} now", open());
    for (index, handle) in handles.iter().enumerate() {
        map(at + (index * GRANULARITY) as u64, GRANULARITY, *handle);
    }
    // Each has bytes of its own, and the last ones lie where they should.
    ok(cuMemsetD8_v2(at, 1, GRANULARITY));
    let last = at + ((HANDLES - 1) * GRANULARITY) as u64;
    ok(cuMemsetD8_v2(last, 2, GRANULARITY));
    assert_eq!(read(at, 2), [1; 2]);
    assert_eq!(read(at + GRANULARITY as u64, 2), [0; 2]);
    assert_eq!(read(last, 2), [2; 2]);
}

#[test]
fn an_import_and_its_original_are_one_memory() {
    let _gpu = gpu();
    larder_stand_in_poison(1);
    let at = reserve(2 * GRANULARITY);
    let second = at + GRANULARITY as u64;
    let handle = create_shareable(GRANULARITY);
    let imported = import(&export(handle));
    assert_ne!(imported, handle);
    map(at, GRANULARITY, handle);
    map(second, GRANULARITY, imported);
    assert_eq!(read(second, 10), [0xa5; 10]);
    ok(cuMemsetD8_v2(at + 100, 7, 50));
    assert_eq!(read(second + 100, 50), [7; 50]);
    let streams = [0; 2].map(|_: i32| made(|stream| cuStreamCreate(stream, 1)));
    ok(cuMemsetD8Async(at, 1, 10, streams[0]));
    assert_eq!(findings(), "");
    ok(cuMemsetD8Async(second + 9, 2, 10, streams[1]));
    assert!(findings().contains("race"), "{}", findings());
}

#[test]
fn an_import_counts_nothing_and_keeps_the_memory() {
    let _gpu = gpu();
    let at = reserve(GRANULARITY);
    let handle = create_shareable(GRANULARITY);
    let file = export(handle);
    let imported = [import(&file), import(&file)];
    assert_eq!(larder_stand_in_used(0), GRANULARITY as u64);
    map(at, GRANULARITY, handle);
    ok(cuMemsetD8_v2(at, 7, 50));
    ok(cuMemUnmap(at, GRANULARITY));
    ok(cuMemRelease(handle));
    ok(cuMemRelease(imported[0]));
    assert_eq!(larder_stand_in_used(0), GRANULARITY as u64);
    map(at, GRANULARITY, imported[1]);
    assert_eq!(read(at, 50), [7; 50]);
    ok(cuMemRelease(imported[1]));
    assert_eq!(larder_stand_in_used(0), GRANULARITY as u64, "it is mapped");
    ok(cuMemUnmap(at, GRANULARITY));
    assert_eq!(larder_stand_in_used(0), 0);
    // The descriptor still has it, as another process's would.
    let again = import(&file);
    assert_eq!(larder_stand_in_used(0), 0);
    map(at, GRANULARITY, again);
    assert_eq!(read(at, 50), [7; 50]);
}

#[test]
fn sharing_checks_what_it_is_asked_for() {
    let _gpu = gpu();
    let kind = c::MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    let shareable = create_shareable(GRANULARITY);
    let (mut descriptor, mut handle) = (-1, 0);
    let place = &raw mut descriptor as usize;
    let export = |handle, kind, flags| cuMemExportToShareableHandle(place, handle, kind, flags);
    assert_eq!(export(create(GRANULARITY), kind, 0), Code::INVALID_VALUE);
    assert_eq!(export(shareable, 0, 0), Code::INVALID_VALUE);
    assert_eq!(export(shareable, 8, 0), Code::NOT_SUPPORTED);
    assert_eq!(export(shareable, kind, 1), Code::INVALID_VALUE);
    assert_eq!(export(77, kind, 0), Code::INVALID_VALUE);
    let mut import =
        |descriptor, kind| cuMemImportFromShareableHandle(&mut handle, descriptor, kind);
    assert_eq!(import(usize::MAX, kind), Code::INVALID_VALUE);
    assert_eq!(import(1 << 20, kind), Code::INVALID_VALUE);
    assert_eq!(import(2, kind), Code::INVALID_VALUE);
    assert_eq!(import(2, 0), Code::INVALID_VALUE);
    ok(cuMemRelease(shareable));
    assert_eq!(export(shareable, kind, 0), Code::INVALID_VALUE);
}

#[test]
fn reservations_together_have_so_many_addresses_at_most() {
    let _gpu = gpu();
    larder_stand_in_set_addresses(3 * GRANULARITY as u64);
    let mut at = 0;
    let mut ask = |pages: usize| cuMemAddressReserve(&mut at, pages * GRANULARITY, 0, 0, 0);
    assert_eq!(ask(4), Code::OUT_OF_MEMORY);
    ok(ask(2));
    assert_eq!(ask(2), Code::OUT_OF_MEMORY);
    ok(ask(1));
    ok(cuMemAddressFree(at, GRANULARITY));
    larder_stand_in_set_addresses(u64::MAX);
    let _ = reserve(4 * GRANULARITY);
}

#[test]
fn a_device_without_virtual_memory_says_so_and_reserves_nothing() {
    let _gpu = gpu();
    larder_stand_in_virtual_memory(0);
    let attribute = |number| made(|value| cuDeviceGetAttribute(value, number, 0));
    assert_eq!(attribute(c::DEVICE_VIRTUAL_MEMORY_SUPPORTED), 0);
    let mut at = 0;
    let refused = cuMemAddressReserve(&mut at, GRANULARITY, 0, 0, 0);
    assert_eq!(refused, Code::NOT_SUPPORTED);
    larder_stand_in_virtual_memory(1);
    assert_eq!(attribute(c::DEVICE_VIRTUAL_MEMORY_SUPPORTED), 1);
    let _ = reserve(GRANULARITY);
}
