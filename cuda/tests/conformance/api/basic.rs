//! Starting the driver, its version and words for errors, devices.

use core::ffi::{CStr, c_char};

use larder_cuda_abi::{Code, DeviceUuid};

use super::{Answer, out};

/// cuInit.
pub(crate) fn init(flags: u32) -> Answer {
    // SAFETY: the call takes a number and reads no memory.
    unsafe { function!(cuInit)(flags) }.check()
}

/// cuDriverGetVersion.
pub(crate) fn driver_version() -> Answer<i32> {
    // SAFETY: the out argument is `out`'s.
    out(|at| unsafe { function!(cuDriverGetVersion)(at) })
}

/// cuDriverGetVersion without a place for the answer.
pub(crate) fn driver_version_to_null() -> Answer {
    // SAFETY: the driver documents that it refuses null.
    unsafe { function!(cuDriverGetVersion)(core::ptr::null_mut()) }.check()
}

/// The text that cuGetErrorName or cuGetErrorString gives.
fn text(given: *const c_char) -> String {
    // SAFETY: the driver answers a static C string.
    let text = unsafe { CStr::from_ptr(given) };
    text.to_string_lossy().into_owned()
}

/// cuGetErrorName.
pub(crate) fn error_name(code: u32) -> Answer<String> {
    // SAFETY: the out argument is `out`'s; the code may be any number.
    out(|at| unsafe { function!(cuGetErrorName)(Code(code), at) }).map(text)
}

/// cuGetErrorString.
pub(crate) fn error_string(code: u32) -> Answer<String> {
    // SAFETY: the out argument is `out`'s; the code may be any number.
    out(|at| unsafe { function!(cuGetErrorString)(Code(code), at) }).map(text)
}

/// cuDeviceGet.
pub(crate) fn device(ordinal: i32) -> Answer<i32> {
    // SAFETY: the out argument is `out`'s.
    out(|at| unsafe { function!(cuDeviceGet)(at, ordinal) })
}

/// cuDeviceGet without a place for the answer.
pub(crate) fn device_to_null() -> Answer {
    // SAFETY: the driver documents that it refuses null.
    unsafe { function!(cuDeviceGet)(core::ptr::null_mut(), 0) }.check()
}

/// cuDeviceGetCount.
pub(crate) fn device_count() -> Answer<i32> {
    // SAFETY: the out argument is `out`'s.
    out(|at| unsafe { function!(cuDeviceGetCount)(at) })
}

/// cuDeviceGetCount without a place for the answer.
pub(crate) fn device_count_to_null() -> Answer {
    // SAFETY: the driver documents that it refuses null.
    unsafe { function!(cuDeviceGetCount)(core::ptr::null_mut()) }.check()
}

/// cuDeviceGetName: the bytes of a buffer of `room`, which was full of 0xFF.
pub(crate) fn device_name(device: i32, room: usize) -> Answer<Vec<u8>> {
    let mut text = vec![0xFF_u8; room];
    let length = i32::try_from(room).expect("a short buffer");
    // SAFETY: `room` bytes may be written.
    unsafe { function!(cuDeviceGetName)(text.as_mut_ptr().cast(), length, device) }.check()?;
    Ok(text)
}

/// cuDeviceGetUuid_v2.
pub(crate) fn device_uuid(device: i32) -> Answer<[u8; 16]> {
    // SAFETY: the out argument is `out`'s.
    out(|at| unsafe { function!(cuDeviceGetUuid_v2)(at, device) })
        .map(|uuid: DeviceUuid| uuid.bytes)
}

/// cuDeviceTotalMem_v2.
pub(crate) fn device_bytes(device: i32) -> Answer<usize> {
    // SAFETY: the out argument is `out`'s.
    out(|at| unsafe { function!(cuDeviceTotalMem_v2)(at, device) })
}

/// cuDeviceGetAttribute.
pub(crate) fn device_attribute(attribute: u32, device: i32) -> Answer<i32> {
    // SAFETY: the out argument is `out`'s; the attribute may be any number.
    out(|at| unsafe { function!(cuDeviceGetAttribute)(at, attribute, device) })
}

/// cuDeviceCanAccessPeer.
pub(crate) fn can_access_peer(device: i32, peer: i32) -> Answer<bool> {
    // SAFETY: the out argument is `out`'s.
    out(|at: *mut i32| unsafe { function!(cuDeviceCanAccessPeer)(at, device, peer) })
        .map(|can| can != 0)
}

/// cuDeviceGetPCIBusId, as text.
pub(crate) fn device_bus(device: i32) -> Answer<String> {
    let mut text = [0_u8; 64];
    // SAFETY: 64 bytes may be written.
    unsafe { function!(cuDeviceGetPCIBusId)(text.as_mut_ptr().cast(), 64, device) }.check()?;
    let text = CStr::from_bytes_until_nul(&text).expect("a NUL");
    Ok(text.to_string_lossy().into_owned())
}
