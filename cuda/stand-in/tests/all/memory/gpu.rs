//! The stand-in's functions, linked in, and a few words to write tests with.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::MutexGuard;

use larder_cuda_abi::constants as c;
use larder_cuda_abi::{AccessDesc, AllocFlags, AllocationProp, Code, Location};

use crate::common;
pub(crate) use crate::common::{GRANULARITY, findings, made, ok};

unsafe extern "C" {
    safe fn cuInit(flags: u32) -> Code;
    safe fn cuDevicePrimaryCtxRetain(context: &mut usize, device: i32) -> Code;
    pub(crate) safe fn cuDevicePrimaryCtxRelease_v2(device: i32) -> Code;
    pub(crate) safe fn cuCtxSetCurrent(context: usize) -> Code;
    pub(crate) safe fn cuCtxSynchronize() -> Code;
    pub(crate) safe fn cuStreamCreate(stream: &mut usize, flags: u32) -> Code;
    pub(crate) safe fn cuStreamSynchronize(stream: usize) -> Code;
    pub(crate) safe fn cuStreamQuery(stream: usize) -> Code;
    pub(crate) safe fn cuMemGetInfo_v2(free: &mut usize, total: &mut usize) -> Code;
    pub(crate) safe fn cuDeviceTotalMem_v2(bytes: &mut usize, device: i32) -> Code;
    pub(crate) safe fn cuMemAlloc_v2(at: &mut u64, bytes: usize) -> Code;
    pub(crate) safe fn cuMemFree_v2(at: u64) -> Code;
    pub(crate) safe fn cuMemsetD8_v2(to: u64, value: u8, count: usize) -> Code;
    pub(crate) safe fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: usize) -> Code;
    pub(crate) safe fn cuMemcpyDtoH_v2(to: *mut u8, from: u64, bytes: usize) -> Code;
    pub(crate) safe fn cuMemcpyHtoD_v2(to: u64, from: *const u8, bytes: usize) -> Code;
    pub(crate) safe fn cuMemcpyHtoDAsync_v2(to: u64, from: usize, bytes: usize, s: usize) -> Code;
    pub(crate) safe fn cuMemcpyDtoHAsync_v2(to: usize, from: u64, bytes: usize, s: usize) -> Code;
    pub(crate) safe fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) -> Code;
    pub(crate) safe fn cuMemcpyPeerAsync(
        to: u64,
        tc: usize,
        from: u64,
        fc: usize,
        n: usize,
        s: usize,
    ) -> Code;

    pub(crate) safe fn cuMemGetAllocationGranularity(
        granularity: &mut usize,
        prop: &AllocationProp,
        option: u32,
    ) -> Code;
    pub(crate) safe fn cuMemAddressReserve(
        at: &mut u64,
        bytes: usize,
        align: usize,
        wish: u64,
        flags: u64,
    ) -> Code;
    pub(crate) safe fn cuMemAddressFree(at: u64, bytes: usize) -> Code;
    pub(crate) safe fn cuMemCreate(
        handle: &mut u64,
        bytes: usize,
        prop: &AllocationProp,
        flags: u64,
    ) -> Code;
    pub(crate) safe fn cuMemRelease(handle: u64) -> Code;
    pub(crate) safe fn cuMemMap(at: u64, bytes: usize, offset: usize, h: u64, flags: u64) -> Code;
    pub(crate) safe fn cuMemUnmap(at: u64, bytes: usize) -> Code;
    pub(crate) safe fn cuMemSetAccess(
        at: u64,
        bytes: usize,
        rights: *const AccessDesc,
        count: usize,
    ) -> Code;
    pub(crate) safe fn cuMemExportToShareableHandle(
        descriptor: &mut i32,
        handle: u64,
        handle_type: u32,
        flags: u64,
    ) -> Code;
    pub(crate) safe fn cuMemImportFromShareableHandle(
        handle: &mut u64,
        descriptor: usize,
        handle_type: u32,
    ) -> Code;
    pub(crate) safe fn cuMemGetAccess(flags: &mut u64, location: &Location, at: u64) -> Code;

    pub(crate) safe fn cuMemHostAlloc(at: &mut usize, bytes: usize, flags: u32) -> Code;
    pub(crate) safe fn cuMemFreeHost(at: usize) -> Code;
    pub(crate) safe fn cuMemHostGetDevicePointer_v2(to: &mut u64, at: usize, flags: u32) -> Code;
    pub(crate) safe fn cuMemHostRegister_v2(at: usize, bytes: usize, flags: u32) -> Code;
    pub(crate) safe fn cuMemHostUnregister(at: usize) -> Code;
    pub(crate) safe fn cuMemAllocManaged(at: &mut u64, bytes: usize, flags: u32) -> Code;
    pub(crate) safe fn cuMemPrefetchAsync_v2(
        at: u64,
        bytes: usize,
        location: Location,
        flags: u32,
        stream: usize,
    ) -> Code;
    pub(crate) safe fn cuMemAdvise_v2(at: u64, bytes: usize, advice: u32, l: Location) -> Code;
    pub(crate) safe fn cuStreamAttachMemAsync(s: usize, at: u64, bytes: usize, flags: u32) -> Code;
    pub(crate) safe fn cuPointerGetAttribute(data: &mut u64, attribute: u32, at: u64) -> Code;

    pub(crate) safe fn larder_stand_in_schedule(deferred: u32, seed: u64);
    pub(crate) safe fn larder_stand_in_reset(devices: u32, bytes: u64);
    pub(crate) safe fn larder_stand_in_poison(on: u32);
    pub(crate) safe fn larder_stand_in_mapping_waits(on: u32) -> u32;
    pub(crate) safe fn larder_stand_in_set_pinned(bytes: u64);
    pub(crate) safe fn larder_stand_in_managed_concurrently(on: u32);
    pub(crate) safe fn larder_stand_in_used(device: i32) -> u64;
    pub(crate) safe fn larder_stand_in_share(path: *const std::ffi::c_char) -> Code;
    pub(crate) safe fn larder_stand_in_set_memory(device: i32, bytes: u64) -> Code;
}

