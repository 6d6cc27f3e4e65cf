//! Device, pinned, registered and managed memory.

use cudarc::driver::sys;
use larder_cuda_abi::{DevicePtr, Location, StreamHandle, constants};

use super::{Answer, done, done_raw, host, out, symbol};

/// cuMemAlloc_v2.
pub(crate) fn alloc(bytes: usize) -> Answer<DevicePtr> {
    // SAFETY: the out argument is `out`'s.
    out(|at| unsafe { sys::cuMemAlloc_v2(at, bytes) })
}

/// cuMemAlloc_v2 without a place for the answer.
pub(crate) fn alloc_to_null(bytes: usize) -> Answer {
    // SAFETY: the driver documents that it refuses null.
    done(unsafe { sys::cuMemAlloc_v2(core::ptr::null_mut(), bytes) })
}

/// cuMemAllocPitch_v2: the address and the length of a row.
pub(crate) fn alloc_pitch(width: usize, height: usize, element: u32) -> Answer<(DevicePtr, usize)> {
    let (mut at, mut pitch) = (0, 0);
    // SAFETY: both out arguments are locals.
    done(unsafe { sys::cuMemAllocPitch_v2(&raw mut at, &raw mut pitch, width, height, element) })?;
    Ok((at, pitch))
}

/// cuMemFree_v2.
pub(crate) fn free(at: DevicePtr) -> Answer {
    // SAFETY: the driver looks every address up.
    done(unsafe { sys::cuMemFree_v2(at) })
}

/// cuMemGetInfo_v2: free bytes, all bytes.
pub(crate) fn info() -> Answer<(usize, usize)> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: both out arguments are locals.
    done(unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) })?;
    Ok((free, total))
}

/// cuMemHostAlloc: the host address.
pub(crate) fn host_alloc(bytes: usize, flags: u32) -> Answer<usize> {
    // SAFETY: the out argument is `out`'s.
    out(|at: *mut usize| unsafe { sys::cuMemHostAlloc(at.cast(), bytes, flags) })
}

/// cuMemFreeHost.
pub(crate) fn free_host(address: usize) -> Answer {
    // SAFETY: the driver looks every address up.
    done(unsafe { sys::cuMemFreeHost(host(address)) })
}

/// cuMemHostGetDevicePointer_v2.
pub(crate) fn host_device_pointer(address: usize, flags: u32) -> Answer<DevicePtr> {
    // SAFETY: the out argument is `out`'s; the driver looks every address up.
    out(|at| unsafe { sys::cuMemHostGetDevicePointer_v2(at, host(address), flags) })
}

/// cuMemHostRegister_v2.
pub(crate) fn register(address: usize, bytes: usize, flags: u32) -> Answer {
    // SAFETY: the range is a living buffer of the test's (`own::Pageable`).
    done(unsafe { sys::cuMemHostRegister_v2(host(address), bytes, flags) })
}

/// cuMemHostUnregister.
pub(crate) fn unregister(address: usize) -> Answer {
    // SAFETY: the driver looks every address up.
    done(unsafe { sys::cuMemHostUnregister(host(address)) })
}

/// cuMemAllocManaged.
pub(crate) fn alloc_managed(bytes: usize, flags: u32) -> Answer<DevicePtr> {
    // SAFETY: the out argument is `out`'s.
    out(|at| unsafe { sys::cuMemAllocManaged(at, bytes, flags) })
}

/// A device's number, or the host as [`HOST`], as a place of memory.
fn place(of: i32) -> Location {
    match of {
        HOST => Location {
            kind: constants::MEM_LOCATION_HOST,
            id: 0,
        },
        id => Location {
            kind: constants::MEM_LOCATION_DEVICE,
            id,
        },
    }
}

/// The host, where a device's number may stand.
pub(crate) const HOST: i32 = -1;

/// cuMemPrefetchAsync_v2, to a device or to the host.
pub(crate) fn prefetch(at: DevicePtr, bytes: usize, to: i32, stream: StreamHandle) -> Answer {
    type Prefetch = unsafe extern "C" fn(DevicePtr, usize, Location, u32, StreamHandle) -> u32;
    // SAFETY: the type is the function's C prototype.
    let call = unsafe { symbol::<Prefetch>("cuMemPrefetchAsync_v2") };
    // SAFETY: C2; the driver looks the address up.
    done_raw(unsafe { call(at, bytes, place(to), 0, stream) })
}

/// cuMemAdvise_v2.
pub(crate) fn advise(at: DevicePtr, bytes: usize, advice: u32, device: i32) -> Answer {
    type Advise = unsafe extern "C" fn(DevicePtr, usize, u32, Location) -> u32;
    // SAFETY: the function's type, with the enumeration as the number it is in C.
    let call = unsafe { symbol::<Advise>("cuMemAdvise_v2") };
    // SAFETY: the driver looks the address up.
    done_raw(unsafe { call(at, bytes, advice, place(device)) })
}
