//! Virtual memory: reservations, physical memory, mappings.

use core::ptr::without_provenance_mut;

use larder_cuda_abi::{
    AccessDesc, AllocFlags, AllocationProp, DevicePtr, Location, MemoryHandle, constants,
};

use super::Answer;

pub(crate) const fn on_device(id: i32) -> Location {
    Location {
        kind: constants::MEM_LOCATION_DEVICE,
        id,
    }
}

/// Returns the properties of pinned memory on a device that can be exported as `handle_types`.
pub(crate) const fn properties(device: i32, handle_types: u32) -> AllocationProp {
    AllocationProp {
        kind: constants::MEM_ALLOCATION_TYPE_PINNED,
        handle_types,
        location: on_device(device),
        win32_meta_data: core::ptr::null_mut(),
        flags: AllocFlags {
            compression: 0,
            rdma_capable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

bindings! {
    fn granularity(properties: &AllocationProp, option: u32) -> usize {
        |at| cuMemGetAllocationGranularity(at, properties, option)
    }
    fn reserve(bytes: usize, alignment: usize, wish: DevicePtr, flags: u64) -> DevicePtr {
        |at| cuMemAddressReserve(at, bytes, alignment, wish, flags)
    }
    fn free_address(at: DevicePtr, bytes: usize) { cuMemAddressFree(at, bytes) }
    fn create(bytes: usize, properties: &AllocationProp, flags: u64) -> MemoryHandle {
        |at| cuMemCreate(at, bytes, properties, flags)
    }
    fn retain(at: DevicePtr) -> MemoryHandle {
        |handle| cuMemRetainAllocationHandle(handle, without_provenance_mut(at as usize))
    }
    fn release(handle: MemoryHandle) { cuMemRelease(handle) }
    fn map(at: DevicePtr, bytes: usize, offset: usize, handle: MemoryHandle) {
        cuMemMap(at, bytes, offset, handle, 0)
    }
    fn unmap(at: DevicePtr, bytes: usize) { cuMemUnmap(at, bytes) }
    fn set_accesses(at: DevicePtr, bytes: usize, all: &[AccessDesc]) {
        cuMemSetAccess(at, bytes, all.as_ptr(), all.len())
    }
    fn access_of(at: DevicePtr, location: &Location) -> u64 { |flags| cuMemGetAccess(flags, location, at) }
    /// Takes the descriptor in the bits of a pointer.
    fn import_word(word: usize) -> MemoryHandle {
        |at| cuMemImportFromShareableHandle(at, without_provenance_mut(word), FILE_DESCRIPTOR)
    }
}

const FILE_DESCRIPTOR: u32 = constants::MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

pub(crate) fn set_access(at: DevicePtr, bytes: usize, device: i32, flags: u32) -> Answer {
    let location = on_device(device);
    set_accesses(at, bytes, &[AccessDesc { location, flags }])
}

pub(crate) fn access(at: DevicePtr, device: i32) -> Answer<u64> {
    access_of(at, &on_device(device))
}

pub(crate) fn export(handle: MemoryHandle) -> Answer<i32> {
    let mut descriptor = -1_i32;
    let place = (&raw mut descriptor).cast();
    // SAFETY: C2; the driver writes a file descriptor, which is an `i32`.
    unsafe { function!(cuMemExportToShareableHandle)(place, handle, FILE_DESCRIPTOR, 0) }
        .check()?;
    Ok(descriptor)
}

pub(crate) fn import(descriptor: i32) -> Answer<MemoryHandle> {
    import_word(usize::try_from(descriptor).expect("an open descriptor"))
}
