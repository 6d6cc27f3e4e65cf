//! cuMemMap and cuMemUnmap.

use larder_cuda_abi::{Code, DevicePtr};

use super::{Mapped, Physical, READ_WRITE, Reserved, granule};
use crate::{
    api::{context, copy, memory, stream, virtual_memory as vmm},
    gpu::portable,
    own::{Kernels, Stream, read, words},
    refused::refusals,
};

/// Returns addresses that were reserved and freed.
fn freed_addresses() -> DevicePtr {
    let range = Reserved::new(granule());
    range.at
}

refusals! {
    /// Rule: mapping needs reserved addresses (source: CUDA Driver API, Virtual Memory Management, cuMemMap: the range
    /// "must be an address reservation previously reserved").
    fn memory_is_mapped_at_reserved_addresses_only(
        // Freed last, because the next reservation may take the same addresses.
        one = Physical::new(granule()), two = Physical::new(2 * granule()),
        range = Reserved::new(granule()), freed = freed_addresses()
    ) {
        vmm::map(freed, granule(), 0, one.handle),
        // Past the end of the reservation.
        vmm::map(range.at, 2 * granule(), 0, two.handle)
    } => INVALID_VALUE | _;

    /// Rule: the offset into a handle must be zero (source: CUDA Driver API, Virtual Memory Management, cuMemMap:
    /// "currently must be zero").
    fn a_handle_is_mapped_from_its_start(two = Physical::new(2 * granule()), range = Reserved::new(2 * granule())) {
        vmm::map(range.at, granule(), granule(), two.handle)
    } => INVALID_VALUE | _;

    /// Rule: no more bytes can be mapped than the handle has (source: CUDA Driver API, Virtual Memory Management,
    /// cuMemMap: "offset + size must be less than the size of the memory allocation").
    fn no_more_is_mapped_than_a_handle_has(one = Physical::new(granule()), range = Reserved::new(2 * granule())) {
        vmm::map(range.at, 2 * granule(), 0, one.handle)
    } => INVALID_VALUE | _;

    /// Rule: the address of a mapping is a multiple of the granularity (source: CUDA Driver API, Virtual Memory
    /// Management, cuMemMap; of the listed errors, CUDA_ERROR_INVALID_VALUE fits best).
    fn mappings_begin_at_a_granule(one = Physical::new(granule()), range = Reserved::new(2 * granule())) {
        vmm::map(range.plus(granule() / 2), granule(), 0, one.handle)
    } => INVALID_VALUE;

    /// Rule: the size of a mapping is a multiple of the granularity (source: CUDA Driver API, Virtual Memory
    /// Management, cuMemMap; of the listed errors, CUDA_ERROR_INVALID_VALUE fits best; an H200 with driver 580 returns
    /// CUDA_ERROR_NOT_SUPPORTED).
    fn mappings_are_whole_granules(one = Physical::new(granule()), range = Reserved::new(2 * granule())) {
        vmm::map(range.at, granule() / 2, 0, one.handle),
        vmm::map(range.at, 0, 0, one.handle)
    } => INVALID_VALUE | NOT_SUPPORTED;
}

/// Rule: mapped memory with access can be used as device memory (source: CUDA Driver API, Virtual Memory Management,
/// cuMemMap, cuMemSetAccess).
#[test]
fn mapped_memory_is_device_memory() {
    let gpu = portable();
    let kernels = Kernels::load();
    gpu.defer(41);
    let (physical, range) = (Physical::new(granule()), Reserved::new(granule()));
    let _mapped = Mapped::new(range.at, &physical);
    let stream = Stream::blocking();
    kernels.fill(range.plus(1024), 256, 3, stream.0);
    kernels.add(range.at, range.plus(1024), range.plus(1024), 256, stream.0);
    stream.finish();
    assert_eq!(words(range.at, 1024), [6; 256]);
}

/// Rule: a mapped range cannot be mapped again before it is unmapped (source: CUDA Driver API, Virtual Memory
/// Management, cuMemMap, cuMemUnmap: unmapped addresses "can be used for a future calls").
#[test]
fn nothing_is_mapped_over_a_mapping() {
    let _gpu = portable();
    let granule = granule();
    let range = Reserved::new(2 * granule);
    let (first, second) = (Physical::new(granule), Physical::new(granule));
    let mapped = Mapped::new(range.at, &first);
    copy::fill8(range.at, 5, 64).expect("a fill");
    assert!(vmm::map(range.at, granule, 0, second.handle).is_err());
    assert_eq!(read(range.at, 64), [5; 64]);
    drop(mapped);
    drop(Mapped::new(range.at, &second));
}

/// Rule: one handle at two addresses shows the same bytes (source: CUDA Programming Guide, Virtual Memory Management,
/// Virtual Aliasing Support).
#[test]
fn one_handle_shows_the_same_bytes_at_two_addresses() {
    let _gpu = portable();
    let granule = granule();
    let (physical, range) = (Physical::new(granule), Reserved::new(2 * granule));
    let first = Mapped::new(range.at, &physical);
    let second = Mapped::new(range.plus(granule), &physical);
    let stream = Stream::blocking();
    copy::fill8_async(first.at + 100, 7, 64, stream.0).expect("a fill");
    stream.finish();
    assert_eq!(read(second.at + 100, 64), [7; 64]);
    copy::to_device(second.at + 100, &[8; 64]).expect("a copy");
    assert_eq!(read(first.at + 100, 64), [8; 64]);
    drop((first, second));
}

