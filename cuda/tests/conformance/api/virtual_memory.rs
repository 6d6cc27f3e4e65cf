//! Virtual memory: reservations, physical memory, mappings.

use std::ffi::c_void;

use larder_cuda_abi::{
    AccessDesc, AllocFlags, AllocationProp, DevicePtr, Location, MemoryHandle, constants,
};

use super::{Answer, out};

/// A device as a place of memory.
pub(crate) const fn on_device(id: i32) -> Location {
    Location {
        kind: constants::MEM_LOCATION_DEVICE,
        id,
    }
}

/// Pinned memory of a device; the handle may be exported in the ways of `handle_types`.
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

/// cuMemGetAllocationGranularity.
pub(crate) fn granularity(properties: &AllocationProp, option: u32) -> Answer<usize> {
    // SAFETY: the out argument is `out`'s.
    out(|at| unsafe { function!(cuMemGetAllocationGranularity)(at, properties, option) })
}

/// cuMemAddressReserve.
pub(crate) fn reserve(
    bytes: usize,
    alignment: usize,
    wish: DevicePtr,
    flags: u64,
) -> Answer<DevicePtr> {
    // SAFETY: the out argument is `out`'s.
    out(|at| unsafe { function!(cuMemAddressReserve)(at, bytes, alignment, wish, flags) })
}

/// cuMemRetainAllocationHandle.
pub(crate) fn retain(at: DevicePtr) -> Answer<MemoryHandle> {
    let at = core::ptr::without_provenance_mut(at as usize);
    // SAFETY: the out argument is `out`'s; the driver looks every address up.
    out(|handle| unsafe { function!(cuMemRetainAllocationHandle)(handle, at) })
}

/// cuMemAddressFree.
pub(crate) fn free_address(at: DevicePtr, bytes: usize) -> Answer {
    // SAFETY: the driver looks the address up.
    unsafe { function!(cuMemAddressFree)(at, bytes) }.check()
}

/// cuMemCreate.
pub(crate) fn create(
    bytes: usize,
    properties: &AllocationProp,
    flags: u64,
) -> Answer<MemoryHandle> {
    // SAFETY: the structure is a local's; the out argument is `out`'s.
    out(|at| unsafe { function!(cuMemCreate)(at, bytes, properties, flags) })
}

/// cuMemRelease.
pub(crate) fn release(handle: MemoryHandle) -> Answer {
    // SAFETY: C2: the handle came from the driver and was not destroyed.
    unsafe { function!(cuMemRelease)(handle) }.check()
}

/// cuMemMap.
pub(crate) fn map(at: DevicePtr, bytes: usize, offset: usize, handle: MemoryHandle) -> Answer {
    // SAFETY: C2; the driver looks the address up.
    unsafe { function!(cuMemMap)(at, bytes, offset, handle, 0) }.check()
}

/// cuMemUnmap.
pub(crate) fn unmap(at: DevicePtr, bytes: usize) -> Answer {
    // SAFETY: the driver looks the address up.
    unsafe { function!(cuMemUnmap)(at, bytes) }.check()
}

/// cuMemSetAccess for one device.
pub(crate) fn set_access(at: DevicePtr, bytes: usize, device: i32, flags: u32) -> Answer {
    let one = AccessDesc {
        location: on_device(device),
        flags,
    };
    // SAFETY: one structure of a local; the driver looks the address up.
    unsafe { function!(cuMemSetAccess)(at, bytes, &raw const one, 1) }.check()
}

/// cuMemGetAccess of one device.
pub(crate) fn access(at: DevicePtr, device: i32) -> Answer<u64> {
    let location = on_device(device);
    // SAFETY: the structure is a local's; the out argument is `out`'s.
    out(|flags| unsafe { function!(cuMemGetAccess)(flags, &raw const location, at) })
}

/// cuMemExportToShareableHandle as a file descriptor.
pub(crate) fn export(handle: MemoryHandle) -> Answer<i32> {
    let mut descriptor = -1_i32;
    let kind = constants::MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    // SAFETY: C2; a file descriptor is written, which is an `i32`.
    unsafe {
        function!(cuMemExportToShareableHandle)((&raw mut descriptor).cast(), handle, kind, 0)
    }
    .check()?;
    Ok(descriptor)
}

/// cuMemImportFromShareableHandle of a file descriptor.
pub(crate) fn import(descriptor: i32) -> Answer<MemoryHandle> {
    let word = usize::try_from(descriptor).expect("an open descriptor") as *mut c_void;
    let kind = constants::MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    // SAFETY: the out argument is `out`'s; the descriptor travels in the pointer's bits.
    out(|at| unsafe { function!(cuMemImportFromShareableHandle)(at, word, kind) })
}
