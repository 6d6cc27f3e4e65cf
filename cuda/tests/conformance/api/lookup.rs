//! Functions of the driver by name.

use core::ffi::{CStr, c_char, c_void};

use super::{Answer, done_raw, symbol};

type GetProcAddress =
    unsafe extern "C" fn(*const c_char, *mut *const c_void, i32, u64, *mut u32) -> u32;

/// cuGetProcAddress_v2: where the function is, and what became of the search.
pub(crate) fn address(name: &CStr, version: i32, flags: u64) -> Answer<(*const c_void, u32)> {
    // SAFETY: the type is the function's C prototype.
    let call = unsafe { symbol::<GetProcAddress>("cuGetProcAddress_v2") };
    let (mut found, mut status) = (core::ptr::dangling(), u32::MAX);
    let places = (&raw mut found, &raw mut status);
    // SAFETY: a text with its NUL; both out arguments are locals.
    done_raw(unsafe { call(name.as_ptr(), places.0, version, flags, places.1) })?;
    Ok((found, status))
}

/// Where a function is that the driver exports under this name.
pub(crate) fn exported(name: &str) -> *const c_void {
    // SAFETY: it is not called.
    unsafe { symbol::<*const c_void>(name) }
}

/// Calls a function that was found as cuDriverGetVersion.
pub(crate) fn version_by(found: *const c_void) -> i32 {
    let mut version = 0;
    // SAFETY: the driver gave it for that name, which has had one type ever.
    let call: unsafe extern "C" fn(*mut i32) -> u32 = unsafe { core::mem::transmute(found) };
    // SAFETY: the out argument is a local's.
    let code = unsafe { call(&raw mut version) };
    assert_eq!(code, 0);
    version
}
