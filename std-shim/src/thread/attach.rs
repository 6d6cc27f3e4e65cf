//! Attaching a thread: the thread gets a heap before one of its first slow paths.

use super::end::{at_thread_exit, prepare};
use super::local::Local;
use super::tls;
use crate::process::PROCESS;

/// Number of allocations, and of frees, that borrow a heap before a thread gets one for its life.
/// An ending thread may allocate or free a few times after its exit has been reported: the C
/// library frees the thread's data, and the last destructors allocate.
const LOANS_OF_ALLOCATIONS: u8 = 4;
const LOANS_OF_FREES: u8 = 32;

/// Runs `f` with the thread's part. `f` must not call this again.
///
/// # Safety
/// Not called from a signal handler that may have interrupted the heap, nor from inside `f`.
#[inline(always)]
pub(crate) unsafe fn with_local<R>(f: impl FnOnce(&mut Local) -> R) -> R {
    // SAFETY: the calling thread's own part; neither `f` nor a signal handler borrows it again
    // while `f` runs.
    f(unsafe { &mut *tls::local() })
}

/// Gives the calling thread a heap, if it has none and has borrowed often enough. Called before a
/// slow path of an allocation, never while the thread's part is borrowed: the system may allocate
/// here.
#[inline]
pub(crate) fn attach() {
    prepare();
    attach_after(LOANS_OF_ALLOCATIONS);
}

/// Gives the calling thread a heap as [`attach`] does, before a slow path of a free.
#[inline]
pub(crate) fn attach_to_free() {
    attach_after(LOANS_OF_FREES);
}

/// Gives the calling thread a heap, if it has none yet, without borrowing first.
pub(super) fn attach_now() {
    attach_after(0);
}

#[inline]
fn attach_after(loans: u8) {
    // Whether the thread may have a cache depends on the configuration (LOCAL1).
    if !PROCESS.tuning.is_known() {
        return;
    }
    // SAFETY: the verbs do not use the thread's part here, and no signal handler calls them.
    if let Some(heap) = unsafe { with_local(|local| local.begin_attach(loans, &PROCESS)) } {
        let hook = at_thread_exit();
        // SAFETY: the verbs do not use the thread's part here, and no signal handler calls them.
        unsafe { with_local(|local| local.attach(heap, hook, &PROCESS)) };
    }
}
