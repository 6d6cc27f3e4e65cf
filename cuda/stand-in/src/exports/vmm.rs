//! Virtual memory: addresses, physical memory, and which lies at which.
//!
//! No context is needed. Physical memory is always a device's; memory of the host is not supported.

use larder_cuda_abi::constants as c;
use larder_cuda_abi::{AccessDesc, AllocationProp, Code, DevicePtr, Location, MemoryHandle};

use crate::driver::Driver;
use crate::entry::call;
use crate::ffi::{In, Out};
use crate::space::{GRANULARITY, Wanted};

/// A device by its location. Places on the host exist but are not supported.
fn device_of(driver: &Driver, location: Location) -> Result<usize, Code> {
    match location.kind {
        c::MEM_LOCATION_DEVICE => Ok(driver.device(location.id)?.ordinal),
        c::MEM_LOCATION_HOST | c::MEM_LOCATION_HOST_NUMA => Err(Code::NOT_SUPPORTED),
        _ => Err(Code::INVALID_VALUE),
    }
}

/// What properties ask for, without a size.
fn wanted(driver: &Driver, prop: &In<AllocationProp>) -> Result<Wanted, Code> {
    let prop = prop.get()?;
    if prop.kind != c::MEM_ALLOCATION_TYPE_PINNED {
        return Err(Code::INVALID_VALUE);
    }
    let device = device_of(driver, prop.location)?;
    if prop.handle_types & !c::MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR != 0 {
        return Err(Code::NOT_SUPPORTED);
    }
    if prop.flags.usage != 0 {
        return Err(Code::NOT_SUPPORTED);
    }
    Ok(Wanted {
        device,
        bytes: 0,
        handle_types: prop.handle_types,
        flags: prop.flags,
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetAllocationGranularity(
    granularity: Out<usize>,
    prop: In<AllocationProp>,
    option: u32,
) -> Code {
    call("cuMemGetAllocationGranularity", |driver| {
        granularity.check()?;
        wanted(driver, &prop)?;
        if option > c::MEM_GRANULARITY_RECOMMENDED {
            return Err(Code::INVALID_VALUE);
        }
        granularity.give(GRANULARITY as usize)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAddressReserve(
    at: Out<DevicePtr>,
    bytes: usize,
    align: usize,
    wish: DevicePtr,
    flags: u64,
) -> Code {
    call("cuMemAddressReserve", |driver| {
        at.check()?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        at.give(driver.space.reserve(bytes as u64, align as u64, wish)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAddressFree(at: DevicePtr, bytes: usize) -> Code {
    call("cuMemAddressFree", |driver| {
        driver.space.unreserve(at, bytes as u64)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemCreate(
    handle: Out<MemoryHandle>,
    bytes: usize,
    prop: In<AllocationProp>,
    flags: u64,
) -> Code {
    call("cuMemCreate", |driver| {
        handle.check()?;
        let wanted = Wanted {
            bytes: bytes as u64,
            ..wanted(driver, &prop)?
        };
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let number = driver.handles.next() as u64;
        driver.space.create(number, wanted)?;
        handle.give(MemoryHandle(number))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemRelease(handle: MemoryHandle) -> Code {
    call("cuMemRelease", |driver| driver.space.release(handle.0))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemMap(
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
extern "C" fn cuMemUnmap(at: DevicePtr, bytes: usize) -> Code {
    call("cuMemUnmap", |driver| driver.unmap(at, bytes as u64))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemSetAccess(
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
extern "C" fn cuMemGetAccess(flags: Out<u64>, location: In<Location>, at: DevicePtr) -> Code {
    call("cuMemGetAccess", |driver| {
        flags.check()?;
        let device = device_of(driver, location.get()?)?;
        flags.give(u64::from(driver.space.access_at(at, device)?))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemRetainAllocationHandle(handle: Out<MemoryHandle>, at: DevicePtr) -> Code {
    call("cuMemRetainAllocationHandle", |driver| {
        handle.check()?;
        let known = driver.space.handle_at(at)?;
        driver.space.retain(known)?;
        handle.give(MemoryHandle(known))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetAllocationPropertiesFromHandle(
    prop: Out<AllocationProp>,
    handle: MemoryHandle,
) -> Code {
    call("cuMemGetAllocationPropertiesFromHandle", |driver| {
        prop.check()?;
        let (_, physical) = driver.space.physical(handle.0)?;
        prop.give(AllocationProp {
            kind: c::MEM_ALLOCATION_TYPE_PINNED,
            handle_types: physical.handle_types,
            location: Location {
                kind: c::MEM_LOCATION_DEVICE,
                id: physical.device as i32,
            },
            win32_meta_data: core::ptr::null_mut(),
            flags: physical.flags,
        })
    })
}

/// Exports and imports go by file descriptor only.
fn check_shareable(handle_type: u32, flags: u64) -> Result<(), Code> {
    if flags != 0 || handle_type == c::MEM_HANDLE_TYPE_NONE {
        return Err(Code::INVALID_VALUE);
    }
    if handle_type != c::MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR {
        return Err(Code::NOT_SUPPORTED);
    }
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn cuMemExportToShareableHandle(
    descriptor: Out<i32>,
    handle: MemoryHandle,
    handle_type: u32,
    flags: u64,
) -> Code {
    call("cuMemExportToShareableHandle", |driver| {
        descriptor.check()?;
        check_shareable(handle_type, flags)?;
        descriptor.give(driver.space.export(handle.0, handle_type)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemImportFromShareableHandle(
    handle: Out<MemoryHandle>,
    descriptor: usize,
    handle_type: u32,
) -> Code {
    call("cuMemImportFromShareableHandle", |driver| {
        handle.check()?;
        check_shareable(handle_type, 0)?;
        // C passes the number as a pointer.
        let descriptor = i32::try_from(descriptor).map_err(|_| Code::INVALID_VALUE)?;
        let number = driver.handles.next() as u64;
        let devices = driver.devices.len();
        driver
            .space
            .import(number, descriptor, handle_type, devices)?;
        handle.give(MemoryHandle(number))
    })
}