/// Rule: handles mapped next to each other are one range for copies and kernels (source: CUDA Driver API, Virtual
/// Memory Management; CUDA Samples, vectorAddMMAP).
#[test]
fn mappings_side_by_side_are_one_range() {
    let _gpu = portable();
    let kernels = Kernels::load();
    let granule = granule();
    let (first, second) = (Physical::new(granule), Physical::new(granule));
    let range = Reserved::new(2 * granule);
    let _mapped = [
        Mapped::new(range.at, &first),
        Mapped::new(range.plus(granule), &second),
    ];
    let stream = Stream::blocking();
    let count = u32::try_from(2 * granule / 4).expect("some");
    kernels.fill(range.at, count, 0x0909_0909, stream.0);
    stream.finish();
    assert!(read(range.at, 2 * granule).iter().all(|byte| *byte == 9));
    copy::fill8(range.plus(granule - 32), 4, 64).expect("a fill");
    assert_eq!(read(range.plus(granule - 32), 64), [4; 64]);
}

/// Rule: a part of a mapping cannot be unmapped (source: CUDA Driver API, Virtual Memory Management, cuMemUnmap: it
/// "cannot unmap a sub-range").
#[test]
fn part_of_a_mapping_is_not_unmapped() {
    let _gpu = portable();
    let granule = granule();
    let (physical, range) = (Physical::new(2 * granule), Reserved::new(2 * granule));
    let _mapped = Mapped::new(range.at, &physical);
    copy::fill8(range.at, 5, 2 * granule).expect("a fill");
    assert!(vmm::unmap(range.at, granule).is_err());
    assert!(vmm::unmap(range.plus(granule), granule).is_err());
    assert_eq!(read(range.plus(granule), 64), [5; 64]);
}

/// Rule: one call can unmap several whole mappings that are next to each other (source: CUDA Driver API, Virtual Memory
/// Management, cuMemUnmap: "the entire contiguous address range that was mapped to"; CUDA Samples, vectorAddMMAP, which
/// unmaps the range of all its handles at once).
#[test]
fn several_mappings_are_unmapped_at_once() {
    let _gpu = portable();
    let granule = granule();
    let (first, second) = (Physical::new(granule), Physical::new(granule));
    let range = Reserved::new(2 * granule);
    vmm::map(range.at, granule, 0, first.handle).expect("a mapping");
    vmm::map(range.plus(granule), granule, 0, second.handle).expect("a mapping");
    assert_eq!(
        vmm::set_access(range.at, 2 * granule, 0, READ_WRITE),
        Ok(())
    );
    copy::fill8(range.at, 5, 2 * granule).expect("a fill");
    stream::synchronize(larder_cuda_abi::StreamHandle::NULL).expect("work that ends well");
    assert_eq!(vmm::unmap(range.at, 2 * granule), Ok(()));
    drop(Mapped::new(range.at, &second));
}

/// Rule: an unmapped range has no memory, and new memory can be mapped there (source: CUDA Driver API, Virtual Memory
/// Management, cuMemUnmap).
///
/// Uncertain: whether unmapping a range that is not mapped is refused. On an H200 with driver 580 it is not.
#[test]
fn what_is_not_mapped_stays_so_when_it_is_unmapped() {
    let _gpu = portable();
    let granule = granule();
    let (physical, range) = (Physical::new(granule), Reserved::new(2 * granule));
    let known = [Ok(()), Err(Code::INVALID_VALUE), Err(Code::NOT_MAPPED)];
    for _ in 0..2 {
        let answer = vmm::unmap(range.at, granule);
        assert!(known.contains(&answer), "{answer:?}");
        drop(Mapped::new(range.at, &physical));
    }
}

/// Rule: memory keeps its bytes when it is mapped elsewhere (source: CUDA Driver API, Virtual Memory Management,
/// cuMemUnmap, cuMemMap: only the mapping is removed).
#[test]
fn memory_keeps_its_bytes_when_mapped_elsewhere() {
    let _gpu = portable();
    let granule = granule();
    let (physical, range) = (Physical::new(granule), Reserved::new(2 * granule));
    let mapped = Mapped::new(range.at, &physical);
    copy::to_device(range.at, &[6; 4096]).expect("a copy");
    // The copy may still be running, and unmapping does not wait for it.
    context::synchronize().expect("work that ends well");
    drop(mapped);
    let mapped = Mapped::new(range.plus(granule), &physical);
    assert_eq!(read(mapped.at, 4096), [6; 4096]);
}

/// Rule: mapped memory cannot be freed as an allocation (source: CUDA Driver API, Memory Management, cuMemFree: for
/// memory of cuMemAlloc and similar functions).
#[test]
fn mapped_memory_is_not_freed_as_an_allocation() {
    let _gpu = portable();
    let (physical, range) = (Physical::new(granule()), Reserved::new(granule()));
    let _mapped = Mapped::new(range.at, &physical);
    assert!(memory::free(range.at).is_err());
    copy::to_device(range.at, &[6; 64]).expect("a copy");
    assert_eq!(read(range.at, 64), [6; 64]);
}
