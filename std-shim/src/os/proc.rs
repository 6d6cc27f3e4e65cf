//! Reading the kernel's files.

use core::ffi::CStr;

/// Reads the beginning of a file, as much as fits into `buffer`. Returns `None` if the file
/// cannot be read. Bypasses the C library, in whose functions a thread may be cancelled.
pub(super) fn read<'a>(path: &CStr, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: a NUL-terminated string.
    let file = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) };
    if file < 0 {
        return None;
    }
    // SAFETY: at most as many bytes as the buffer has.
    let bytes = unsafe { libc::syscall(libc::SYS_read, file, buffer.as_mut_ptr(), buffer.len()) };
    // SAFETY: a file of ours.
    unsafe { libc::syscall(libc::SYS_close, file) };
    buffer.get(..usize::try_from(bytes).ok()?)
}

/// Runs `f` with each line of a file until it returns `false`. Returns whether the file could be
/// opened. Lines of `N` bytes or more are skipped: the buffer is on the stack, which may be
/// small.
pub(super) fn each_line<const N: usize>(path: &CStr, mut f: impl FnMut(&[u8]) -> bool) -> bool {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: a NUL-terminated string.
    let file = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) };
    if file < 0 {
        return false;
    }
    let (mut buffer, mut length, mut is_rest, mut goes_on) = ([0; N], 0, false, true);
    while goes_on {
        let room = buffer.get_mut(length..).unwrap_or_default();
        // SAFETY: at most as many bytes as the buffer has.
        let got = unsafe { libc::syscall(libc::SYS_read, file, room.as_mut_ptr(), room.len()) };
        let Some(got) = usize::try_from(got).ok().filter(|got| *got > 0) else {
            break;
        };
        length += got;
        let mut from = 0;
        while let Some(line) = buffer.get(from..length)
            && let Some(end) = line.iter().position(|&byte| byte == b'\n')
            && goes_on
        {
            goes_on = core::mem::take(&mut is_rest) || f(line.get(..end).unwrap_or_default());
            from += end + 1;
        }
        buffer.copy_within(from..length, 0);
        length -= from;
        if length == N {
            (length, is_rest) = (0, true);
        }
    }
    // SAFETY: a file of ours.
    unsafe { libc::syscall(libc::SYS_close, file) };
    true
}

/// Returns whether a filter of system calls may end the calling thread at a call that it does not
/// allow (seccomp). Also returns true if the kernel does not let this be read.
#[inline(never)]
pub(super) fn is_filtered() -> bool {
    let mut is_free = true;
    let is_read = each_line::<128>(c"/proc/thread-self/status", |line| {
        let mode = line.strip_prefix(b"Seccomp:");
        is_free = mode.is_none_or(|mode| mode.trim_ascii() == b"0");
        mode.is_none()
    });
    !is_read || !is_free
}

/// Returns whether the kernel uses huge pages for anonymous memory at all.
pub(super) fn has_huge_pages() -> bool {
    let mut setting = [0; 64];
    let setting = read(c"/sys/kernel/mm/transparent_hugepage/enabled", &mut setting);
    // If the setting cannot be read, huge pages may still be available.
    setting.is_none_or(|setting| !setting.ends_with(b"[never]\n"))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::ffi::CString;
    use std::{env, fs, process};

    use super::*;

    #[test]
    fn lines_are_read_whole_whatever_the_buffer_and_long_ones_left_out() {
        let path = env::temp_dir().join(format!("larder-lines-{}", process::id()));
        let lines = [
            "",
            "ab",
            &"x".repeat(40),
            "cde",
            "f",
            &"y".repeat(7),
            &"z".repeat(8),
            "g",
        ];
        fs::write(&path, lines.join("\n") + "\n").unwrap();
        let name = CString::new(path.to_str().unwrap()).unwrap();
        let mut found = Vec::new();
        let all = |line: &[u8]| {
            found.push(String::from_utf8(line.to_vec()).unwrap());
            true
        };
        assert!(each_line::<8>(&name, all));
        assert_eq!(found, ["", "ab", "cde", "f", &"y".repeat(7), "g"]);
        let mut count = 0;
        each_line::<64>(&name, |line| {
            count += 1;
            line != b"cde"
        });
        assert_eq!(count, 4, "no further than asked");
        fs::remove_file(path).unwrap();
        assert!(!each_line::<8>(&name, |_| true));
    }
}
