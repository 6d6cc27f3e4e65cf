//! Pinned and registered host memory.
//!
//! All memory shares one address space, so all of it is mapped for every device and every context,
//! regardless of the flags. The exception is write-combined memory, which has a separate address
//! for each device.

use larder_cuda_abi::constants as c;
use larder_cuda_abi::{Code, DevicePtr};

use crate::entry::{answer, call};
use crate::ffi::Out;
use crate::space::BlockKind;

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemHostAlloc(at: Out<usize>, bytes: usize, flags: u32) -> Code {
    answer("cuMemHostAlloc", at, |driver| {
        let (context, device) = driver.current_device()?;
        driver.unsafe_call()?;
        let known = c::HOST_ALLOC_PORTABLE | c::HOST_ALLOC_DEVICEMAP | c::HOST_ALLOC_WRITECOMBINED;
        if bytes == 0 || flags & !known != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let kind = match flags & c::HOST_ALLOC_WRITECOMBINED {
            0 => BlockKind::Pinned,
            _ => BlockKind::Combined,
        };
        let devices = driver.devices.len();
        let space = &mut driver.space;
        let at = space.alloc_host(device, context, bytes as u64, (kind, 0))?;
        space.add_aliases(at, devices)?;
        Ok(at as usize)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemFreeHost(at: usize) -> Code {
    call("cuMemFreeHost", |driver| {
        driver.current()?;
        driver.unsafe_call()?;
        driver.free_host_block(
            at as u64,
            &[BlockKind::Pinned, BlockKind::Combined],
            Code::INVALID_VALUE,
        )
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemHostGetDevicePointer_v2(
    to: Out<DevicePtr>,
    at: usize,
    flags: u32,
) -> Code {
    answer("cuMemHostGetDevicePointer_v2", to, |driver| {
        let at = at as u64;
        let (_, device) = driver.current_device()?;
        let block = driver.space.block_at(at).map(|(_, block)| &block.kind);
        let is_known = matches!(
            block,
            Some(BlockKind::Pinned | BlockKind::Combined | BlockKind::Registered)
        );
        if !is_known || flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let address = driver.space.device_address(at, device);
        address.ok_or(Code::INVALID_VALUE)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemHostRegister_v2(at: usize, bytes: usize, flags: u32) -> Code {
    call("cuMemHostRegister_v2", |driver| {
        let (context, device) = driver.current_device()?;
        driver.unsafe_call()?;
        let plain = c::HOST_REGISTER_PORTABLE | c::HOST_REGISTER_DEVICEMAP;
        let known = plain | c::HOST_REGISTER_IOMEMORY | c::HOST_REGISTER_READ_ONLY;
        if flags & !known != 0 {
            return Err(Code::INVALID_VALUE);
        }
        // The device's attributes report that it supports neither flag.
        if flags & c::HOST_REGISTER_IOMEMORY != 0 {
            return Err(Code::NOT_PERMITTED);
        }
        if flags & c::HOST_REGISTER_READ_ONLY != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        driver
            .space
            .register(at as u64, bytes as u64, device, context)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuMemHostUnregister(at: usize) -> Code {
    call("cuMemHostUnregister", |driver| {
        driver.current()?;
        driver.unsafe_call()?;
        if at == 0 {
            return Err(Code::INVALID_VALUE);
        }
        driver.free_host_block(
            at as u64,
            &[BlockKind::Registered],
            Code::HOST_MEMORY_NOT_REGISTERED,
        )
    })
}
