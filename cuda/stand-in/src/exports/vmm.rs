//! Virtual memory: addresses, physical memory, and mappings.
//!
//! No context is needed. Physical memory is always on a device; host memory is not supported.
//! Memory is exported only as a file descriptor. The devices report that network cards may reach
//! it, which has no effect here.

use core::ffi::c_void;

use larder_cuda_abi::constants as c;
use larder_cuda_abi::{AccessDesc, AllocationProp, Code, DevicePtr, Location, MemoryHandle};

use super::device_of;
use crate::driver::SimDriver;
use crate::entry::{answer, call};
use crate::ffi::{In, Out};
use crate::space::{GRANULARITY, PhysicalRequest};

/// Refuses a call for virtual memory if the devices have none.
fn check_supported(driver: &SimDriver) -> Result<(), Code> {
    match driver.virtual_memory {
        true => Ok(()),
        false => Err(Code::NOT_SUPPORTED),
    }
}

/// Reads the properties of the requested physical memory.
fn wanted(driver: &SimDriver, prop: &In<AllocationProp>) -> Result<PhysicalRequest, Code> {
    check_supported(driver)?;
    let prop = prop.get()?;
    if prop.kind != c::MEM_ALLOCATION_TYPE_PINNED {
        return Err(Code::INVALID_VALUE);
    }
    let device = device_of(driver, prop.location)?;
    if prop.flags.usage != 0 {
        return Err(Code::NOT_SUPPORTED);
    }
    let shareable = match prop.handle_types {
        c::MEM_HANDLE_TYPE_NONE => false,
        c::MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR => true,
        _ => return Err(Code::NOT_SUPPORTED),
    };
    Ok(PhysicalRequest { device, shareable })
}

/// Refuses exports other than as a file descriptor.
fn check_handle_type(handle_type: u32) -> Result<(), Code> {
    match handle_type {
        c::MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR => Ok(()),
        c::MEM_HANDLE_TYPE_NONE => Err(Code::INVALID_VALUE),
        _ => Err(Code::NOT_SUPPORTED),
    }
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemGetAllocationGranularity(
    granularity: Out<usize>,
    prop: In<AllocationProp>,
    option: u32,
) -> Code {
    answer("cuMemGetAllocationGranularity", granularity, |driver| {
        wanted(driver, &prop)?;
        if option > c::MEM_GRANULARITY_RECOMMENDED {
            return Err(Code::INVALID_VALUE);
        }
        Ok(GRANULARITY as usize)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemAddressReserve(
    at: Out<DevicePtr>,
    bytes: usize,
    align: usize,
    wish: DevicePtr,
    flags: u64,
) -> Code {
    answer("cuMemAddressReserve", at, |driver| {
        check_supported(driver)?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        driver.space.reserve(bytes as u64, align as u64, wish)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemAddressFree(at: DevicePtr, bytes: usize) -> Code {
    call("cuMemAddressFree", |driver| {
        driver.space.unreserve(at, bytes as u64)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemCreate(
    handle: Out<MemoryHandle>,
    bytes: usize,
    prop: In<AllocationProp>,
    flags: u64,
) -> Code {
    answer("cuMemCreate", handle, |driver| {
        let wanted = wanted(driver, &prop)?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let number = driver.handles.next() as u64;
        driver.space.create(number, wanted, bytes as u64)?;
        Ok(MemoryHandle(number))
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemRelease(handle: MemoryHandle) -> Code {
    call("cuMemRelease", |driver| driver.release(handle.0))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemRetainAllocationHandle(
    handle: Out<MemoryHandle>,
    at: In<c_void>,
) -> Code {
    answer("cuMemRetainAllocationHandle", handle, |driver| {
        driver.space.retain(at.addr()).map(MemoryHandle)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemMap(
    at: DevicePtr,
    bytes: usize,
    offset: usize,
    handle: MemoryHandle,
    flags: u64,
) -> Code {
    call("cuMemMap", |driver| {
        if offset != 0 || flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        driver.space.map(at, bytes as u64, handle.0)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemUnmap(at: DevicePtr, bytes: usize) -> Code {
    call("cuMemUnmap", |driver| driver.unmap(at, bytes as u64))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemSetAccess(
    at: DevicePtr,
    bytes: usize,
    rights: In<AccessDesc>,
    count: usize,
) -> Code {
    call("cuMemSetAccess", |driver| {
        if count == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let mut known = Vec::new();
        for right in rights.slice(count)? {
            let device = device_of(driver, right.location)?;
            if !matches!(
                right.flags,
                c::MEM_ACCESS_NONE | c::MEM_ACCESS_READ | c::MEM_ACCESS_READ_WRITE
            ) {
                return Err(Code::INVALID_VALUE);
            }
            known.push((device, right.flags));
        }
        driver.set_access(at, bytes as u64, &known)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemGetAccess(
    flags: Out<u64>,
    location: In<Location>,
    at: DevicePtr,
) -> Code {
    answer("cuMemGetAccess", flags, |driver| {
        let device = device_of(driver, location.get()?)?;
        Ok(u64::from(driver.space.access_at(at, device)?))
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemExportToShareableHandle(
    descriptor: Out<c_void>,
    handle: MemoryHandle,
    handle_type: u32,
    flags: u64,
) -> Code {
    answer(
        "cuMemExportToShareableHandle",
        descriptor.cast(),
        |driver| {
            if flags != 0 {
                return Err(Code::INVALID_VALUE);
            }
            check_handle_type(handle_type)?;
            driver.space.export(handle.0)
        },
    )
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemImportFromShareableHandle(
    handle: Out<MemoryHandle>,
    descriptor: usize,
    handle_type: u32,
) -> Code {
    answer("cuMemImportFromShareableHandle", handle, |driver| {
        check_handle_type(handle_type)?;
        // C passes the number as a pointer.
        let descriptor = i32::try_from(descriptor).map_err(|_| Code::INVALID_VALUE)?;
        let (number, devices) = (driver.handles.next() as u64, driver.devices.len());
        driver.space.import(number, descriptor, devices)?;
        Ok(MemoryHandle(number))
    })
}
