//! Files in which the kernel says something.

use core::ffi::CStr;

/// The front of a file, as much as `buffer` holds; `None` if it cannot be read. Without the C library, in whose
/// functions a thread may be cancelled.
pub(super) fn read<'a>(path: &CStr, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: a text that ends with 0.
    let file = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) };
    if file < 0 {
        return None;
    }
    // SAFETY: as many bytes as there are.
    let bytes = unsafe { libc::syscall(libc::SYS_read, file, buffer.as_mut_ptr(), buffer.len()) };
    // SAFETY: a file of ours.
    unsafe { libc::syscall(libc::SYS_close, file) };
    buffer.get(..usize::try_from(bytes).ok()?)
}

/// Whether a filter of system calls may end the calling thread at one that it does not know (seccomp). Where the kernel does
/// not let it be read, there may be one.
pub(super) fn is_filtered() -> bool {
    let mut status = [0; 4096];
    let Some(status) = read(c"/proc/thread-self/status", &mut status) else {
        return true;
    };
    let mut lines = status.split(|&byte| byte == b'\n');
    match lines.find_map(|line| line.strip_prefix(b"Seccomp:")) {
        Some(mode) => mode.trim_ascii() != b"0",
        // A kernel without filters, unless the line lies behind what was read.
        None => status.len() == 4096,
    }
}

/// Whether the kernel makes huge pages of anonymous memory at all.
pub(super) fn has_huge_pages() -> bool {
    let mut setting = [0; 64];
    let setting = read(c"/sys/kernel/mm/transparent_hugepage/enabled", &mut setting);
    // Whoever may not read it may have them.
    setting.is_none_or(|setting| !setting.ends_with(b"[never]\n"))
}
