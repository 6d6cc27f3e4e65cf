//! Pinned and registered host memory.
//!
//! All addresses are one space, so all of it is mapped for every device and every context, whatever
//! the flags say.

use larder_cuda_abi::constants as c;
use larder_cuda_abi::{Code, DevicePtr};

use crate::driver::Session;
use crate::entry::call;
use crate::ffi::Out;
use crate::space::{Block, Kind};

fn alloc(driver: &mut Session, at: &Out<usize>, bytes: usize, flags: u32) -> Result<(), Code> {
    at.check()?;
    let context = driver.current()?;
    driver.unsafe_call()?;
    let known = c::HOST_ALLOC_PORTABLE | c::HOST_ALLOC_DEVICEMAP | c::HOST_ALLOC_WRITECOMBINED;
    if bytes == 0 || flags & !known != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let device = driver.contexts.get(context)?.device;
    let kind = Kind::Pinned { flags };
    let given = driver
        .space
        .alloc_host(device, context, bytes as u64, kind)?;
    at.give(given as usize)
}

/// The pinned or registered memory that an address lies in.
fn known(driver: &Session, at: usize) -> Result<(&Block, u32), Code> {
    let (_, block) = driver
        .space
        .block_at(at as u64)
        .ok_or(Code::INVALID_VALUE)?;
    match block.kind {
        Kind::Pinned { flags } | Kind::Registered { flags } => Ok((block, flags)),
        _ => Err(Code::INVALID_VALUE),
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocHost_v2(at: Out<usize>, bytes: usize) -> Code {
    call("cuMemAllocHost_v2", |driver| alloc(driver, &at, bytes, 0))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostAlloc(at: Out<usize>, bytes: usize, flags: u32) -> Code {
    call("cuMemHostAlloc", |driver| alloc(driver, &at, bytes, flags))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeHost(at: usize) -> Code {
    call("cuMemFreeHost", |driver| {
        driver.current()?;
        driver.unsafe_call()?;
        let fits = |kind: &Kind| matches!(kind, Kind::Pinned { .. });
        driver.free_host_block(at as u64, fits, Code::INVALID_VALUE)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostGetDevicePointer_v2(to: Out<DevicePtr>, at: usize, flags: u32) -> Code {
    call("cuMemHostGetDevicePointer_v2", |driver| {
        to.check()?;
        driver.current()?;
        known(driver, at)?;
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        to.give(at as u64)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostGetFlags(flags: Out<u32>, at: usize) -> Code {
    call("cuMemHostGetFlags", |driver| {
        flags.check()?;
        driver.current()?;
        let (block, given) = known(driver, at)?;
        if !matches!(block.kind, Kind::Pinned { .. }) {
            return Err(Code::INVALID_VALUE);
        }
        flags.give(given)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostRegister_v2(at: usize, bytes: usize, flags: u32) -> Code {
    call("cuMemHostRegister_v2", |driver| {
        let context = driver.current()?;
        driver.unsafe_call()?;
        let plain = c::HOST_REGISTER_PORTABLE | c::HOST_REGISTER_DEVICEMAP;
        let known = plain | c::HOST_REGISTER_IOMEMORY | c::HOST_REGISTER_READ_ONLY;
        if flags & !known != 0 {
            return Err(Code::INVALID_VALUE);
        }
        // The device's attributes say that it can do neither.
        if flags & c::HOST_REGISTER_IOMEMORY != 0 {
            return Err(Code::NOT_PERMITTED);
        }
        if flags & c::HOST_REGISTER_READ_ONLY != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        let device = driver.contexts.get(context)?.device;
        driver
            .space
            .register(at as u64, bytes as u64, device, context, flags)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostUnregister(at: usize) -> Code {
    call("cuMemHostUnregister", |driver| {
        driver.current()?;
        driver.unsafe_call()?;
        if at == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let fits = |kind: &Kind| matches!(kind, Kind::Registered { .. });
        driver.free_host_block(at as u64, fits, Code::HOST_MEMORY_NOT_REGISTERED)
    })
}
