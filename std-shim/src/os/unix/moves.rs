//! Pages that move from one range of addresses to another, on Linux.

use super::super::errno::last_errno;
use super::{Moved, RESERVE, USABLE, map, unmap};

/// Whether a range belongs to one mapping: asks for one page more in place, which cannot be had, since
/// that page is mapped. The kernel first looks whether the range is what it was called.
///
/// # Safety
/// `bytes` bytes from `from` are committed and the caller's, and the page behind them is reserved.
unsafe fn is_one_mapping(from: *mut u8, bytes: usize, page: usize) -> bool {
    // SAFETY: the caller's range; without leave to move it, nothing of it changes.
    let longer = unsafe { libc::mremap(from.cast(), bytes, bytes + page, 0) };
    if longer != libc::MAP_FAILED {
        // What lay behind was a hole after all: it is one again.
        unmap(from.wrapping_add(bytes), page);
        return false;
    }
    matches!(last_errno(), libc::ENOMEM | libc::EAGAIN)
}

/// Whether memory is locked, which a move would undo for the whole mapping, neighbours included: to
/// invalidate it is refused then, and means nothing to memory without a file. Asked without the C library,
/// in whose function a thread may be cancelled.
///
/// # Safety
/// `bytes` bytes from `from` are committed and the caller's.
unsafe fn is_locked(from: *mut u8, bytes: usize) -> bool {
    // SAFETY: the caller's range, of which nothing changes.
    unsafe { libc::syscall(libc::SYS_msync, from, bytes, libc::MS_INVALIDATE) != 0 }
}

/// Whether equal pages of the process are merged (`PR_SET_MEMORY_MERGE`): a move first has them undone,
/// which a signal may interrupt when the place is unmapped already.
fn is_merged() -> bool {
    const PR_GET_MEMORY_MERGE: libc::c_int = 68;
    // SAFETY: reads a flag of the process; older kernels do not know it.
    unsafe { libc::prctl(PR_GET_MEMORY_MERGE, 0, 0, 0, 0) == 1 }
}

/// `mremap` into a place that is mapped, with what it moves from staying mapped (Linux 5.7; older ones
/// refuse the flag).
///
/// # Safety
/// The conditions of [`Os::move_pages`]: both ranges are committed, and nothing in the second is used.
pub(super) unsafe fn move_pages(from: *mut u8, to: *mut u8, bytes: usize, page: usize) -> Moved {
    // Kernels differ in what they do to a range of several mappings (nothing, after the place is
    // unmapped; or mapping by mapping, until one cannot be moved), so it never comes to that.
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
        // Changes nothing, but tells emulators of programs what they get wrong: that the range is
        // still mapped.
        // SAFETY: the caller's range.
        unsafe { libc::mprotect(from.cast(), bytes, USABLE) };
        return Moved::Whole;
    }
    match last_errno() {
        // A kernel without the flag, or a filter of system calls: before anything was done.
        libc::EINVAL | libc::ENOSYS | libc::EPERM | libc::EACCES => Moved::Refused,
        // The place may have been unmapped first. If no other thread has got it since then it is
        // mapped again, and never over anybody.
        _ => match map(to, bytes, USABLE, RESERVE | libc::MAP_FIXED_NOREPLACE) {
            Some(start) if start.as_ptr() == to => Moved::Refused,
            _ => Moved::Lost,
        },
    }
}
