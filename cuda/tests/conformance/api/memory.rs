//! Device, pinned, registered and managed memory.

use larder_cuda_abi::{DevicePtr, Location, StreamHandle, constants};

use super::{Answer, host, out};

/// cuMemAlloc_v2.
pub(crate) fn alloc(bytes: usize) -> Answer<DevicePtr> {
    // SAFETY: the out argument is `out`'s.
    out(|at| unsafe { function!(cuMemAlloc_v2)(at, bytes) })
}

/// cuMemAlloc_v2 without a place for the answer.
pub(crate) fn alloc_to_null(bytes: usize) -> Answer {
    // SAFETY: the driver documents that it refuses null.
    unsafe { function!(cuMemAlloc_v2)(core::ptr::null_mut(), bytes) }.check()
}

/// cuMemAllocPitch_v2: the address and the length of a row.
pub(crate) fn alloc_pitch(width: usize, height: usize, element: u32) -> Answer<(DevicePtr, usize)> {
    let (mut at, mut pitch) = (0, 0);
    // SAFETY: both out arguments are locals.
    unsafe { function!(cuMemAllocPitch_v2)(&raw mut at, &raw mut pitch, width, height, element) }
        .check()?;
    Ok((at, pitch))
}

/// cuMemFree_v2.
pub(crate) fn free(at: DevicePtr) -> Answer {
    // SAFETY: the driver looks every address up.
    unsafe { function!(cuMemFree_v2)(at) }.check()
}

/// cuMemGetInfo_v2: free bytes, all bytes.
pub(crate) fn info() -> Answer<(usize, usize)> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: both out arguments are locals.
    unsafe { function!(cuMemGetInfo_v2)(&raw mut free, &raw mut total) }.check()?;
    Ok((free, total))
}

/// cuMemHostAlloc: the host address.
pub(crate) fn host_alloc(bytes: usize, flags: u32) -> Answer<usize> {
    // SAFETY: the out argument is `out`'s.
    out(|at| unsafe { function!(cuMemHostAlloc)(at, bytes, flags) })
        .map(<*mut _>::expose_provenance)
}

/// cuMemFreeHost.
pub(crate) fn free_host(address: usize) -> Answer {
    // SAFETY: the driver looks every address up.
    unsafe { function!(cuMemFreeHost)(host(address)) }.check()
}

/// cuMemHostGetDevicePointer_v2.
pub(crate) fn host_device_pointer(address: usize, flags: u32) -> Answer<DevicePtr> {
    // SAFETY: the out argument is `out`'s; the driver looks every address up.
    out(|at| unsafe { function!(cuMemHostGetDevicePointer_v2)(at, host(address), flags) })
}

/// cuMemHostRegister_v2.
pub(crate) fn register(address: usize, bytes: usize, flags: u32) -> Answer {
    // SAFETY: the range is a living buffer of the test's (`own::Pageable`).
    unsafe { function!(cuMemHostRegister_v2)(host(address), bytes, flags) }.check()
}

/// cuMemHostUnregister.
pub(crate) fn unregister(address: usize) -> Answer {
    // SAFETY: the driver looks every address up.
    unsafe { function!(cuMemHostUnregister)(host(address)) }.check()
}

/// cuMemAllocManaged.
pub(crate) fn alloc_managed(bytes: usize, flags: u32) -> Answer<DevicePtr> {
    // SAFETY: the out argument is `out`'s.
    out(|at| unsafe { function!(cuMemAllocManaged)(at, bytes, flags) })
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
    // SAFETY: C2; the driver looks the address up.
    unsafe { function!(cuMemPrefetchAsync_v2)(at, bytes, place(to), 0, stream) }.check()
}

/// cuMemAdvise_v2.
pub(crate) fn advise(at: DevicePtr, bytes: usize, advice: u32, device: i32) -> Answer {
    // SAFETY: the driver looks the address up.
    unsafe { function!(cuMemAdvise_v2)(at, bytes, advice, place(device)) }.check()
}
