//! Memory pools and allocations in a stream's order.

use larder_cuda_abi::{AccessDesc, DevicePtr, PoolHandle, PoolProps, StreamHandle, constants};

use super::{Answer, out, virtual_memory::on_device};

/// cuDeviceGetDefaultMemPool.
pub(crate) fn default_of(device: i32) -> Answer<PoolHandle> {
    // SAFETY: the out argument is `out`'s.
    out(|at| unsafe { function!(cuDeviceGetDefaultMemPool)(at, device) })
}

/// cuDeviceGetMemPool.
pub(crate) fn current_of(device: i32) -> Answer<PoolHandle> {
    // SAFETY: the out argument is `out`'s.
    out(|at| unsafe { function!(cuDeviceGetMemPool)(at, device) })
}

/// cuDeviceSetMemPool.
pub(crate) fn set_current_of(device: i32, pool: PoolHandle) -> Answer {
    // SAFETY: C2: the handle came from the driver and was not destroyed.
    unsafe { function!(cuDeviceSetMemPool)(device, pool) }.check()
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
    // SAFETY: the structure is a local's; the out argument is `out`'s.
    out(|at| unsafe { function!(cuMemPoolCreate)(at, &raw const properties) })
}

/// cuMemPoolDestroy.
pub(crate) fn destroy(pool: PoolHandle) -> Answer {
    // SAFETY: C2: the handle came from the driver and was not destroyed.
    unsafe { function!(cuMemPoolDestroy)(pool) }.check()
}

/// cuMemPoolGetAttribute, into eight bytes that were zero: wide enough for each.
pub(crate) fn attribute(pool: PoolHandle, attribute: u32) -> Answer<u64> {
    let mut value = 0_u64;
    // SAFETY: C2; eight bytes are enough for every attribute.
    unsafe { function!(cuMemPoolGetAttribute)(pool, attribute, (&raw mut value).cast()) }
        .check()?;
    Ok(value)
}

/// cuMemPoolSetAttribute.
pub(crate) fn set_attribute(pool: PoolHandle, attribute: u32, mut value: u64) -> Answer {
    // SAFETY: C2; eight bytes are enough for every attribute, and the low ones come first.
    unsafe { function!(cuMemPoolSetAttribute)(pool, attribute, (&raw mut value).cast()) }.check()
}

/// cuMemPoolTrimTo.
pub(crate) fn trim(pool: PoolHandle, keep_bytes: usize) -> Answer {
    // SAFETY: C2: the handle came from the driver and was not destroyed.
    unsafe { function!(cuMemPoolTrimTo)(pool, keep_bytes) }.check()
}

/// cuMemAllocAsync.
pub(crate) fn alloc(bytes: usize, stream: StreamHandle) -> Answer<DevicePtr> {
    // SAFETY: C2; the out argument is `out`'s.
    out(|at| unsafe { function!(cuMemAllocAsync)(at, bytes, stream) })
}

/// cuMemAllocFromPoolAsync.
pub(crate) fn alloc_from(
    pool: PoolHandle,
    bytes: usize,
    stream: StreamHandle,
) -> Answer<DevicePtr> {
    // SAFETY: C2; the out argument is `out`'s.
    out(|at| unsafe { function!(cuMemAllocFromPoolAsync)(at, bytes, pool, stream) })
}

/// cuMemFreeAsync.
pub(crate) fn free(at: DevicePtr, stream: StreamHandle) -> Answer {
    // SAFETY: C2; the driver looks the address up.
    unsafe { function!(cuMemFreeAsync)(at, stream) }.check()
}

/// cuMemPoolGetAccess of one device.
pub(crate) fn access(pool: PoolHandle, device: i32) -> Answer<u32> {
    let mut location = on_device(device);
    // SAFETY: C2; the structure is a local's; the out argument is `out`'s.
    out(|at| unsafe { function!(cuMemPoolGetAccess)(at, pool, &raw mut location) })
}

/// cuMemPoolSetAccess for one device.
pub(crate) fn set_access(pool: PoolHandle, device: i32, flags: u32) -> Answer {
    let one = AccessDesc {
        location: on_device(device),
        flags,
    };
    // SAFETY: C2; one structure of a local.
    unsafe { function!(cuMemPoolSetAccess)(pool, &raw const one, 1) }.check()
}
