//! A thread comes to its part of the heap, and is given a heap before its first slow path.

use super::end::at_thread_exit;
use super::local::Local;
use super::tls;
use crate::process::PROCESS;

/// Runs `f` with the thread's part. `f` must not come back here.
///
/// # Safety
/// Not called from a signal handler that may have interrupted the heap, nor from inside `f`.
#[inline(always)]
pub(crate) unsafe fn with_local<R>(f: impl FnOnce(&mut Local) -> R) -> R {
    // SAFETY: the thread's own, and the caller promises that nobody else uses it now.
    f(unsafe { &mut *tls::local() })
}

/// Gives the calling thread a heap, if it has none yet. Called before its first slow path, by no function
/// that has the thread's part: the system may allocate here.
#[inline]
pub(crate) fn attach() {
    // Whether the thread may have a cache is the configuration's to say (LOCAL1).
    if !PROCESS.tuning.is_known() {
        return;
    }
    // SAFETY: called by the verbs of the heap, which have left the thread's part; here and below.
    if let Some(heap) = unsafe { with_local(|local| local.begin_attach(&PROCESS)) } {
        let end_is_told = at_thread_exit();
        // SAFETY: called by the verbs of the heap, which have left the thread's part.
        unsafe { with_local(|local| local.attach(heap, end_is_told, &PROCESS)) };
    }
}
