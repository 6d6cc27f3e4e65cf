//! cuMemCreate, cuMemRelease and a handle's attributes.

use larder_cuda_abi::{AllocationProp, Code, constants};

use super::{Mapped, Physical, Reserved, granule, plain};
use crate::{
    api::{basic, copy, memory, virtual_memory as vmm},
    gpu::{self, answer, portable},
    own::read,
    refused::refusals,
};

refusals! {
    /// Rule: the location is a device that exists (source: CUDA Driver API, Virtual Memory Management, cuMemCreate,
    /// list of errors: CUDA_ERROR_INVALID_VALUE or CUDA_ERROR_INVALID_DEVICE).
    ///
    /// Uncertain: whether only an existing device has a granularity. On an H200 with driver 580 any number has one.
    fn physical_memory_is_of_a_device_that_is_there(
        absent = vmm::properties(gpu::absent_device(), constants::MEM_HANDLE_TYPE_NONE)
    ) {
        vmm::create(granule(), &absent, 0)
    } => INVALID_DEVICE | INVALID_VALUE;

    /// Rule: the flags must be zero (source: CUDA Driver API, Virtual Memory Management, cuMemCreate; of the listed
    /// errors, CUDA_ERROR_INVALID_VALUE fits best).
    fn physical_memory_takes_no_flags() {
        vmm::create(granule(), &plain(), 1 << 40)
    } => INVALID_VALUE;

    /// Rule: the kind of memory is CU_MEM_ALLOCATION_TYPE_PINNED (source: CUDA Driver API, Data types,
    /// CUmemAllocationType; of the listed errors, CUDA_ERROR_INVALID_VALUE and CUDA_ERROR_NOT_SUPPORTED fit).
    fn physical_memory_is_pinned(strange = AllocationProp { kind: 0, ..plain() }) {
        vmm::create(granule(), &strange, 0)
    } => INVALID_VALUE | _;

    /// Rule: a request for more memory than the device has returns CUDA_ERROR_OUT_OF_MEMORY (source: CUDA Driver API,
    /// Virtual Memory Management, cuMemCreate, list of errors).
    fn more_physical_memory_than_there_is_is_refused(
        bytes = (2 * basic::device_bytes(0).expect("a size")).next_multiple_of(granule())) {
        vmm::create(bytes, &plain(), 0)
    } => OUT_OF_MEMORY;
}

/// Rule: both granularities are powers of two, and the recommended granularity is a multiple of the minimum granularity
/// (source: CUDA Driver API, Virtual Memory Management, cuMemGetAllocationGranularity).
#[test]
fn granularities_are_powers_of_two() {
    let _gpu = portable();
    let ask = |option| vmm::granularity(&plain(), option).expect("a granularity");
    let minimum = ask(constants::MEM_GRANULARITY_MINIMUM);
    let recommended = ask(constants::MEM_GRANULARITY_RECOMMENDED);
    assert!(minimum.is_power_of_two() && recommended.is_power_of_two());
    assert_eq!(recommended % minimum, 0);
}

/// Rule: sizes are multiples of the granularity (source: CUDA Driver API, Virtual Memory Management, cuMemCreate; of
/// the listed errors, CUDA_ERROR_INVALID_VALUE fits best).
#[test]
fn physical_memory_comes_in_granules() {
    let _gpu = portable();
    let granule = granule();
    for bytes in [0, 1, granule - 1, granule + 1, granule + 4096] {
        let answer = vmm::create(bytes, &plain(), 0);
        assert_eq!(answer, Err(Code::INVALID_VALUE), "{bytes}");
    }
    for count in [1, 3, 5] {
        drop(Physical::new(count * granule));
    }
}

/// Rule: physical memory is taken from the device when it is created, and returned once it has been released and
/// unmapped (source: CUDA Driver API, Virtual Memory Management, cuMemCreate, cuMemRelease).
#[test]
fn physical_memory_is_taken_at_its_creation() {
    let _gpu = portable();
    let bytes = (512_usize << 20).next_multiple_of(granule());
    let range = Reserved::new(bytes);
    let (before, _) = memory::info().expect("sizes");
    let physical = Physical::new(bytes);
    let (during, _) = memory::info().expect("sizes");
    assert!(during + bytes <= before, "{before} then {during}");
    drop(Mapped::bare(range.at, &physical));
    drop(physical);
    let (after, _) = memory::info().expect("sizes");
    let gone = after.saturating_sub(during);
    let is_free = gone >= bytes;
    let holds = answer(
        "cuMemGetInfo sees memory that was unmapped and released",
        if is_free { "at once" } else { "not at once" },
        &format!("{} of {} MiB", gone >> 20, bytes >> 20),
        "memory that is given back is free at once",
        is_free,
    );
    assert!(holds, "{during} then {after}");
}

/// Rule: released memory stays allocated while a mapping of it exists (source: CUDA Driver API, Virtual Memory
/// Management, cuMemRelease: freed "when all outstanding mappings … are unmapped").
#[test]
fn released_memory_stays_while_mapped() {
    let _gpu = portable();
    let bytes = (128_usize << 20).next_multiple_of(granule());
    let (physical, range) = (Physical::new(bytes), Reserved::new(bytes));
    let mapped = Mapped::new(range.at, &physical);
    drop(physical);
    copy::fill8(range.at, 3, bytes).expect("a fill");
    assert_eq!(read(range.plus(bytes - 64), 64), [3; 64]);
    let (during, _) = memory::info().expect("sizes");
    drop(mapped);
    let (after, _) = memory::info().expect("sizes");
    assert!(after >= during + bytes, "{during} then {after}");
}

/// Rule: cuMemRetainAllocationHandle returns the handle of the memory mapped at an address, even if the handle was
/// released before; it must be released as often as it was returned (source: CUDA Driver API, Virtual Memory
/// Management, cuMemRetainAllocationHandle). The documentation does not say which error an address without a mapping
/// causes (uncertain).
#[test]
fn a_handle_is_given_for_what_is_mapped_and_released_once_more() {
    let _gpu = portable();
    let granule = granule();
    let range = Reserved::new(2 * granule);
    let first = vmm::create(granule, &plain(), 0).expect("memory");
    vmm::map(range.at, granule, 0, first).expect("a mapping");
    vmm::release(first).expect("a release");
    let again = vmm::retain(range.at + 100).expect("a handle");
    vmm::unmap(range.at, granule).expect("no mapping");
    // The memory still exists.
    vmm::map(range.plus(granule), granule, 0, again).expect("a mapping");
    vmm::release(again).expect("a release");
    vmm::unmap(range.plus(granule), granule).expect("no mapping");
    assert!(vmm::retain(range.at).is_err());
}
