//! Managed memory.

use larder_cuda_abi::{Code, StreamHandle, constants};

use crate::{
    api::{basic, context, copy, memory, stream},
    gpu::{portable, stand_in_only},
    own::{Device, Host, Kernels, Stream},
    refused::refusals,
};

const BYTES: usize = 4096;

refusals! {
    /// Rule: an allocation of 0 bytes returns CUDA_ERROR_INVALID_VALUE (source: CUDA Driver API, Memory Management,
    /// cuMemAllocManaged).
    fn managed_memory_has_bytes() {
        memory::alloc_managed(0, constants::MEM_ATTACH_GLOBAL)
    } => INVALID_VALUE;

    /// Rule: memory that is not managed cannot be prefetched: the call returns CUDA_ERROR_INVALID_VALUE (source: CUDA
    /// Driver API, Unified Addressing, cuMemPrefetchAsync, with devices without pageable access).
    fn device_memory_is_not_prefetched(device = Device::new(BYTES)) {
        memory::prefetch(device.at, BYTES, 0, StreamHandle::NULL)
    } => INVALID_VALUE;

    /// Rule: cuMemAdvise returns CUDA_ERROR_INVALID_VALUE for unknown advice (source: CUDA Driver API, Unified
    /// Addressing, cuMemAdvise, list of errors).
    fn unknown_advice_is_refused(managed = Host::managed(1 << 20, constants::MEM_ATTACH_GLOBAL)) {
        memory::advise(managed.at(), 1 << 20, 999, 0)
    } => INVALID_VALUE;
}

/// Rule: host and device read and write managed memory at one address (source: CUDA Driver API, Memory Management,
/// cuMemAllocManaged).
#[test]
fn host_and_device_use_managed_memory() {
    let _gpu = portable();
    let kernels = Kernels::load();
    let managed = Host::managed(BYTES, constants::MEM_ATTACH_GLOBAL);
    managed.fill(1);
    let stream = Stream::blocking();
    kernels.add(managed.at(), managed.at(), managed.at(), 1024, stream.0);
    stream.finish();
    assert_eq!(managed.read(), [2; BYTES]);
}

/// Rule: the flags are CU_MEM_ATTACH_GLOBAL or CU_MEM_ATTACH_HOST; otherwise the call returns CUDA_ERROR_INVALID_VALUE
/// (source: CUDA Driver API, Memory Management, cuMemAllocManaged).
#[test]
fn managed_memory_is_attached_in_one_of_two_ways() {
    let _gpu = portable();
    for flags in [constants::MEM_ATTACH_GLOBAL, constants::MEM_ATTACH_HOST] {
        let managed = Host::managed(BYTES, flags);
        managed.fill(3);
        assert_eq!(managed.read(), [3; BYTES]);
    }
    for flags in [0, 0x80] {
        let answer = memory::alloc_managed(BYTES, flags);
        assert_eq!(answer, Err(Code::INVALID_VALUE), "{flags}");
    }
}

/// Rule: managed memory is copied and filled in the same way as device memory (source: CUDA Driver API, Memory
/// Management, cuMemAllocManaged).
#[test]
fn managed_memory_is_copied() {
    let gpu = portable();
    gpu.defer(31);
    let managed = Host::managed(BYTES, constants::MEM_ATTACH_GLOBAL);
    let (stream, device) = (Stream::blocking(), Device::new(BYTES));
    copy::fill8_async(managed.at(), 6, BYTES, stream.0).expect("a fill");
    copy::between_async(device.at, managed.at(), BYTES, stream.0).expect("a copy");
    stream.finish();
    assert_eq!(device.read(), [6; BYTES]);
    assert_eq!(managed.read(), [6; BYTES]);
}

/// Rule: managed memory can be prefetched to a device and to the host (source: CUDA Driver API, Unified Addressing,
/// cuMemPrefetchAsync).
#[test]
fn managed_memory_is_prefetched() {
    let _gpu = portable();
    let managed = Host::managed(1 << 20, constants::MEM_ATTACH_GLOBAL);
    let stream = Stream::blocking();
    managed.fill(4);
    memory::prefetch(managed.at(), 1 << 20, 0, stream.0).expect("to the device");
    memory::prefetch(managed.at(), 1 << 20, memory::HOST, stream.0).expect("to the host");
    stream.finish();
    assert!(managed.read().iter().all(|byte| *byte == 4));
}

/// Rule: advice is accepted: read mostly, preferred location, accessed by, and the removal of each (source: CUDA Driver
/// API, Unified Addressing, cuMemAdvise, CUmem_advise 1 to 6).
#[test]
fn managed_memory_takes_advice() {
    let _gpu = portable();
    let managed = Host::managed(1 << 20, constants::MEM_ATTACH_GLOBAL);
    for advice in 1..=6 {
        let answer = memory::advise(managed.at(), 1 << 20, advice, 0);
        assert_eq!(answer, Ok(()), "{advice}");
    }
}

/// Rule: cuMemFree frees managed memory, after the work that uses it (source: CUDA Driver API, Memory Management,
/// cuMemAllocManaged: "must be released with cuMemFree").
#[test]
fn managed_memory_is_freed_as_device_memory() {
    let _gpu = portable();
    let at = memory::alloc_managed(BYTES, constants::MEM_ATTACH_GLOBAL).expect("memory");
    copy::fill8_async(at, 1, BYTES, StreamHandle::NULL).expect("a fill");
    stream::synchronize(StreamHandle::NULL).expect("work that ends well");
    assert_eq!(memory::free(at), Ok(()));
    assert_eq!(memory::free(at), Err(Code::INVALID_VALUE));
    assert_eq!(context::synchronize(), Ok(()));
}

/// Rule: with concurrent managed access, there may be more managed memory than the device has (source: CUDA Programming
/// Guide, Unified Memory, GPU Memory Oversubscription: devices of compute capability 6.0 and more).
#[test]
fn managed_memory_may_be_more_than_the_device_has() {
    let _gpu = portable();
    let attribute = constants::DEVICE_CONCURRENT_MANAGED_ACCESS;
    if basic::device_attribute(attribute, 0) != Ok(1) {
        println!("skipped: the device has no concurrent managed access");
        return;
    }
    let (_, total) = memory::info().expect("numbers");
    let at = memory::alloc_managed(total + (1 << 20), constants::MEM_ATTACH_GLOBAL);
    assert_eq!(memory::free(at.expect("memory")), Ok(()));
}

/// Rule: without concurrent managed access, there is never more managed memory than the device has (source: CUDA
/// Programming Guide, Unified Memory: "cannot allocate more managed memory than the physical size of GPU memory").
#[test]
fn without_concurrent_access_managed_memory_is_the_devices() {
    let Some(gpu) = stand_in_only("it is a property of the device") else {
        return;
    };
    gpu.manages_concurrently(false);
    let said = basic::device_attribute(constants::DEVICE_CONCURRENT_MANAGED_ACCESS, 0);
    let (free, _) = memory::info().expect("numbers");
    let more = memory::alloc_managed(free + (1 << 20), constants::MEM_ATTACH_GLOBAL);
    let some = memory::alloc_managed(1 << 20, constants::MEM_ATTACH_GLOBAL).expect("memory");
    let left = memory::info().expect("numbers").0;
    gpu.manages_concurrently(true);
    assert_eq!((said, more), (Ok(0), Err(Code::OUT_OF_MEMORY)));
    assert_eq!(left, free - (1 << 20));
    assert_eq!(memory::free(some), Ok(()));
}
