//! Memory pools and allocations in a stream's order.

use std::ffi::c_void;

use cudarc::driver::sys;
use larder_cuda_abi::{AccessDesc, DevicePtr, PoolHandle, PoolProps, StreamHandle, constants};

use super::{Answer, done, done_raw, out, stream_of, symbol, virtual_memory::on_device};

fn pool_of(pool: PoolHandle) -> sys::CUmemoryPool {
    pool.0 as sys::CUmemoryPool
}

/// cuDeviceGetDefaultMemPool.
pub(crate) fn default_of(device: i32) -> Answer<PoolHandle> {
    // SAFETY: the out argument is `out`'s.
    out(|at: *mut usize| unsafe { sys::cuDeviceGetDefaultMemPool(at.cast(), device) })
        .map(PoolHandle)
}

/// cuDeviceGetMemPool.
pub(crate) fn current_of(device: i32) -> Answer<PoolHandle> {
    // SAFETY: the out argument is `out`'s.
    out(|at: *mut usize| unsafe { sys::cuDeviceGetMemPool(at.cast(), device) }).map(PoolHandle)
}

/// cuDeviceSetMemPool.
pub(crate) fn set_current_of(device: i32, pool: PoolHandle) -> Answer {
    // SAFETY: C2: the handle came from the driver and was not destroyed.
    done(unsafe { sys::cuDeviceSetMemPool(device, pool_of(pool)) })
}

/// cuMemPoolCreate of pinned memory of a device.
pub(crate) fn create(device: i32) -> Answer<PoolHandle> {
    let properties = PoolProps {
        kind: constants::MEM_ALLOCATION_TYPE_PINNED,
        handle_types: constants::MEM_HANDLE_TYPE_NONE,
        location: on_device(device),
        win32_security_attributes: core::ptr::null_mut(),
        max_bytes: 0,
        usage: 0,
        reserved: [0; 54],
    };
    let properties = (&raw const properties).cast();
    // SAFETY: the structure has the layout of CUDA's; the out argument is `out`'s.
    out(|at: *mut usize| unsafe { sys::cuMemPoolCreate(at.cast(), properties) }).map(PoolHandle)
}

/// cuMemPoolDestroy.
pub(crate) fn destroy(pool: PoolHandle) -> Answer {
    // SAFETY: C2: the handle came from the driver and was not destroyed.
    done(unsafe { sys::cuMemPoolDestroy(pool_of(pool)) })
}

/// cuMemPoolGetAttribute, into eight bytes that were zero: wide enough for each.
pub(crate) fn attribute(pool: PoolHandle, attribute: u32) -> Answer<u64> {
    type Get = unsafe extern "C" fn(PoolHandle, u32, *mut c_void) -> u32;
    // SAFETY: the function's type, with the enumeration as the number it is in C.
    let call = unsafe { symbol::<Get>("cuMemPoolGetAttribute") };
    let mut value = 0_u64;
    // SAFETY: C2; eight bytes are enough for every attribute.
    done_raw(unsafe { call(pool, attribute, (&raw mut value).cast()) })?;
    Ok(value)
}

/// cuMemPoolSetAttribute.
pub(crate) fn set_attribute(pool: PoolHandle, attribute: u32, mut value: u64) -> Answer {
    type Set = unsafe extern "C" fn(PoolHandle, u32, *mut c_void) -> u32;
    // SAFETY: the function's type, with the enumeration as the number it is in C.
    let call = unsafe { symbol::<Set>("cuMemPoolSetAttribute") };
    // SAFETY: C2; eight bytes are enough for every attribute, and the low ones come first.
    done_raw(unsafe { call(pool, attribute, (&raw mut value).cast()) })
}

/// cuMemPoolTrimTo.
pub(crate) fn trim(pool: PoolHandle, keep_bytes: usize) -> Answer {
    // SAFETY: C2: the handle came from the driver and was not destroyed.
    done(unsafe { sys::cuMemPoolTrimTo(pool_of(pool), keep_bytes) })
}

/// cuMemAllocAsync.
pub(crate) fn alloc(bytes: usize, stream: StreamHandle) -> Answer<DevicePtr> {
    // SAFETY: C2; the out argument is `out`'s.
    out(|at| unsafe { sys::cuMemAllocAsync(at, bytes, stream_of(stream)) })
}

/// cuMemAllocFromPoolAsync.
pub(crate) fn alloc_from(
    pool: PoolHandle,
    bytes: usize,
    stream: StreamHandle,
) -> Answer<DevicePtr> {
    let pool = pool_of(pool);
    // SAFETY: C2; the out argument is `out`'s.
    out(|at| unsafe { sys::cuMemAllocFromPoolAsync(at, bytes, pool, stream_of(stream)) })
}

/// cuMemFreeAsync.
pub(crate) fn free(at: DevicePtr, stream: StreamHandle) -> Answer {
    // SAFETY: C2; the driver looks the address up.
    done(unsafe { sys::cuMemFreeAsync(at, stream_of(stream)) })
}

/// cuMemPoolGetAccess of one device.
pub(crate) fn access(pool: PoolHandle, device: i32) -> Answer<u32> {
    let mut location = on_device(device);
    let location = (&raw mut location).cast();
    let pool = pool_of(pool);
    // SAFETY: C2; the structure has the layout of CUDA's; the enumeration is a number in C.
    out(|at: *mut u32| unsafe { sys::cuMemPoolGetAccess(at.cast(), pool, location) })
}

/// cuMemPoolSetAccess for one device.
pub(crate) fn set_access(pool: PoolHandle, device: i32, flags: u32) -> Answer {
    let one = AccessDesc {
        location: on_device(device),
        flags,
    };
    // SAFETY: C2; one structure with the layout of CUDA's.
    done(unsafe { sys::cuMemPoolSetAccess(pool_of(pool), (&raw const one).cast(), 1) })
}
