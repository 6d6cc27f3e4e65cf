//! Device, pinned, registered and managed memory.

use core::{ffi::c_void, ptr::null_mut};

use larder_cuda_abi::{DevicePtr, Location, StreamHandle, constants};

use super::{Answer, host, virtual_memory::on_device};

bindings! {
    fn alloc(bytes: usize) -> DevicePtr { |at| cuMemAlloc_v2(at, bytes) }
    fn alloc_to_null(bytes: usize) { cuMemAlloc_v2(null_mut(), bytes) }
    /// Returns the address, and the length of a row.
    fn alloc_pitch(width: usize, height: usize, element: u32) -> (DevicePtr, usize) {
        |at, pitch| cuMemAllocPitch_v2(at, pitch, width, height, element)
    }
    fn free(at: DevicePtr) { cuMemFree_v2(at) }
    fn info() -> (usize, usize) { |free, total| cuMemGetInfo_v2(free, total) }
    fn host_alloc_raw(bytes: usize, flags: u32) -> *mut c_void { |at| cuMemHostAlloc(at, bytes, flags) }
    fn free_host(address: usize) { cuMemFreeHost(host(address)) }
    fn host_device_pointer(address: usize, flags: u32) -> DevicePtr {
        |at| cuMemHostGetDevicePointer_v2(at, host(address), flags)
    }
    /// Registers host memory, which must be alive (`Host::pageable`).
    fn register(address: usize, bytes: usize, flags: u32) {
        cuMemHostRegister_v2(host(address), bytes, flags)
    }
    fn unregister(address: usize) { cuMemHostUnregister(host(address)) }
    fn alloc_managed(bytes: usize, flags: u32) -> DevicePtr { |at| cuMemAllocManaged(at, bytes, flags) }
    /// Prefetches to a device, or to the [`HOST`].
    fn prefetch(at: DevicePtr, bytes: usize, to: i32, stream: StreamHandle) {
        cuMemPrefetchAsync_v2(at, bytes, place(to), 0, stream)
    }
    fn advise(at: DevicePtr, bytes: usize, advice: u32, device: i32) {
        cuMemAdvise_v2(at, bytes, advice, place(device))
    }
}

pub(crate) fn host_alloc(bytes: usize, flags: u32) -> Answer<usize> {
    host_alloc_raw(bytes, flags).map(<*mut _>::expose_provenance)
}

/// The host, in place of a device number.
pub(crate) const HOST: i32 = -1;

/// Returns the location of a device number, or of the [`HOST`].
const fn place(of: i32) -> Location {
    match of {
        HOST => Location {
            kind: constants::MEM_LOCATION_HOST,
            id: 0,
        },
        id => on_device(id),
    }
}
