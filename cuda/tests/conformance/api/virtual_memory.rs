//! Virtual memory: reservations, physical memory, mappings.

use std::ffi::c_void;

use cudarc::driver::sys;
use larder_cuda_abi::{
    AccessDesc, AllocFlags, AllocationProp, DevicePtr, Location, MemoryHandle, constants,
};

use super::{Answer, done, done_raw, out, symbol};

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
    type Get = unsafe extern "C" fn(*mut usize, *const AllocationProp, u32) -> u32;
    // SAFETY: the function's type, with the enumeration as the number it is in C.
    let call = unsafe { symbol::<Get>("cuMemGetAllocationGranularity") };
    let mut bytes = 0;
    // SAFETY: the out argument is a local's.
    done_raw(unsafe { call(&raw mut bytes, properties, option) })?;
    Ok(bytes)
}

/// cuMemAddressReserve.
pub(crate) fn reserve(
    bytes: usize,
    alignment: usize,
    wish: DevicePtr,
    flags: u64,
) -> Answer<DevicePtr> {
    // SAFETY: the out argument is `out`'s.
    out(|at| unsafe { sys::cuMemAddressReserve(at, bytes, alignment, wish, flags) })
}

/// cuMemRetainAllocationHandle.
pub(crate) fn retain(at: DevicePtr) -> Answer<MemoryHandle> {
    let at = core::ptr::without_provenance_mut(at as usize);
    // SAFETY: the out argument is `out`'s; the driver looks every address up.
    out(|handle| unsafe { sys::cuMemRetainAllocationHandle(handle, at) }).map(MemoryHandle)
}

/// cuMemAddressFree.
pub(crate) fn free_address(at: DevicePtr, bytes: usize) -> Answer {
    // SAFETY: the driver looks the address up.
    done(unsafe { sys::cuMemAddressFree(at, bytes) })
}

/// cuMemCreate.
pub(crate) fn create(
    bytes: usize,
    properties: &AllocationProp,
    flags: u64,
) -> Answer<MemoryHandle> {
    let properties = (&raw const *properties).cast();
    // SAFETY: the structure has the layout of CUDA's; the out argument is `out`'s.
    out(|at| unsafe { sys::cuMemCreate(at, bytes, properties, flags) }).map(MemoryHandle)
}

/// cuMemRelease.
pub(crate) fn release(handle: MemoryHandle) -> Answer {
    // SAFETY: C2: the handle came from the driver and was not destroyed.
    done(unsafe { sys::cuMemRelease(handle.0) })
}

/// cuMemMap.
pub(crate) fn map(at: DevicePtr, bytes: usize, offset: usize, handle: MemoryHandle) -> Answer {
    // SAFETY: C2; the driver looks the address up.
    done(unsafe { sys::cuMemMap(at, bytes, offset, handle.0, 0) })
}

/// cuMemUnmap.
pub(crate) fn unmap(at: DevicePtr, bytes: usize) -> Answer {
    // SAFETY: the driver looks the address up.
    done(unsafe { sys::cuMemUnmap(at, bytes) })
}

/// cuMemSetAccess for one device.
pub(crate) fn set_access(at: DevicePtr, bytes: usize, device: i32, flags: u32) -> Answer {
    let one = AccessDesc {
        location: on_device(device),
        flags,
    };
    // SAFETY: one structure with the layout of CUDA's; the driver looks the address up.
    done(unsafe { sys::cuMemSetAccess(at, bytes, (&raw const one).cast(), 1) })
}

/// cuMemGetAccess of one device.
pub(crate) fn access(at: DevicePtr, device: i32) -> Answer<u64> {
    let location = on_device(device);
    let location = (&raw const location).cast();
    // SAFETY: the structure has the layout of CUDA's; the out argument is `out`'s.
    out(|flags| unsafe { sys::cuMemGetAccess(flags, location, at) })
}

/// cuMemExportToShareableHandle as a file descriptor.
pub(crate) fn export(handle: MemoryHandle) -> Answer<i32> {
    type Export = unsafe extern "C" fn(*mut c_void, u64, u32, u64) -> u32;
    // SAFETY: the function's type, with the enumeration as the number it is in C.
    let call = unsafe { symbol::<Export>("cuMemExportToShareableHandle") };
    let mut descriptor = -1_i32;
    let kind = constants::MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    // SAFETY: C2; a file descriptor is written, which is an `i32`.
    done_raw(unsafe { call((&raw mut descriptor).cast(), handle.0, kind, 0) })?;
    Ok(descriptor)
}

/// cuMemImportFromShareableHandle of a file descriptor.
pub(crate) fn import(descriptor: i32) -> Answer<MemoryHandle> {
    type Import = unsafe extern "C" fn(*mut u64, *mut c_void, u32) -> u32;
    // SAFETY: the function's type, with the enumeration as the number it is in C.
    let call = unsafe { symbol::<Import>("cuMemImportFromShareableHandle") };
    let mut handle = 0;
    let word = usize::try_from(descriptor).expect("an open descriptor") as *mut c_void;
    let kind = constants::MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    // SAFETY: the out argument is a local's; the descriptor travels in the pointer's bits.
    done_raw(unsafe { call(&raw mut handle, word, kind) })?;
    Ok(MemoryHandle(handle))
}
