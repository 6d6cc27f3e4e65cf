//! C++ exceptions for callers that do not check for null, thrown with functions of the C++ library.
//!
//! The library is not linked: a program that can catch an exception has loaded it. If the library is not
//! loaded, nothing is thrown, and the caller gets null.

use std::ffi::{CStr, c_char, c_void};
use std::mem;
use std::ptr::NonNull;

use crate::outcome::larder_cuda_last_error;

/// The C++ library of Linux, which GCC and Clang use by default.
const LIBRARY: &CStr = c"libstdc++.so.6";

/// `std::__throw_runtime_error(char const*)`.
const RUNTIME_ERROR: &CStr = c"_ZSt21__throw_runtime_errorPKc";

/// `std::__throw_bad_alloc()`.
const BAD_ALLOC: &CStr = c"_ZSt17__throw_bad_allocv";

/// Returns a function of the library, if the library is loaded.
fn function(name: &CStr) -> Option<NonNull<c_void>> {
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
    // SAFETY: the name is a NUL-terminated string; the flag keeps the call from loading anything.
    let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), flags) };
    if library.is_null() {
        return None;
    }
    // The library stays open because the function lies in it.
    // SAFETY: the library is open and the name is NUL-terminated.
    NonNull::new(unsafe { libc::dlsym(library, name.as_ptr()) })
}

/// Throws `std::runtime_error` with the text of the thread's last refusal.
pub(crate) fn runtime_error() {
    let Some(function) = function(RUNTIME_ERROR) else {
        return;
    };
    let text = larder_cuda_last_error();
    // SAFETY: this is the function's type in the C++ library. The text lives until the thread's next
    // refusal, and the exception copies it. Nothing is left to drop (CAPI1).
    unsafe {
        let throw: unsafe extern "C-unwind" fn(*const c_char) = mem::transmute(function.as_ptr());
        throw(text);
    }
}

/// Throws `std::bad_alloc`.
pub(crate) fn bad_alloc() {
    let Some(function) = function(BAD_ALLOC) else {
        return;
    };
    // SAFETY: this is the function's type in the C++ library; it takes no arguments. Nothing is left to drop
    // (CAPI1).
    unsafe {
        let throw: unsafe extern "C-unwind" fn() = mem::transmute(function.as_ptr());
        throw();
    }
}
