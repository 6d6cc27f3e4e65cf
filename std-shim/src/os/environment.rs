//! Environment variables, read in place: the heap may read them before the program begins, and must
//! not allocate.

use core::ffi::CStr;

unsafe extern "C" {
    /// Set by the C library when it is initialized; null before.
    static mut environ: *const *const libc::c_char;
}

/// Returns the value of a variable. The inner `None` means that the variable is not set. The outer
/// `None` and the conditions are those of [`entries`].
pub(crate) fn variable(name: &str) -> Option<Option<&'static [u8]>> {
    let value = |entry: &'static [u8]| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=");
    Some(entries()?.find_map(value))
}

/// Iterates over the variables, each as `NAME=value`. Returns `None` if the C library does not have
/// the environment yet. A program with elevated privileges sees no variable.
///
/// Must not be called while another thread changes the environment, which C does not allow either.
pub(crate) fn entries() -> Option<impl Iterator<Item = &'static [u8]>> {
    // SAFETY: a pointer that the C library writes before there is a second thread.
    let first = unsafe { environ };
    if first.is_null() {
        return None;
    }
    let (mut at, hidden) = (first, has_foreign_rights());
    Some(core::iter::from_fn(move || {
        if hidden {
            return None;
        }
        // SAFETY: the array ends with null, and nothing is read behind that.
        let entry = unsafe { *at };
        if entry.is_null() {
            return None;
        }
        at = at.wrapping_add(1);
        // SAFETY: an entry is a NUL-terminated string.
        Some(unsafe { CStr::from_ptr(entry) }.to_bytes())
    }))
}

/// Returns whether the program runs with privileges of its file (such as set-user-ID).
#[cfg(any(target_os = "linux", target_os = "android"))]
fn has_foreign_rights() -> bool {
    // SAFETY: reads a number of the process.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Returns whether the program runs with privileges of its file (such as set-user-ID).
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn has_foreign_rights() -> bool {
    // SAFETY: the call has no conditions.
    let users = unsafe { libc::getuid() != libc::geteuid() };
    // SAFETY: the call has no conditions.
    users || unsafe { libc::getgid() != libc::getegid() }
}
