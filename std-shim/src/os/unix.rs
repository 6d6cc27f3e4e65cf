//! Memory from a Unix kernel.

use std::ptr::{self, NonNull};

use super::Os;

/// The running kernel.
pub(crate) struct Unix;

/// Reserved addresses count for nothing, and what is committed counts when it is touched. Where the
/// kernel accounts strictly it ignores the wish and charges what is committed.
#[cfg(any(target_os = "linux", target_os = "android"))]
const RESERVE: libc::c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const RESERVE: libc::c_int = libc::MAP_PRIVATE | libc::MAP_ANON;

const USABLE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

fn map(at: *mut u8, bytes: usize, access: libc::c_int, flags: libc::c_int) -> Option<NonNull<u8>> {
    // SAFETY: an anonymous mapping, at a place the kernel chooses or that the caller owns.
    let start = unsafe { libc::mmap(at.cast(), bytes, access, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return None;
    }
    NonNull::new(start.cast())
}

fn unmap(start: *mut u8, bytes: usize) {
    if bytes > 0 {
        // SAFETY: the callers own the range and use it no more. A refusal leaves it mapped, which
        // harms nobody.
        unsafe { libc::munmap(start.cast(), bytes) };
    }
}

// SAFETY: 1: a mapping is ours until it is unmapped; 2: anonymous memory reads as zero.
unsafe impl Os for Unix {
    fn page_bytes(&self) -> usize {
        // SAFETY: reads a constant of the process.
        let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(bytes).unwrap_or(4096)
    }

    fn reserve(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        let padded = bytes.checked_add(align)?;
        let start = map(ptr::null_mut(), padded, libc::PROT_NONE, RESERVE)?.as_ptr();
        let skip = start.align_offset(align);
        let aligned = start.wrapping_add(skip);
        unmap(start, skip);
        unmap(aligned.wrapping_add(bytes), align - skip);
        NonNull::new(aligned)
    }

    unsafe fn release(&self, start: *mut u8, bytes: usize) {
        unmap(start, bytes);
    }

    unsafe fn commit(&self, start: *mut u8, bytes: usize) -> bool {
        // SAFETY: the caller's range.
        unsafe { libc::mprotect(start.cast(), bytes, USABLE) == 0 }
    }

    unsafe fn decommit(&self, start: *mut u8, bytes: usize) -> bool {
        // A fresh mapping in its place also ends what the kernel has charged for it.
        map(start, bytes, libc::PROT_NONE, RESERVE | libc::MAP_FIXED).is_some()
    }

    unsafe fn discard(&self, start: *mut u8, bytes: usize) -> bool {
        if cfg!(any(target_os = "linux", target_os = "android")) {
            // SAFETY: the caller's range. On Linux private anonymous memory reads as zero after it.
            return unsafe { libc::madvise(start.cast(), bytes, libc::MADV_DONTNEED) == 0 };
        }
        // Elsewhere the advice promises nothing about the contents, a fresh mapping does.
        map(start, bytes, USABLE, RESERVE | libc::MAP_FIXED).is_some()
    }
}

/// Lets another thread run, which may hold the lock that is wanted.
pub(crate) fn yield_thread() {
    // SAFETY: has no conditions.
    unsafe { libc::sched_yield() };
}
