//! Memory pools and stream-ordered allocations.

use core::ptr::null_mut;

use larder_cuda_abi::{
    AccessDesc, DevicePtr, Location, PoolHandle, PoolProps, StreamHandle, constants,
};

use super::{Answer, virtual_memory::on_device};

bindings! {
    fn default_of(device: i32) -> PoolHandle { |at| cuDeviceGetDefaultMemPool(at, device) }
    fn current_of(device: i32) -> PoolHandle { |at| cuDeviceGetMemPool(at, device) }
    fn set_current_of(device: i32, pool: PoolHandle) { cuDeviceSetMemPool(device, pool) }
    fn create_with(properties: &PoolProps) -> PoolHandle { |at| cuMemPoolCreate(at, properties) }
    fn destroy(pool: PoolHandle) { cuMemPoolDestroy(pool) }
    fn trim(pool: PoolHandle, keep_bytes: usize) { cuMemPoolTrimTo(pool, keep_bytes) }
    fn alloc(bytes: usize, stream: StreamHandle) -> DevicePtr { |at| cuMemAllocAsync(at, bytes, stream) }
    fn alloc_from(pool: PoolHandle, bytes: usize, stream: StreamHandle) -> DevicePtr {
        |at| cuMemAllocFromPoolAsync(at, bytes, pool, stream)
    }
    fn free(at: DevicePtr, stream: StreamHandle) { cuMemFreeAsync(at, stream) }
    fn access_at(pool: PoolHandle, location: &mut Location) -> u32 {
        |at| cuMemPoolGetAccess(at, pool, location)
    }
    fn set_accesses(pool: PoolHandle, all: &[AccessDesc]) {
        cuMemPoolSetAccess(pool, all.as_ptr(), all.len())
    }
}

pub(crate) fn create(device: i32) -> Answer<PoolHandle> {
    create_with(&PoolProps {
        kind: constants::MEM_ALLOCATION_TYPE_PINNED,
        handle_types: constants::MEM_HANDLE_TYPE_NONE,
        location: on_device(device),
        win32_security_attributes: null_mut(),
        max_bytes: 0,
        usage: 0,
        reserved: [0; 54],
    })
}

/// Returns an attribute as eight bytes, which are enough for each; unwritten bytes are zero.
pub(crate) fn attribute(pool: PoolHandle, attribute: u32) -> Answer<u64> {
    let mut value = 0_u64;
    // SAFETY: C2; eight bytes are enough for every attribute.
    unsafe { function!(cuMemPoolGetAttribute)(pool, attribute, (&raw mut value).cast()) }
        .check()?;
    Ok(value)
}

pub(crate) fn set_attribute(pool: PoolHandle, attribute: u32, mut value: u64) -> Answer {
    // SAFETY: C2; eight bytes are enough for every attribute, and the low ones come first.
    unsafe { function!(cuMemPoolSetAttribute)(pool, attribute, (&raw mut value).cast()) }.check()
}

pub(crate) fn access(pool: PoolHandle, device: i32) -> Answer<u32> {
    access_at(pool, &mut on_device(device))
}

pub(crate) fn set_access(pool: PoolHandle, device: i32, flags: u32) -> Answer {
    let location = on_device(device);
    set_accesses(pool, &[AccessDesc { location, flags }])
}
