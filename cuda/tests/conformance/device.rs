//! Devices and their attributes.

use larder_cuda_abi::constants;

use crate::{
    api::{basic, context},
    gpu::{self, portable},
    refused::refusals,
};

refusals! {
    /// Rule: cuDeviceGetCount and cuDeviceGet return CUDA_ERROR_INVALID_VALUE if the pointer for the result is null
    /// (source: CUDA Driver API, Device Management, list of errors).
    fn devices_need_a_place_for_the_answer() {
        basic::device_count_to_null(), basic::device_to_null()
    } => INVALID_VALUE;

    /// Rule: an ordinal lies in [0, cuDeviceGetCount - 1]; for any other ordinal the call returns
    /// CUDA_ERROR_INVALID_DEVICE (source: CUDA Driver API, Device Management, cuDeviceGet).
    fn an_ordinal_out_of_range_is_no_device(count = basic::device_count().expect("a count")) {
        basic::device(-1), basic::device(count), basic::device(i32::MAX)
    } => INVALID_DEVICE;

    /// Rule: queries about a device that does not exist return CUDA_ERROR_INVALID_DEVICE (source: CUDA Driver API,
    /// Device Management, lists of errors).
    fn questions_about_no_device_are_refused(absent = gpu::absent_device()) {
        basic::device_bytes(absent),
        basic::device_name(absent, 64),
        basic::device_uuid(absent),
        basic::device_attribute(constants::DEVICE_MAX_THREADS_PER_BLOCK, absent),
        context::retain_primary(absent)
    } => INVALID_DEVICE;

    /// Rule: a query of an attribute that does not exist returns CUDA_ERROR_INVALID_VALUE (source: CUDA Driver API,
    /// Device Management, cuDeviceGetAttribute, list of errors).
    fn an_attribute_that_does_not_exist_is_refused() {
        basic::device_attribute(1_000_000, 0)
    } => INVALID_VALUE;
}

/// Rule: cuDeviceGetCount returns the number of devices, which is at least one here, since cuInit succeeded and a
/// context could be created (source: CUDA Driver API, Device Management).
#[test]
fn there_is_a_device() {
    let _gpu = portable();
    let count = basic::device_count().expect("a count");
    assert!(count >= 1 && basic::device(count - 1).is_ok());
}

/// Rule: the name is a NUL-terminated ASCII string (source: CUDA Driver API, Device Management, cuDeviceGetName).
#[test]
fn a_name_ends_in_nul() {
    let _gpu = portable();
    let name = basic::device_name(0, 256).expect("a name");
    let end = name.iter().position(|byte| *byte == 0).expect("a NUL");
    assert!(end > 0);
    assert!(name[..end].is_ascii());
}

/// Rule: no more bytes of a name are written than the caller's buffer holds (source: CUDA Driver API, Device
/// Management, cuDeviceGetName: "len specifies the maximum length of the string that may be returned").
///
/// Uncertain: whether a name that is too long is truncated and NUL-terminated, or refused. Either is accepted.
#[test]
fn a_long_name_is_cut_or_refused() {
    let _gpu = portable();
    if let Ok(name) = basic::device_name(0, 3) {
        assert_eq!(name.len(), 3);
        assert_ne!(name[0], 0xFF);
    }
}

/// Rule: each device has its own identity of 16 bytes (source: CUDA Driver API, Device Management, cuDeviceGetUuid_v2).
#[test]
fn each_device_has_an_identity_of_its_own() {
    let _gpu = portable();
    let count = basic::device_count().expect("a count");
    let mut seen = Vec::new();
    for device in 0..count {
        let identity = basic::device_uuid(device).expect("an identity").bytes;
        assert_ne!(identity, [0; 16]);
        assert!(!seen.contains(&identity));
        seen.push(identity);
    }
}

/// Rule: cuDeviceTotalMem returns the device's memory; cuMemGetInfo of a context on the device reports no more (source:
/// CUDA Driver API, Device Management, cuDeviceTotalMem; Memory Management, cuMemGetInfo).
#[test]
fn a_context_has_the_devices_memory() {
    let _gpu = portable();
    let bytes = basic::device_bytes(0).expect("a size");
    let (free, total) = crate::api::memory::info().expect("sizes");
    assert!(total <= bytes, "{total} of {bytes}");
    assert!(free <= total, "{free} of {total}");
    assert!(total > 0);
}

/// Rule: a device that can compute has at least compute capability 5.0 and the limits of that capability (source: CUDA
/// Programming Guide, Compute Capabilities, Technical Specifications).
#[test]
fn attributes_are_those_of_a_device_that_computes() {
    let _gpu = portable();
    let ask = |attribute| basic::device_attribute(attribute, 0).expect("an attribute");
    assert!(ask(constants::DEVICE_COMPUTE_CAPABILITY_MAJOR) >= 5);
    assert!(ask(constants::DEVICE_COMPUTE_CAPABILITY_MINOR) >= 0);
    assert_eq!(ask(constants::DEVICE_WARP_SIZE), 32);
    assert_eq!(ask(constants::DEVICE_MAX_THREADS_PER_BLOCK), 1024);
    assert_eq!(ask(constants::DEVICE_MAX_BLOCK_DIM_X), 1024);
    assert_eq!(ask(constants::DEVICE_MAX_BLOCK_DIM_Z), 64);
    assert_eq!(ask(constants::DEVICE_MAX_GRID_DIM_X), i32::MAX);
    assert_eq!(ask(constants::DEVICE_MAX_GRID_DIM_Y), 65_535);
    assert!(ask(constants::DEVICE_MULTIPROCESSOR_COUNT) >= 1);
    assert_eq!(ask(constants::DEVICE_UNIFIED_ADDRESSING), 1);
}

/// Rule: on 64-bit Linux the device has virtual memory, pools and managed memory, which this project needs (source:
/// CUDA Driver API, Data types, CUdevice_attribute).
#[test]
fn the_device_supports_what_this_project_uses() {
    let _gpu = portable();
    let needed = [
        constants::DEVICE_VIRTUAL_MEMORY_SUPPORTED,
        constants::DEVICE_MEMORY_POOLS_SUPPORTED,
        constants::DEVICE_MANAGED_MEMORY,
    ];
    for attribute in needed {
        assert_eq!(basic::device_attribute(attribute, 0), Ok(1), "{attribute}");
    }
}

/// Rule: the bus address is a string `domain:bus:device.function` (source: CUDA Driver API, Device Management,
/// cuDeviceGetPCIBusId).
#[test]
fn a_device_knows_its_place_on_the_bus() {
    let _gpu = portable();
    let place = basic::device_bus(0).expect("a place");
    let (domain, rest) = place.split_once(':').expect("a domain");
    let (bus, rest) = rest.split_once(':').expect("a bus");
    let (device, function) = rest.split_once('.').expect("a device and a function");
    for number in [domain, bus, device, function] {
        assert!(u32::from_str_radix(number, 16).is_ok(), "{place}");
    }
    let bus = i32::from_str_radix(bus, 16).expect("checked");
    let known = basic::device_attribute(constants::DEVICE_PCI_BUS_ID, 0);
    assert_eq!(known, Ok(bus));
}
