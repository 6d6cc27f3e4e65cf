//! A thread comes to its part of the heap, and is given a heap before one of its first slow paths.

use super::end::{at_thread_exit, prepare};
use super::local::Local;
use super::tls;
use crate::process::PROCESS;

/// So many allocations and frees of a thread without a heap borrow one, before it is given one for its life. A thread
/// that only ends may come here a few times, after its end was told: what the C library had for it is freed, the last
/// destructors allocate.
const LOANS_OF_ALLOCATIONS: u8 = 4;
const LOANS_OF_FREES: u8 = 32;

/// Runs `f` with the thread's part. `f` must not come back here.
///
/// # Safety
/// Not called from a signal handler that may have interrupted the heap, nor from inside `f`.
#[inline(always)]
pub(crate) unsafe fn with_local<R>(f: impl FnOnce(&mut Local) -> R) -> R {
    // SAFETY: the thread's own; neither `f` nor a signal handler comes here while `f` has it.
    f(unsafe { &mut *tls::local() })
}

/// Called before a slow path of an allocation: gives the calling thread a heap, if it has none and has borrowed
/// often enough. By no function that has the thread's part: the system may allocate here.
#[inline]
pub(crate) fn attach() {
    prepare();
    attach_after(LOANS_OF_ALLOCATIONS);
}

/// Called before a slow path of a free, as [`attach`].
#[inline]
pub(crate) fn attach_to_free() {
    attach_after(LOANS_OF_FREES);
}

/// Gives the calling thread a heap, if it has none yet, as [`attach`].
pub(super) fn attach_now() {
    attach_after(0);
}

#[inline]
fn attach_after(loans: u8) {
    // Whether the thread may have a cache is the configuration's to say (LOCAL1).
    if !PROCESS.tuning.is_known() {
        return;
    }
    // SAFETY: the verbs do not use the thread's part here, and no signal handler calls them.
    if let Some(heap) = unsafe { with_local(|local| local.begin_attach(loans, &PROCESS)) } {
        let told = at_thread_exit();
        // SAFETY: the verbs do not use the thread's part here, and no signal handler calls them.
        unsafe { with_local(|local| local.attach(heap, told, &PROCESS)) };
    }
}
