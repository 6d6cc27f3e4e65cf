//! Managed memory. Pages do not move, so advice and prefetches are checked but have no effect.

use larder_cuda_abi::constants as c;
use larder_cuda_abi::{Code, DevicePtr, Location, StreamHandle};

use crate::driver::SimDriver;
use crate::entry::{answer, call};
use crate::ffi::Out;
use crate::queue::Work;
use crate::space::BlockKind;

// Advice, `CUmem_advise`.
const SET_READ_MOSTLY: u32 = 1;
const UNSET_READ_MOSTLY: u32 = 2;
const SET_PREFERRED_LOCATION: u32 = 3;
const UNSET_PREFERRED_LOCATION: u32 = 4;
const SET_ACCESSED_BY: u32 = 5;
const UNSET_ACCESSED_BY: u32 = 6;

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemAllocManaged(at: Out<DevicePtr>, bytes: usize, flags: u32) -> Code {
    answer("cuMemAllocManaged", at, |driver| {
        let (context, device) = driver.current_device()?;
        driver.unsafe_call()?;
        if bytes == 0 || !matches!(flags, c::MEM_ATTACH_GLOBAL | c::MEM_ATTACH_HOST) {
            return Err(Code::INVALID_VALUE);
        }
        // If host and devices may use managed memory at the same time, there may be more of it than
        // the device has memory.
        let counted = match driver.managed_concurrently {
            true => 0,
            false => bytes as u64,
        };
        let space = &mut driver.space;
        space.alloc_host(device, context, bytes as u64, (BlockKind::Managed, counted))
    })
}

/// Refuses a location that is neither a device nor the host.
fn check_place(driver: &SimDriver, location: Location) -> Result<(), Code> {
    match location.kind {
        c::MEM_LOCATION_DEVICE => driver.device(location.id).map(drop),
        c::MEM_LOCATION_HOST => Ok(()),
        c::MEM_LOCATION_HOST_NUMA => Err(Code::NOT_SUPPORTED),
        _ => Err(Code::INVALID_VALUE),
    }
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemPrefetchAsync_v2(
    at: DevicePtr,
    bytes: usize,
    location: Location,
    flags: u32,
    stream: StreamHandle,
) -> Code {
    call("cuMemPrefetchAsync_v2", |driver| {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        check_place(driver, location)?;
        let stream = driver.stream(stream)?;
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        driver.space.managed(at, bytes as u64)?;
        driver.submit(stream, Work::Nothing).map(drop)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemAdvise_v2(
    at: DevicePtr,
    bytes: usize,
    advice: u32,
    location: Location,
) -> Code {
    call("cuMemAdvise_v2", |driver| {
        driver.current()?;
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        match advice {
            // This advice does not depend on a location, so the argument is ignored.
            SET_READ_MOSTLY | UNSET_READ_MOSTLY | UNSET_PREFERRED_LOCATION => {}
            SET_PREFERRED_LOCATION | SET_ACCESSED_BY | UNSET_ACCESSED_BY => {
                check_place(driver, location)?;
            }
            _ => return Err(Code::INVALID_VALUE),
        }
        driver.space.managed(at, bytes as u64).map(drop)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuStreamAttachMemAsync(
    stream: StreamHandle,
    at: DevicePtr,
    bytes: usize,
    flags: u32,
) -> Code {
    call("cuStreamAttachMemAsync", |driver| {
        let default = matches!(
            stream,
            StreamHandle::NULL | StreamHandle::LEGACY | StreamHandle::PER_THREAD
        );
        let to = driver.stream(stream)?;
        let known = matches!(
            flags,
            c::MEM_ATTACH_GLOBAL | c::MEM_ATTACH_HOST | c::MEM_ATTACH_SINGLE
        );
        // Memory cannot be attached to a default stream alone.
        if !known || (flags == c::MEM_ATTACH_SINGLE && default) {
            return Err(Code::INVALID_VALUE);
        }
        let whole = driver.space.blocks.get(&at).map(|block| block.bytes);
        if bytes != 0 && whole != Some(bytes as u64) {
            return Err(Code::INVALID_VALUE);
        }
        if driver.space.managed(at, bytes as u64)? != at {
            return Err(Code::INVALID_VALUE);
        }
        driver.submit(to, Work::Nothing).map(drop)
    })
}
