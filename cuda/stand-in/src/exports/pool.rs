//! Memory pools.

use core::ffi::c_void;

use larder_cuda_abi::constants as c;
use larder_cuda_abi::{AccessDesc, Code, DevicePtr, Location, PoolHandle, PoolProps, StreamHandle};

use super::device_of;
use crate::driver::Session;
use crate::entry::{answer, call};
use crate::ffi::{In, Out};
use crate::pool::SimPool;

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDeviceGetDefaultMemPool(pool: Out<PoolHandle>, device: i32) -> Code {
    answer("cuDeviceGetDefaultMemPool", pool, |driver| {
        let ordinal = driver.device(device)?.ordinal;
        Ok(PoolHandle(driver.default_pool(ordinal)))
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDeviceGetMemPool(pool: Out<PoolHandle>, device: i32) -> Code {
    answer("cuDeviceGetMemPool", pool, |driver| {
        let ordinal = driver.device(device)?.ordinal;
        Ok(PoolHandle(driver.current_pool(ordinal)))
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDeviceSetMemPool(device: i32, pool: PoolHandle) -> Code {
    call("cuDeviceSetMemPool", |driver| {
        let ordinal = driver.device(device)?.ordinal;
        if driver.pool(pool.0)?.device != ordinal {
            return Err(Code::INVALID_VALUE);
        }
        driver.pools.current.insert(ordinal, pool.0);
        Ok(())
    })
}

/// Creates a pool on a device. Pools cannot be exported.
#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemPoolCreate(pool: Out<PoolHandle>, props: In<PoolProps>) -> Code {
    answer("cuMemPoolCreate", pool, |driver| {
        let props = props.get()?;
        if props.kind != c::MEM_ALLOCATION_TYPE_PINNED || props.reserved != [0; 54] {
            return Err(Code::INVALID_VALUE);
        }
        let device = device_of(driver, props.location)?;
        if props.handle_types != c::MEM_HANDLE_TYPE_NONE {
            return Err(Code::NOT_SUPPORTED);
        }
        let handle = driver.handles.next();
        let made = SimPool::new(device, props.max_bytes as u64);
        driver.pools.table.insert(handle, made);
        Ok(PoolHandle(handle))
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemPoolDestroy(pool: PoolHandle) -> Code {
    call("cuMemPoolDestroy", |driver| driver.destroy_pool(pool.0))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemPoolTrimTo(pool: PoolHandle, keep: usize) -> Code {
    call("cuMemPoolTrimTo", |driver| {
        driver.pool(pool.0)?;
        driver.release_pooled(pool.0, keep as u64);
        Ok(())
    })
}

/// Reads the 32-bit or 64-bit number that a pointer points to.
fn number(value: &In<c_void>, wide: bool) -> Result<u64, Code> {
    if wide {
        return value.cast::<u64>().get();
    }
    Ok(u64::from(value.cast::<u32>().get()?))
}

fn is_flag(attribute: u32) -> bool {
    matches!(
        attribute,
        c::POOL_REUSE_FOLLOW_EVENT_DEPENDENCIES
            | c::POOL_REUSE_ALLOW_OPPORTUNISTIC
            | c::POOL_REUSE_ALLOW_INTERNAL_DEPENDENCIES
    )
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemPoolSetAttribute(
    pool: PoolHandle,
    attribute: u32,
    value: In<c_void>,
) -> Code {
    call("cuMemPoolSetAttribute", |driver| {
        let pool = driver.pool(pool.0)?;
        let value = number(&value, !is_flag(attribute))?;
        match attribute {
            c::POOL_REUSE_FOLLOW_EVENT_DEPENDENCIES => pool.reuse.follow_events = value != 0,
            c::POOL_REUSE_ALLOW_OPPORTUNISTIC => pool.reuse.opportunistic = value != 0,
            c::POOL_REUSE_ALLOW_INTERNAL_DEPENDENCIES => pool.reuse.internal = value != 0,
            c::POOL_RELEASE_THRESHOLD => pool.threshold = value,
            c::POOL_RESERVED_HIGH if value == 0 => pool.reserved.high = pool.reserved.now,
            c::POOL_USED_HIGH if value == 0 => pool.used.high = pool.used.now,
            _ => return Err(Code::INVALID_VALUE),
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemPoolGetAttribute(
    pool: PoolHandle,
    attribute: u32,
    value: Out<c_void>,
) -> Code {
    call("cuMemPoolGetAttribute", |driver| {
        value.check()?;
        let pool = driver.pool(pool.0)?;
        let wide = match attribute {
            c::POOL_REUSE_FOLLOW_EVENT_DEPENDENCIES => u64::from(pool.reuse.follow_events),
            c::POOL_REUSE_ALLOW_OPPORTUNISTIC => u64::from(pool.reuse.opportunistic),
            c::POOL_REUSE_ALLOW_INTERNAL_DEPENDENCIES => u64::from(pool.reuse.internal),
            c::POOL_RELEASE_THRESHOLD => pool.threshold,
            c::POOL_RESERVED_CURRENT => pool.reserved.now,
            c::POOL_RESERVED_HIGH => pool.reserved.high,
            c::POOL_USED_CURRENT => pool.used.now,
            c::POOL_USED_HIGH => pool.used.high,
            _ => return Err(Code::INVALID_VALUE),
        };
        if is_flag(attribute) {
            return value.cast::<u32>().give(wide as u32);
        }
        value.cast::<u64>().give(wide)
    })
}

/// Sets the access of other devices. A pool's own device always has access.
#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemPoolSetAccess(
    pool: PoolHandle,
    access: In<AccessDesc>,
    count: usize,
) -> Code {
    call("cuMemPoolSetAccess", |driver| {
        let own = driver.pool(pool.0)?.device;
        let wanted = access.slice(count)?;
        for one in &wanted {
            let device = device_of(driver, one.location)?;
            let read_write = one.flags == c::MEM_ACCESS_READ_WRITE;
            if !read_write && (one.flags != c::MEM_ACCESS_NONE || device == own) {
                return Err(Code::INVALID_VALUE);
            }
        }
        for one in &wanted {
            let device = device_of(driver, one.location)?;
            driver.pool(pool.0)?.access.insert(device, one.flags);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemPoolGetAccess(
    flags: Out<u32>,
    pool: PoolHandle,
    location: In<Location>,
) -> Code {
    answer("cuMemPoolGetAccess", flags, |driver| {
        let device = device_of(driver, location.get()?)?;
        let pool = driver.pool(pool.0)?;
        if pool.device == device {
            return Ok(c::MEM_ACCESS_READ_WRITE);
        }
        let given = pool.access.get(&device).copied();
        Ok(given.unwrap_or(c::MEM_ACCESS_NONE))
    })
}

fn alloc(
    driver: &mut Session,
    bytes: usize,
    pool: Option<PoolHandle>,
    stream: StreamHandle,
) -> Result<DevicePtr, Code> {
    let stream = driver.stream(stream)?;
    let context = driver.streams.get(stream)?.context;
    let device = driver.contexts.get(context)?.device;
    let pool = match pool {
        Some(pool) => pool.0,
        None => driver.current_pool(device),
    };
    check_other(driver, stream)?;
    driver.alloc_pooled(pool, bytes as u64, stream)
}

/// Treats a call for a pool's memory as unsafe if its stream is not being captured, as observed on
/// an H200 with driver 580.
fn check_other(driver: &mut Session, stream: usize) -> Result<(), Code> {
    if driver.is_capturing(stream) {
        return Ok(());
    }
    driver.unsafe_call()
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemAllocAsync(
    at: Out<DevicePtr>,
    bytes: usize,
    stream: StreamHandle,
) -> Code {
    answer("cuMemAllocAsync", at, |driver| {
        alloc(driver, bytes, None, stream)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemAllocFromPoolAsync(
    at: Out<DevicePtr>,
    bytes: usize,
    pool: PoolHandle,
    stream: StreamHandle,
) -> Code {
    answer("cuMemAllocFromPoolAsync", at, |driver| {
        alloc(driver, bytes, Some(pool), stream)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemFreeAsync(at: DevicePtr, stream: StreamHandle) -> Code {
    call("cuMemFreeAsync", |driver| {
        let stream = driver.stream(stream)?;
        if at == 0 {
            return Ok(());
        }
        check_other(driver, stream)?;
        driver.free_async(at, stream)
    })
}
