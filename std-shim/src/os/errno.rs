//! The calling thread's `errno`: read, and preserved across the heap's system calls
//! ([`KeepErrno`]).

/// Saves `errno` when created and restores it when dropped. A program may read `errno` long after
/// the call that set it, and allocate in between, for example for a message about a failed `open`.
pub(crate) struct KeepErrno(Option<libc::c_int>);

impl KeepErrno {
    #[inline]
    pub(crate) fn new() -> Self {
        // SAFETY: null, or the calling thread's own variable.
        Self(unsafe { place().as_ref() }.copied())
    }
}

impl Drop for KeepErrno {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: null, or the calling thread's own variable.
        if let (Some(errno), Some(place)) = (self.0, unsafe { place().as_mut() }) {
            *place = errno;
        }
    }
}

/// Returns the reason why the calling thread's last failed call failed; 0 if it is not known.
pub(crate) fn last_errno() -> libc::c_int {
    // SAFETY: null, or the calling thread's own variable.
    unsafe { place().as_ref() }.copied().unwrap_or(0)
}

/// Sets the reason why a call of the heap failed.
pub(crate) fn set_errno(reason: libc::c_int) {
    // SAFETY: null, or the calling thread's own variable.
    if let Some(place) = unsafe { place().as_mut() } {
        *place = reason;
    }
}

/// Returns the address of the calling thread's `errno`; null if it is not known.
fn place() -> *mut libc::c_int {
    // SAFETY: the call has no conditions.
    #[cfg(any(target_os = "linux", target_os = "emscripten", target_os = "fuchsia"))]
    return unsafe { libc::__errno_location() };
    // SAFETY: the call has no conditions.
    #[cfg(any(target_os = "android", target_os = "netbsd", target_os = "openbsd"))]
    return unsafe { libc::__errno() };
    // SAFETY: the call has no conditions.
    #[cfg(any(target_vendor = "apple", target_os = "freebsd"))]
    return unsafe { libc::__error() };
    #[allow(unreachable_code, reason = "the systems above have returned")]
    core::ptr::null_mut()
}
