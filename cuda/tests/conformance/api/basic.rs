//! Initialization, version, error texts, and devices.

use core::{
    ffi::{CStr, c_char},
    ptr::null_mut,
};

use larder_cuda_abi::{Code, DeviceUuid};

use super::{Answer, out};

bindings! {
    fn init(flags: u32) { cuInit(flags) }
    fn driver_version() -> i32 { |at| cuDriverGetVersion(at) }
    fn driver_version_to_null() { cuDriverGetVersion(null_mut()) }
    fn device(ordinal: i32) -> i32 { |at| cuDeviceGet(at, ordinal) }
    fn device_to_null() { cuDeviceGet(null_mut(), 0) }
    fn device_count() -> i32 { |at| cuDeviceGetCount(at) }
    fn device_count_to_null() { cuDeviceGetCount(null_mut()) }
    fn device_uuid(device: i32) -> DeviceUuid { |at| cuDeviceGetUuid_v2(at, device) }
    fn device_bytes(device: i32) -> usize { |at| cuDeviceTotalMem_v2(at, device) }
    fn device_attribute(attribute: u32, device: i32) -> i32 {
        |at| cuDeviceGetAttribute(at, attribute, device)
    }
    fn can_access_peer(device: i32, peer: i32) -> i32 { |at| cuDeviceCanAccessPeer(at, device, peer) }
}

/// Copies the text from cuGetErrorName or cuGetErrorString.
fn text(given: *const c_char) -> String {
    // SAFETY: the driver answers with a static NUL-terminated string.
    let text = unsafe { CStr::from_ptr(given) };
    text.to_string_lossy().into_owned()
}

pub(crate) fn error_name(code: u32) -> Answer<String> {
    // SAFETY: the out argument is from `out`; the code may be any number.
    out(|at| unsafe { function!(cuGetErrorName)(Code(code), at) }).map(text)
}

pub(crate) fn error_string(code: u32) -> Answer<String> {
    // SAFETY: the out argument is from `out`; the code may be any number.
    out(|at| unsafe { function!(cuGetErrorString)(Code(code), at) }).map(text)
}

/// Returns all `room` bytes of the buffer passed to cuDeviceGetName, which were 0xFF before.
pub(crate) fn device_name(device: i32, room: usize) -> Answer<Vec<u8>> {
    let mut text = vec![0xFF_u8; room];
    let length = i32::try_from(room).expect("a short buffer");
    // SAFETY: `room` bytes may be written.
    unsafe { function!(cuDeviceGetName)(text.as_mut_ptr().cast(), length, device) }.check()?;
    Ok(text)
}

pub(crate) fn device_bus(device: i32) -> Answer<String> {
    let mut text = [0_u8; 64];
    // SAFETY: 64 bytes may be written.
    unsafe { function!(cuDeviceGetPCIBusId)(text.as_mut_ptr().cast(), 64, device) }.check()?;
    let text = CStr::from_bytes_until_nul(&text).expect("a NUL");
    Ok(text.to_string_lossy().into_owned())
}
