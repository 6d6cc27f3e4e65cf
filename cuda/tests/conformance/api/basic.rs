//! Starting the driver, its version and words for errors, devices.

use core::ffi::{CStr, c_char};

use cudarc::driver::sys;

use super::{Answer, done, done_raw, out, symbol};

/// cuInit.
pub(crate) fn init(flags: u32) -> Answer {
    // SAFETY: the call takes a number and reads no memory.
    done(unsafe { sys::cuInit(flags) })
}

/// cuDriverGetVersion.
pub(crate) fn driver_version() -> Answer<i32> {
    // SAFETY: the out argument is `out`'s.
    out(|at| unsafe { sys::cuDriverGetVersion(at) })
}

/// cuDriverGetVersion without a place for the answer.
pub(crate) fn driver_version_to_null() -> Answer {
    // SAFETY: the driver documents that it refuses null.
    done(unsafe { sys::cuDriverGetVersion(core::ptr::null_mut()) })
}

/// cuGetErrorName or cuGetErrorString.
fn words(function: &str, code: u32) -> Answer<String> {
    type Words = unsafe extern "C" fn(u32, *mut *const c_char) -> u32;
    // SAFETY: the type of both functions.
    let call = unsafe { symbol::<Words>(function) };
    let mut text = core::ptr::null();
    // SAFETY: the out argument is a local's; the code may be any number.
    done_raw(unsafe { call(code, &raw mut text) })?;
    // SAFETY: the driver answers a static C string.
    let text = unsafe { CStr::from_ptr(text) };
    Ok(text.to_string_lossy().into_owned())
}

/// cuGetErrorName.
pub(crate) fn error_name(code: u32) -> Answer<String> {
    words("cuGetErrorName", code)
}

/// cuGetErrorString.
pub(crate) fn error_string(code: u32) -> Answer<String> {
    words("cuGetErrorString", code)
}

/// cuDeviceGet.
pub(crate) fn device(ordinal: i32) -> Answer<i32> {
    // SAFETY: the out argument is `out`'s.
    out(|at| unsafe { sys::cuDeviceGet(at, ordinal) })
}

/// cuDeviceGet without a place for the answer.
pub(crate) fn device_to_null() -> Answer {
    // SAFETY: the driver documents that it refuses null.
    done(unsafe { sys::cuDeviceGet(core::ptr::null_mut(), 0) })
}

/// cuDeviceGetCount.
pub(crate) fn device_count() -> Answer<i32> {
    // SAFETY: the out argument is `out`'s.
    out(|at| unsafe { sys::cuDeviceGetCount(at) })
}

/// cuDeviceGetCount without a place for the answer.
pub(crate) fn device_count_to_null() -> Answer {
    // SAFETY: the driver documents that it refuses null.
    done(unsafe { sys::cuDeviceGetCount(core::ptr::null_mut()) })
}

/// cuDeviceGetName: the bytes of a buffer of `room`, which was full of 0xFF.
pub(crate) fn device_name(device: i32, room: usize) -> Answer<Vec<u8>> {
    let mut text = vec![0xFF_u8; room];
    let length = i32::try_from(room).expect("a short buffer");
    // SAFETY: `room` bytes may be written.
    done(unsafe { sys::cuDeviceGetName(text.as_mut_ptr().cast(), length, device) })?;
    Ok(text)
}

/// cuDeviceGetUuid_v2.
pub(crate) fn device_uuid(device: i32) -> Answer<[u8; 16]> {
    // SAFETY: the out argument is `out`'s and has the structure's size.
    out::<[u8; 16]>(|at| unsafe { sys::cuDeviceGetUuid_v2(at.cast(), device) })
}

/// cuDeviceTotalMem_v2.
pub(crate) fn device_bytes(device: i32) -> Answer<usize> {
    // SAFETY: the out argument is `out`'s.
    out(|at| unsafe { sys::cuDeviceTotalMem_v2(at, device) })
}

/// cuDeviceGetAttribute.
pub(crate) fn device_attribute(attribute: u32, device: i32) -> Answer<i32> {
    type Get = unsafe extern "C" fn(*mut i32, u32, i32) -> u32;
    // SAFETY: the function's type, with the enumeration as the number it is in C.
    let call = unsafe { symbol::<Get>("cuDeviceGetAttribute") };
    let mut value = 0;
    // SAFETY: the out argument is a local's; the attribute may be any number.
    done_raw(unsafe { call(&raw mut value, attribute, device) })?;
    Ok(value)
}

/// cuDeviceCanAccessPeer.
pub(crate) fn can_access_peer(device: i32, peer: i32) -> Answer<bool> {
    // SAFETY: the out argument is `out`'s.
    out(|at: *mut i32| unsafe { sys::cuDeviceCanAccessPeer(at, device, peer) }).map(|can| can != 0)
}

/// cuDeviceGetPCIBusId, as text.
pub(crate) fn device_bus(device: i32) -> Answer<String> {
    let mut text = [0_u8; 64];
    // SAFETY: 64 bytes may be written.
    done(unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), 64, device) })?;
    let text = CStr::from_bytes_until_nul(&text).expect("a NUL");
    Ok(text.to_string_lossy().into_owned())
}
