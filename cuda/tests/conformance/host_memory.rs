//! Pinned and registered host memory.

use larder_cuda_abi::{Code, constants};

use crate::{
    api::{copy, memory, unified},
    gpu::{portable, stand_in_only},
    own::{Device, Host, Kernels, Stream},
    refused::refusals,
};

const BYTES: usize = 8192;

refusals! {
    /// Rule: unknown flags of cuMemHostAlloc are refused (source: CUDA Driver API, Memory Management, cuMemHostAlloc;
    /// of the listed errors, CUDA_ERROR_INVALID_VALUE fits best).
    fn unknown_flags_of_pinned_memory_are_refused() {
        memory::host_alloc(BYTES, 0x8000)
    } => INVALID_VALUE;

    /// Rule: the flags of cuMemHostGetDevicePointer must be 0 (source: CUDA Driver API, Memory Management,
    /// cuMemHostGetDevicePointer; of the listed errors, CUDA_ERROR_INVALID_VALUE fits best).
    fn a_device_pointer_is_asked_for_without_flags(pinned = Host::pinned(BYTES, 0)) {
        memory::host_device_pointer(pinned.address, 1)
    } => INVALID_VALUE;

    /// Rule: cuMemFreeHost does not free pageable memory, and cuMemHostGetDevicePointer does not know it (source: CUDA
    /// Driver API, Memory Management, lists of errors: CUDA_ERROR_INVALID_VALUE).
    fn pageable_memory_is_not_pinned(pageable = Host::pageable(BYTES, 1)) {
        memory::free_host(pageable.address),
        memory::host_device_pointer(pageable.address, 0)
    } => INVALID_VALUE, leaving pageable.read(), [1; BYTES];

    /// Rule: a registration needs an address, and a length other than 0 (source: CUDA Driver API, Memory Management,
    /// cuMemHostRegister; of the listed errors, CUDA_ERROR_INVALID_VALUE fits best).
    fn nothing_cannot_be_registered(pageable = Host::pageable(BYTES, 1)) {
        memory::register(0, BYTES, 0), memory::register(pageable.address, 0, 0)
    } => INVALID_VALUE;

    /// Rule: an allocation that the host cannot pin returns CUDA_ERROR_OUT_OF_MEMORY (source: CUDA Driver API, Memory
    /// Management, cuMemHostAlloc, list of errors).
    fn more_than_the_host_has_is_not_pinned() { memory::host_alloc(1 << 46, 0) } => OUT_OF_MEMORY;
}

/// Rule: pinned memory is ordinary memory to the host (source: CUDA Driver API, Memory Management, cuMemHostAlloc).
#[test]
fn the_host_uses_pinned_memory() {
    let _gpu = portable();
    let pinned = Host::pinned(BYTES, 7);
    assert_eq!(pinned.read(), [7; BYTES]);
}

/// Rule: with unified addressing, devices can use all memory of cuMemHostAlloc at the host's own address, unless it is
/// write-combined (source: CUDA Driver API, Unified Addressing, Automatic Mapping of Host Allocated Host Memory).
#[test]
fn pinned_memory_has_one_address() {
    let _gpu = portable();
    let pinned = Host::pinned(BYTES, 0);
    let device = memory::host_device_pointer(pinned.address, 0);
    assert_eq!(device, Ok(pinned.at()));
}

/// Rule: kernels read and write pinned and registered memory at the address that cuMemHostGetDevicePointer returns: the
/// host's own address, unless the memory is write-combined (source: CUDA Driver API, Unified Addressing, Automatic
/// Mapping of Host Allocated Host Memory; Memory Management, cuMemHostRegister).
#[test]
fn kernels_use_host_memory_by_its_device_address() {
    let gpu = portable();
    let kernels = Kernels::load();
    gpu.defer(21);
    let combined = Host::pinned_with(BYTES, constants::HOST_ALLOC_WRITECOMBINED);
    let (pinned, registered) = (Host::pinned(BYTES, 9), Host::pageable(BYTES, 9));
    let flags = constants::HOST_REGISTER_DEVICEMAP;
    memory::register(registered.address, BYTES, flags).expect("a registration");
    let (stream, words) = (Stream::blocking(), BYTES as u32 / 4);
    for memory in [&combined, &pinned, &registered] {
        let at = memory::host_device_pointer(memory.address, 0).expect("an address");
        kernels.fill(at, words, 0x0101_0101, stream.0);
        kernels.add(at, at, at, words, stream.0);
        stream.finish();
        assert_eq!(memory.read(), [2; BYTES]);
    }
    memory::unregister(registered.address).expect("a registration");
}

