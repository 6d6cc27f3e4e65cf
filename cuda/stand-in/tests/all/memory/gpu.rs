//! The stand-in's functions, linked in, and a few words to write tests with.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::MutexGuard;

use larder_cuda_abi::constants as c;
use larder_cuda_abi::{AccessDesc, AllocFlags, AllocationProp, Code, Location};

use crate::common;
pub(crate) use crate::common::{GRANULARITY, findings, made, ok, read};
pub(crate) use crate::driver::*;

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
    let mut descriptor = -1;
    let place = &raw mut descriptor as usize;
    ok(cuMemExportToShareableHandle(place, handle, kind, 0));
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

/// An attribute of an address; what the driver left alone stays zero.
pub(crate) fn ask(attribute: u32, at: u64) -> Result<u64, Code> {
    let mut value = 0_u64;
    cuPointerGetAttribute(&raw mut value as usize, attribute, at).check()?;
    Ok(value)
}
