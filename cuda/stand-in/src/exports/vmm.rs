//! Virtual memory: addresses, physical memory, and which lies at which.
//!
//! No context is needed. Physical memory is always a device's and stays in the process; memory of the
//! host and memory to be exported are not supported.

use larder_cuda_abi::constants as c;
use larder_cuda_abi::{AccessDesc, AllocationProp, Code, DevicePtr, Location, MemoryHandle};

use super::device_of;
use crate::driver::Driver;
use crate::entry::{answer, call};
use crate::ffi::{In, Out};
use crate::space::GRANULARITY;

/// The device of which properties ask for memory.
fn wanted(driver: &Driver, prop: &In<AllocationProp>) -> Result<usize, Code> {
    let prop = prop.get()?;
    if prop.kind != c::MEM_ALLOCATION_TYPE_PINNED {
        return Err(Code::INVALID_VALUE);
    }
    let device = device_of(driver, prop.location)?;
    if prop.handle_types != c::MEM_HANDLE_TYPE_NONE || prop.flags.usage != 0 {
        return Err(Code::NOT_SUPPORTED);
    }
    Ok(device)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetAllocationGranularity(
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
extern "C" fn cuMemAddressReserve(
    at: Out<DevicePtr>,
    bytes: usize,
    align: usize,
    wish: DevicePtr,
    flags: u64,
) -> Code {
    answer("cuMemAddressReserve", at, |driver| {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        driver.space.reserve(bytes as u64, align as u64, wish)
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
    answer("cuMemCreate", handle, |driver| {
        let device = wanted(driver, &prop)?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let number = driver.handles.next() as u64;
        driver.space.create(number, device, bytes as u64)?;
        Ok(MemoryHandle(number))
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
    answer("cuMemGetAccess", flags, |driver| {
        let device = device_of(driver, location.get()?)?;
        Ok(u64::from(driver.space.access_at(at, device)?))
    })
}
