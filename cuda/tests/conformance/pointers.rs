//! The attributes that cuPointerGetAttribute gives of an address.

use larder_cuda_abi::{Code, DevicePtr, constants};

use crate::{
    api::{memory, pointer},
    gpu::portable,
    own::{Device, Host},
    refused::refusals,
};

const BYTES: usize = 8192;

refusals! {
    /// Rule: a query of an address that CUDA does not know returns CUDA_ERROR_INVALID_VALUE (source: CUDA Driver API,
    /// Unified Addressing, cuPointerGetAttribute, list of errors).
    fn nothing_is_told_of_pageable_memory(pageable = Host::pageable(BYTES, 0)) {
        pointer::memory_type(pageable.at()),
        pointer::context(pageable.at()),
        pointer::buffer_id(pageable.at())
    } => INVALID_VALUE;

    /// Rule: a query of an attribute with an unknown number is refused (source: CUDA Driver API, Unified Addressing,
    /// cuPointerGetAttribute, list of errors).
    fn unknown_attributes_of_a_pointer_are_refused(device = Device::new(BYTES)) {
        pointer::attribute(100_000, device.at)
    } => INVALID_VALUE;
}

/// Rule: cuPointerGetAttribute reports memory of cuMemAlloc as device memory of its context, pinned memory as host
/// memory, and managed memory as managed; memory that both can use has the same address on device and host (source:
/// CUDA Driver API, Unified Addressing, cuPointerGetAttribute, CU_POINTER_ATTRIBUTE_HOST_POINTER: "may be accessed by
/// the host", CU_POINTER_ATTRIBUTE_IS_MANAGED).
///
/// Uncertain: whether a query for the host address of device memory fails or returns null. Either is accepted. The
/// memory type of managed memory may be device, host or unified.
#[test]
fn each_kind_of_memory_says_what_it_is() {
    let gpu = portable();
    let (plain, pinned) = (Device::new(BYTES), Host::pinned(BYTES, 0));
    let managed = Host::managed(BYTES, constants::MEM_ATTACH_GLOBAL);
    let (device, host) = (constants::MEMORY_TYPE_DEVICE, constants::MEMORY_TYPE_HOST);
    let any = [device, host, constants::MEMORY_TYPE_UNIFIED];
    for (start, kinds, is_hosts, is_managed) in [
        (plain.at, &[device][..], false, false),
        (pinned.at(), &[host], true, false),
        (managed.at(), &any, true, true),
    ] {
        for at in [start, start + 100, start + BYTES as u64 - 1] {
            let kind = pointer::memory_type(at).expect("a type");
            assert!(kinds.contains(&kind), "{kind}");
            assert_eq!(pointer::device_pointer(at), Ok(at));
            assert_eq!(pointer::is_managed(at), Ok(is_managed));
            let host = pointer::host_pointer(at);
            match is_hosts {
                true => assert_eq!(host, Ok(at)),
                false => assert_eq!(host.unwrap_or(0), 0),
            }
        }
    }
    let inside = plain.plus(100);
    assert_eq!(pointer::context(inside), Ok(gpu.context().0 as u64));
    assert_eq!(pointer::device_ordinal(inside), Ok(0));
}

/// Rule: registered memory is reported as host memory, and is unknown again once it is unregistered (source: CUDA
/// Driver API, Unified Addressing, cuPointerGetAttribute: "registered with").
#[test]
fn registered_memory_is_the_hosts() {
    let _gpu = portable();
    let pageable = Host::pageable(BYTES, 0);
    memory::register(pageable.address, BYTES, 0).expect("a registration");
    let kind = pointer::memory_type(pageable.at());
    let host = pointer::host_pointer(pageable.at() + 100);
    memory::unregister(pageable.address).expect("a registration");
    assert_eq!(kind, Ok(constants::MEMORY_TYPE_HOST));
    assert_eq!(host, Ok(pageable.at() + 100));
    let kind = pointer::memory_type(pageable.at());
    assert_eq!(kind, Err(Code::INVALID_VALUE));
}

/// Rule: the start and the size of the range around an address are those of its allocation (source: CUDA Driver API,
/// Unified Addressing, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, …_RANGE_SIZE).
#[test]
fn an_inner_pointer_knows_its_range() {
    let _gpu = portable();
    let (device, pinned) = (Device::new(10_000), Host::pinned(BYTES, 0));
    let check = |start: DevicePtr, bytes: u64| {
        for at in [start, start + 77, start + bytes - 1] {
            assert_eq!(pointer::range_start(at), Ok(start));
            assert_eq!(pointer::range_bytes(at), Ok(bytes));
        }
    };
    check(device.at, 10_000);
    check(pinned.at(), BYTES as u64);
}

/// Rule: a buffer's id is unique in the process, even among past buffers (source: CUDA Driver API, Unified Addressing,
/// CU_POINTER_ATTRIBUTE_BUFFER_ID).
#[test]
fn buffer_numbers_are_unique() {
    let _gpu = portable();
    let mut seen = Vec::new();
    for _ in 0..8 {
        let (device, pinned) = (Device::new(BYTES), Host::pinned(BYTES, 0));
        let managed = Host::managed(BYTES, constants::MEM_ATTACH_GLOBAL);
        for at in [device.at, pinned.at(), managed.at()] {
            let number = pointer::buffer_id(at).expect("a number");
            assert_eq!(pointer::buffer_id(at + 5), Ok(number), "inside");
            assert!(!seen.contains(&number), "{number} twice");
            seen.push(number);
        }
    }
}

/// Rule: queries about freed memory are refused (source: CUDA Driver API, Unified Addressing, cuPointerGetAttribute,
/// list of errors).
#[test]
fn nothing_is_told_of_freed_memory() {
    let _gpu = portable();
    let at = memory::alloc(64 << 20).expect("memory");
    memory::free(at).expect("memory");
    assert_eq!(pointer::memory_type(at), Err(Code::INVALID_VALUE));
}
