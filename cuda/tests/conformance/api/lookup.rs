//! Functions of the driver by name.

use core::ffi::{CStr, c_void};

use larder_cuda_abi::{Code, functions};

use super::{Answer, symbol};

/// cuGetProcAddress_v2: where the function is, and what became of the search.
pub(crate) fn address(name: &CStr, version: i32, flags: u64) -> Answer<(*const c_void, u32)> {
    let (mut found, mut status) = (core::ptr::dangling(), u32::MAX);
    let places = (&raw mut found, &raw mut status);
    // SAFETY: a text with its NUL; both out arguments are locals.
    unsafe { function!(cuGetProcAddress_v2)(name.as_ptr(), places.0, version, flags, places.1) }
        .check()?;
    Ok((found, status))
}

/// Where a function is that the driver exports under this name.
pub(crate) fn exported(name: &str) -> *const c_void {
    symbol::<*const c_void>(name)
}

/// Calls a function that was found as cuDriverGetVersion.
pub(crate) fn version_by(found: *const c_void) -> i32 {
    let mut version = 0;
    // SAFETY: the driver gave it for that name, which has had one type ever.
    let call: functions::cuDriverGetVersion = unsafe { core::mem::transmute(found) };
    // SAFETY: the out argument is a local's.
    let code = unsafe { call(&raw mut version) };
    assert_eq!(code, Code::SUCCESS);
    version
}