/// Memory of each device of [`gpu`].
pub(crate) const DEVICE: usize = 64 << 20;

/// Two devices, the first one's primary context current.
pub(crate) struct Gpu {
    /// Primary contexts.
    pub(crate) contexts: [usize; 2],
    _one: MutexGuard<'static, ()>,
}

pub(crate) fn gpu() -> Gpu {
    let one = common::alone();
    larder_stand_in_reset(2, DEVICE as u64);
    open(one)
}

/// The driver as the environment says, for a process of its own.
pub(crate) fn gpu_of_environment() -> Gpu {
    open(common::alone())
}

fn open(one: MutexGuard<'static, ()>) -> Gpu {
    ok(cuInit(0));
    let contexts = [0, 1].map(|device| made(|out| cuDevicePrimaryCtxRetain(out, device)));
    ok(cuCtxSetCurrent(contexts[0]));
    Gpu {
        contexts,
        _one: one,
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        larder_stand_in_reset(2, DEVICE as u64);
        assert!(alive().is_empty() || std::thread::panicking());
        cuCtxSetCurrent(0);
    }
}

/// Memory of a device.
pub(crate) fn prop(device: i32) -> AllocationProp {
    AllocationProp {
        kind: c::MEM_ALLOCATION_TYPE_PINNED,
        handle_types: c::MEM_HANDLE_TYPE_NONE,
        location: Location {
            kind: c::MEM_LOCATION_DEVICE,
            id: device,
        },
        win32_meta_data: ptr::null_mut(),
        flags: AllocFlags::default(),
    }
}

/// The access of a device to a mapping.
pub(crate) fn right(device: i32, flags: u32) -> AccessDesc {
    AccessDesc {
        location: Location {
            kind: c::MEM_LOCATION_DEVICE,
            id: device,
        },
        flags,
    }
}

pub(crate) fn reserve(bytes: usize) -> u64 {
    made(|at| cuMemAddressReserve(at, bytes, 0, 0, 0))
}

pub(crate) fn create(bytes: usize) -> u64 {
    made(|handle| cuMemCreate(handle, bytes, &prop(0), 0))
}

/// Memory of the first device that may be exported.
pub(crate) fn create_shareable(bytes: usize) -> u64 {
    let mut prop = prop(0);
    prop.handle_types = c::MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    prop.flags.rdma_capable = 1;
    made(|handle| cuMemCreate(handle, bytes, &prop, 0))
}

/// A descriptor of a handle's memory.
pub(crate) fn export(handle: u64) -> File {
    let kind = c::MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    let descriptor = made(|out| cuMemExportToShareableHandle(out, handle, kind, 0));
    // SAFETY: the driver has just given it to us.
    File::from(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// A handle of a descriptor's memory.
pub(crate) fn import(file: &File) -> u64 {
    let kind = c::MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    let descriptor = usize::try_from(file.as_raw_fd()).unwrap();
    made(|handle| cuMemImportFromShareableHandle(handle, descriptor, kind))
}

/// Sets what one device may do.
pub(crate) fn allow(at: u64, bytes: usize, device: i32, flags: u32) -> Code {
    cuMemSetAccess(at, bytes, &right(device, flags), 1)
}

/// Maps a handle where the first device reads and writes it.
pub(crate) fn map(at: u64, bytes: usize, handle: u64) {
    ok(cuMemMap(at, bytes, 0, handle, 0));
    ok(allow(at, bytes, 0, c::MEM_ACCESS_READ_WRITE));
}

/// Bytes of device memory.
#[track_caller]
pub(crate) fn read(from: u64, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    ok(cuMemcpyDtoH_v2(bytes.as_mut_ptr(), from, count));
    bytes
}

/// Free memory of the current device.
pub(crate) fn free() -> usize {
    let (mut free, mut total) = (0, 0);
    ok(cuMemGetInfo_v2(&mut free, &mut total));
    free
}

/// What exists, but for contexts.
pub(crate) fn alive() -> String {
    let all = common::alive();
    let lines = all.lines().filter(|line| !line.starts_with("context"));
    lines.collect::<Vec<_>>().join(", ")
}
