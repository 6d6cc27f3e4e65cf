//! The variables of the environment, read where they lie: the heap may ask before the program begins, and
//! must not allocate.

use core::ffi::CStr;

unsafe extern "C" {
    /// Set by the C library when it begins; null before.
    static mut environ: *const *const libc::c_char;
}

/// What a variable says: an inner `None` if it is not set. `None` if the C library does not have the
/// environment yet. A program with rights that its user has not sees no variable.
///
/// Not beside a thread that changes the environment, which C does not allow either.
pub(crate) fn variable(name: &str) -> Option<Option<&'static [u8]>> {
    // SAFETY: a pointer of the C library's, which it writes before there is a second thread.
    let first = unsafe { environ };
    if first.is_null() {
        return None;
    }
    if has_foreign_rights() {
        return Some(None);
    }
    let mut at = first;
    loop {
        // SAFETY: the array ends with null, which ends this loop.
        let entry = unsafe { *at };
        if entry.is_null() {
            return Some(None);
        }
        // SAFETY: an entry is a text that ends with 0.
        let entry = unsafe { CStr::from_ptr(entry) }.to_bytes();
        let rest = entry.strip_prefix(name.as_bytes());
        if let Some(value) = rest.and_then(|rest| rest.strip_prefix(b"=")) {
            return Some(Some(value));
        }
        at = at.wrapping_add(1);
    }
}

/// Whether the program runs with rights of its file (set-user-id and its like).
#[cfg(any(target_os = "linux", target_os = "android"))]
fn has_foreign_rights() -> bool {
    // SAFETY: reads a number of the process.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Whether the program runs with rights of its file (set-user-id and its like).
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn has_foreign_rights() -> bool {
    // SAFETY: the call has no conditions.
    let users = unsafe { libc::getuid() != libc::geteuid() };
    // SAFETY: the call has no conditions.
    users || unsafe { libc::getgid() != libc::getegid() }
}
