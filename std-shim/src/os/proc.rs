//! Files in which the kernel says something.

use core::ffi::CStr;

/// The front of a file, as much as `buffer` holds; `None` if it cannot be read. Without the C library, in whose
/// functions a thread may be cancelled.
pub(super) fn read<'a>(path: &CStr, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: a text that ends with 0.
    let file = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) };
    // SAFETY: as many bytes as there are. A file that could not be opened is refused.
    let bytes = unsafe { libc::syscall(libc::SYS_read, file, buffer.as_mut_ptr(), buffer.len()) };
    // SAFETY: a file of ours, or none.
    unsafe { libc::syscall(libc::SYS_close, file) };
    buffer.get(..usize::try_from(bytes).ok()?)
}
