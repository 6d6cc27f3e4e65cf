//! Moving pages from one range of addresses to another, on Linux.

use super::super::errno::last_errno;
use super::{Moved, RESERVE, USABLE, map, unmap};

/// Returns whether a range belongs to one mapping. Asks the kernel to grow the range by a page in
/// place, which must fail because that page is mapped; the kernel first checks whether the range
/// is one mapping.
///
/// # Safety
/// The `bytes` bytes at `from` are committed and the caller's, and the page behind them is
/// reserved.
unsafe fn is_one_mapping(from: *mut u8, bytes: usize, page: usize) -> bool {
    // SAFETY: the caller's range; because it may not move, nothing in it changes.
    let longer = unsafe { libc::mremap(from.cast(), bytes, bytes + page, 0) };
    if longer != libc::MAP_FAILED {
        // The page behind was a hole after all: make it one again.
        unmap(from.wrapping_add(bytes), page);
        return false;
    }
    matches!(last_errno(), libc::ENOMEM | libc::EAGAIN)
}

/// Returns whether memory is locked. A move would undo that for the whole mapping, neighbours
/// included. The test asks the kernel to invalidate the memory: that is refused for locked memory,
/// and does nothing to other memory without a file. Bypasses the C library, in whose function a
/// thread may be cancelled.
///
/// # Safety
/// The `bytes` bytes at `from` are committed and the caller's.
unsafe fn is_locked(from: *mut u8, bytes: usize) -> bool {
    // SAFETY: the caller's range, in which nothing changes.
    unsafe { libc::syscall(libc::SYS_msync, from, bytes, libc::MS_INVALIDATE) != 0 }
}

/// Returns whether equal pages of the process are merged (`PR_SET_MEMORY_MERGE`): a move first
/// unmerges them, and a signal may interrupt that when the target is already unmapped.
fn is_merged() -> bool {
    const PR_GET_MEMORY_MERGE: libc::c_int = 68;
    // SAFETY: reads a flag of the process; older kernels do not know it.
    unsafe { libc::prctl(PR_GET_MEMORY_MERGE, 0, 0, 0, 0) == 1 }
}

/// Calls `mremap` to a mapped target, and keeps the source mapped (Linux 5.7; older kernels refuse
/// the flag).
///
/// # Safety
/// The conditions of [`Os::move_pages`]: both ranges are committed, and nothing in the second is used.
pub(super) unsafe fn move_pages(from: *mut u8, to: *mut u8, bytes: usize, page: usize) -> Moved {
    // This never passes a range of several mappings, on which kernels differ: some unmap the
    // target and move nothing, others move mapping by mapping until one cannot be moved.
    // SAFETY: the range is committed.
    let is_one = unsafe { is_one_mapping(from, bytes, page) };
    // SAFETY: the range is committed.
    if !is_one || unsafe { is_locked(from, bytes) } || is_merged() {
        return Moved::Unfit;
    }
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    let place = to.cast::<libc::c_void>();
    // SAFETY: the caller's ranges.
    if unsafe { libc::mremap(from.cast(), bytes, bytes, flags, place) } == place {
        // Changes nothing, but corrects user-mode emulators, which consider the range unmapped.
        // SAFETY: the caller's range.
        unsafe { libc::mprotect(from.cast(), bytes, USABLE) };
        return Moved::Whole;
    }
    match last_errno() {
        // A kernel without the flag, or a filter of system calls: refused before any change.
        libc::EINVAL | libc::ENOSYS | libc::EPERM | libc::EACCES => Moved::Refused,
        // The target may have been unmapped first. It is mapped again unless another thread has
        // mapped something there since: other mappings are never replaced.
        _ => match map(to, bytes, USABLE, RESERVE | libc::MAP_FIXED_NOREPLACE) {
            Some(start) if start.as_ptr() == to => Moved::Refused,
            _ => Moved::Lost,
        },
    }
}