/// Rule: pinned memory can be freed only once (source: CUDA Driver API, Memory Management, cuMemFreeHost; of the listed
/// errors, CUDA_ERROR_INVALID_VALUE fits best).
#[test]
fn pinned_memory_is_freed_once() {
    let _gpu = portable();
    let address = memory::host_alloc(BYTES, 0).expect("pinned memory");
    assert_eq!(memory::free_host(address), Ok(()));
    assert_eq!(memory::free_host(address), Err(Code::INVALID_VALUE));
}

/// Rule: registering a range twice returns CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED (source: CUDA Driver API, Memory
/// Management, cuMemHostRegister, list of errors).
#[test]
fn memory_is_registered_once() {
    let _gpu = portable();
    let pageable = Host::pageable(BYTES, 1);
    let address = pageable.address;
    memory::register(address, BYTES, 0).expect("a registration");
    let again = memory::register(address, BYTES, 0);
    memory::unregister(address).expect("a registration");
    assert_eq!(again, Err(Code::HOST_MEMORY_ALREADY_REGISTERED));
}

/// Rule: unregistering memory that is not registered returns CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED (source: CUDA Driver
/// API, Memory Management, cuMemHostUnregister, list of errors).
#[test]
fn only_registered_memory_is_unregistered() {
    let _gpu = portable();
    let pageable = Host::pageable(BYTES, 1);
    let refused = Err(Code::HOST_MEMORY_NOT_REGISTERED);
    assert_eq!(memory::unregister(pageable.address), refused);
    memory::register(pageable.address, BYTES, 0).expect("a registration");
    assert_eq!(memory::unregister(pageable.address), Ok(()));
    assert_eq!(memory::unregister(pageable.address), refused);
}

/// Rule: copies can use addresses in the middle of pinned memory (source: CUDA Driver API, Memory Management).
#[test]
fn parts_of_pinned_memory_are_copied() {
    let _gpu = portable();
    let (pinned, device) = (Host::pinned(BYTES, 0), Device::filled(256, 4));
    let stream = Stream::blocking();
    copy::to_host_async(pinned.address + 100, device.at, 256, stream.0).expect("a copy");
    stream.finish();
    let read = pinned.read();
    assert_eq!(read[..100], [0; 100]);
    assert_eq!(read[100..356], [4; 256]);
    assert_eq!(unified(pinned.address), pinned.at());
}

/// Rule: copies accept the host's address of write-combined memory (source: CUDA Driver API, Memory Management,
/// cuMemHostAlloc, CU_MEMHOSTALLOC_WRITECOMBINED: "a good option for buffers that will be written by the CPU and read
/// by the GPU via mapped pinned memory or host->device transfers").
#[test]
fn copies_take_write_combined_memory() {
    let gpu = portable();
    gpu.defer(24);
    let pinned = Host::pinned_with(BYTES, constants::HOST_ALLOC_WRITECOMBINED);
    let device = Device::filled(BYTES, 6);
    let stream = Stream::blocking();
    copy::to_host_async(pinned.address, device.at, BYTES, stream.0).expect("a copy");
    copy::to_device_async(device.at, pinned.address, BYTES / 2, stream.0).expect("a copy");
    stream.finish();
    assert_eq!(pinned.read(), [6; BYTES]);
}

/// Rule: for an address inside write-combined memory, cuMemHostGetDevicePointer returns the device address at the same
/// offset (source: CUDA Driver API, Memory Management, cuMemHostGetDevicePointer; uncertain: the documentation mentions
/// only addresses that cuMemHostAlloc returned).
#[test]
fn a_part_of_write_combined_memory_has_part_of_its_device_address() {
    let Some(_gpu) = stand_in_only("the documents do not say it") else {
        return;
    };
    let pinned = Host::pinned_with(BYTES, constants::HOST_ALLOC_WRITECOMBINED);
    let start = memory::host_device_pointer(pinned.address, 0).expect("an address");
    assert_ne!(start, pinned.at());
    let part = memory::host_device_pointer(pinned.address + 100, 0);
    assert_eq!(part, Ok(start + 100));
}

/// Rule: registering memory that the host cannot pin returns CUDA_ERROR_OUT_OF_MEMORY (source: CUDA Driver API, Memory
/// Management, cuMemHostRegister, list of errors).
#[test]
fn memory_that_cannot_be_pinned_is_not_registered() {
    let Some(gpu) = stand_in_only("nobody can tell how much a host pins") else {
        return;
    };
    let pageable = Host::pageable(BYTES, 1);
    gpu.may_pin(4096);
    let answer = memory::register(pageable.address, BYTES, 0);
    let pinned = memory::host_alloc(BYTES, 0);
    gpu.may_pin(u64::MAX);
    assert_eq!(answer, Err(Code::OUT_OF_MEMORY));
    assert_eq!(pinned, Err(Code::OUT_OF_MEMORY));
    memory::register(pageable.address, BYTES, 0).expect("a registration");
    memory::unregister(pageable.address).expect("a registration");
}
