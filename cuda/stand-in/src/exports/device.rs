//! Devices and their primary contexts.

use core::ffi::c_char;

use larder_cuda_abi::constants as c;
use larder_cuda_abi::{Code, ContextHandle, DeviceUuid};

use crate::driver::{Session, SimDriver};
use crate::entry::{answer, call};
use crate::ffi::Out;

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDeviceGetCount(count: Out<i32>) -> Code {
    answer("cuDeviceGetCount", count, |driver| {
        Ok(driver.devices.len() as i32)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDeviceGet(device: Out<i32>, ordinal: i32) -> Code {
    answer("cuDeviceGet", device, |driver| {
        driver.device(ordinal)?;
        Ok(ordinal)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDeviceGetName(name: Out<c_char>, len: i32, device: i32) -> Code {
    call("cuDeviceGetName", |driver| {
        name.check()?;
        let ordinal = driver.device(device)?.ordinal;
        let text = format!("Larder stand-in device {ordinal}");
        let room = usize::try_from(len)
            .ok()
            .and_then(|len| len.checked_sub(1))
            .ok_or(Code::INVALID_VALUE)?;
        name.cast().give_all(text.bytes().take(room).chain([0]));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDeviceGetUuid(uuid: Out<DeviceUuid>, device: i32) -> Code {
    answer("cuDeviceGetUuid", uuid, |driver| uuid_of(driver, device))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDeviceGetUuid_v2(uuid: Out<DeviceUuid>, device: i32) -> Code {
    answer("cuDeviceGetUuid_v2", uuid, |driver| uuid_of(driver, device))
}

fn uuid_of(driver: &SimDriver, device: i32) -> Result<DeviceUuid, Code> {
    let ordinal = driver.device(device)?.ordinal;
    let mut bytes = *b"larder stand-in\0";
    if let Some(last) = bytes.last_mut() {
        *last = ordinal as u8;
    }
    Ok(DeviceUuid { bytes })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: i32) -> Code {
    answer("cuDeviceTotalMem_v2", bytes, |driver| {
        let ordinal = driver.device(device)?.ordinal;
        Ok(driver.space.usage.total(ordinal) as usize)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDeviceGetPCIBusId(text: Out<c_char>, len: i32, device: i32) -> Code {
    call("cuDeviceGetPCIBusId", |driver| {
        text.check()?;
        let ordinal = driver.device(device)?.ordinal;
        let id = format!("0000:{:02X}:00.0", ordinal + 1);
        if usize::try_from(len).is_ok_and(|len| len <= id.len()) || len <= 0 {
            return Err(Code::INVALID_VALUE);
        }
        text.cast().give_all(id.bytes().chain([0]));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDeviceGetAttribute(
    value: Out<i32>,
    attribute: u32,
    device: i32,
) -> Code {
    answer("cuDeviceGetAttribute", value, |driver| {
        let ordinal = driver.device(device)?.ordinal;
        match attribute {
            c::DEVICE_CONCURRENT_MANAGED_ACCESS => Ok(i32::from(driver.managed_concurrently)),
            c::DEVICE_VIRTUAL_MEMORY_SUPPORTED
            | c::DEVICE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
            | c::DEVICE_RDMA_WITH_VIRTUAL_MEMORY_SUPPORTED => Ok(i32::from(driver.virtual_memory)),
            _ => attribute_of(attribute, ordinal),
        }
    })
}

/// Returns an attribute of a device of compute capability 9.0. Attributes about speed are
/// meaningless here.
fn attribute_of(attribute: u32, ordinal: usize) -> Result<i32, Code> {
    /// The last attribute in the driver's interface. Attributes are numbered from 1.
    const LAST: u32 = 150;
    Ok(match attribute {
        c::DEVICE_MAX_THREADS_PER_BLOCK | c::DEVICE_MAX_BLOCK_DIM_X | c::DEVICE_MAX_BLOCK_DIM_Y => {
            1024
        }
        c::DEVICE_MAX_BLOCK_DIM_Z => 64,
        c::DEVICE_MAX_GRID_DIM_X => i32::MAX,
        c::DEVICE_MAX_GRID_DIM_Y | c::DEVICE_MAX_GRID_DIM_Z => 65_535,
        c::DEVICE_MAX_SHARED_MEMORY_PER_BLOCK => 48 << 10,
        c::DEVICE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN => 227 << 10,
        c::DEVICE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR => 228 << 10,
        c::DEVICE_TOTAL_CONSTANT_MEMORY => 64 << 10,
        c::DEVICE_WARP_SIZE => 32,
        c::DEVICE_MAX_REGISTERS_PER_BLOCK | c::DEVICE_MAX_REGISTERS_PER_MULTIPROCESSOR => 65_536,
        c::DEVICE_CLOCK_RATE | c::DEVICE_MEMORY_CLOCK_RATE => 1_000_000,
        c::DEVICE_TEXTURE_ALIGNMENT => 512,
        c::DEVICE_MULTIPROCESSOR_COUNT => 8,
        c::DEVICE_GLOBAL_MEMORY_BUS_WIDTH => 512,
        c::DEVICE_L2_CACHE_SIZE => 1 << 20,
        c::DEVICE_MAX_THREADS_PER_MULTIPROCESSOR => 2048,
        c::DEVICE_ASYNC_ENGINE_COUNT => 2,
        c::DEVICE_PCI_BUS_ID => ordinal as i32 + 1,
        c::DEVICE_COMPUTE_CAPABILITY_MAJOR => 9,
        c::DEVICE_GPU_OVERLAP
        | c::DEVICE_CAN_MAP_HOST_MEMORY
        | c::DEVICE_CONCURRENT_KERNELS
        | c::DEVICE_UNIFIED_ADDRESSING
        | c::DEVICE_STREAM_PRIORITIES_SUPPORTED
        | c::DEVICE_MANAGED_MEMORY
        | c::DEVICE_COMPUTE_PREEMPTION_SUPPORTED
        | c::DEVICE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
        | c::DEVICE_COOPERATIVE_LAUNCH
        | c::DEVICE_HOST_REGISTER_SUPPORTED
        | c::DEVICE_MEMORY_POOLS_SUPPORTED => 1,
        1..=LAST => 0,
        _ => return Err(Code::INVALID_VALUE),
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32) -> Code {
    answer("cuDeviceCanAccessPeer", can, |driver| {
        let (device, peer) = (driver.device(device)?.ordinal, driver.device(peer)?.ordinal);
        Ok(i32::from(device != peer))
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDevicePrimaryCtxRetain(
    context: Out<ContextHandle>,
    device: i32,
) -> Code {
    answer("cuDevicePrimaryCtxRetain", context, |driver| {
        let known = driver.device(device)?;
        let (ordinal, old) = (known.ordinal, known.primary);
        let handle = match old.filter(|handle| driver.contexts.get(*handle).is_ok()) {
            Some(handle) => handle,
            None => driver.new_primary(ordinal, old)?,
        };
        let known = driver.device_mut(device)?;
        known.primary = Some(handle);
        known.retained += 1;
        Ok(ContextHandle(handle))
    })
}

fn release(driver: &mut Session, device: i32) -> Result<(), Code> {
    let known = driver.device_mut(device)?;
    if known.retained == 0 {
        return Err(Code::INVALID_CONTEXT);
    }
    known.retained -= 1;
    match known.primary {
        Some(handle) if known.retained == 0 => driver.destroy_context(handle),
        _ => Ok(()),
    }
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDevicePrimaryCtxRelease(device: i32) -> Code {
    call("cuDevicePrimaryCtxRelease", |driver| {
        release(driver, device)
    })
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDevicePrimaryCtxRelease_v2(device: i32) -> Code {
    call("cuDevicePrimaryCtxRelease_v2", |driver| {
        release(driver, device)
    })
}

fn reset(driver: &mut Session, device: i32) -> Result<(), Code> {
    let known = driver.device(device)?;
    let (ordinal, primary) = (known.ordinal, known.primary);
    let Some(handle) = primary.filter(|handle| driver.contexts.get(*handle).is_ok()) else {
        return Ok(());
    };
    driver.destroy_context(handle)?;
    if driver.device(device)?.retained > 0 {
        driver.new_primary(ordinal, Some(handle))?;
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDevicePrimaryCtxReset(device: i32) -> Code {
    call("cuDevicePrimaryCtxReset", |driver| reset(driver, device))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDevicePrimaryCtxReset_v2(device: i32) -> Code {
    call("cuDevicePrimaryCtxReset_v2", |driver| reset(driver, device))
}

#[unsafe(no_mangle)]
pub(super) extern "C" fn cuDevicePrimaryCtxGetState(
    device: i32,
    flags: Out<u32>,
    active: Out<i32>,
) -> Code {
    call("cuDevicePrimaryCtxGetState", |driver| {
        flags.check()?;
        active.check()?;
        let known = driver.device(device)?;
        // A primary context's flags cannot be set.
        flags.give(0)?;
        active.give(i32::from(known.retained > 0))
    })
}
