//! The driver's functions by name.

use core::ffi::{CStr, c_void};

use larder_cuda_abi::{Code, functions};

use super::{Answer, symbol};

/// Returns the function's address and the status of the search.
pub(crate) fn address(name: &CStr, version: i32, flags: u64) -> Answer<(*const c_void, u32)> {
    let (mut found, mut status) = (core::ptr::dangling(), u32::MAX);
    let places = (&raw mut found, &raw mut status);
    // SAFETY: the name is NUL-terminated; both out arguments are local variables.
    unsafe { function!(cuGetProcAddress_v2)(name.as_ptr(), places.0, version, flags, places.1) }
        .check()?;
    Ok((found, status))
}

pub(crate) fn exported(name: &str) -> *const c_void {
    symbol::<*const c_void>(name)
}

/// Calls the function that was found as cuDriverGetVersion.
pub(crate) fn version_by(found: *const c_void) -> i32 {
    let mut version = 0;
    // SAFETY: the driver gave the address for that name, and the function has always had the same type.
    let call: functions::cuDriverGetVersion = unsafe { core::mem::transmute(found) };
    // SAFETY: the out argument is a local variable.
    let code = unsafe { call(&raw mut version) };
    assert_eq!(code, Code::SUCCESS);
    version
}
