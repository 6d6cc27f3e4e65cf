//! Plain device memory.

use larder_cuda_abi::{Code, DevicePtr};

use crate::entry::{answer, call};
use crate::ffi::Out;
use crate::space::BlockKind;

/// Unit to which the length of a row is rounded up, in bytes.
const PITCH: usize = 512;

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) -> Code {
    call("cuMemGetInfo_v2", |driver| {
        free.check()?;
        total.check()?;
        let (_, device) = driver.current_device()?;
        free.give(driver.space.usage.free(device) as usize)?;
        total.give(driver.space.usage.total(device) as usize)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemAlloc_v2(at: Out<DevicePtr>, bytes: usize) -> Code {
    answer("cuMemAlloc_v2", at, |driver| {
        let (context, device) = driver.current_device()?;
        driver.unsafe_call()?;
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let space = &mut driver.space;
        space.alloc_plain(device, Some(context), bytes as u64, BlockKind::Device)
    })
}

/// Allocates rows with a pitch that suits any texture.
#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemAllocPitch_v2(
    at: Out<DevicePtr>,
    pitch: Out<usize>,
    width: usize,
    height: usize,
    element: u32,
) -> Code {
    answer("cuMemAllocPitch_v2", at, |driver| {
        let (context, device) = driver.current_device()?;
        driver.unsafe_call()?;
        pitch.check()?;
        let row = width.checked_next_multiple_of(PITCH);
        let bytes = row.and_then(|row| row.checked_mul(height));
        let (Some(row), Some(bytes), 4 | 8 | 16) = (row, bytes, element) else {
            return Err(Code::INVALID_VALUE);
        };
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let space = &mut driver.space;
        let given = space.alloc_plain(device, Some(context), bytes as u64, BlockKind::Device)?;
        pitch.give(row)?;
        Ok(given)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemFree_v2(at: DevicePtr) -> Code {
    call("cuMemFree_v2", |driver| {
        driver.current()?;
        driver.unsafe_call()?;
        if at == 0 {
            return Ok(());
        }
        if driver.is_pooled(at) {
            return driver.free_pooled_now(at);
        }
        driver.free_device(at)
    })
}
