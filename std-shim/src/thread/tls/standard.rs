//! The thread's part in a `thread_local!` of the standard library.

use std::cell::UnsafeCell;

use larder_core::small::ThreadCache;

use super::ThreadPart;

thread_local! {
    static PART: UnsafeCell<ThreadPart> = const { UnsafeCell::new(ThreadPart::new()) };
}

#[inline(always)]
pub(crate) fn cache() -> *mut ThreadCache {
    // SAFETY: the thread's own part; no function that changes it calls this while it does.
    PART.with(|part| unsafe { &*part.get() }.local.cache)
}

#[inline(always)]
pub(crate) fn cache_of_frees() -> *mut ThreadCache {
    // SAFETY: the thread's own part; no function that changes it calls this while it does.
    PART.with(|part| unsafe { &*part.get() }.local.cache_of_frees)
}

#[inline(always)]
pub(crate) fn part() -> *mut ThreadPart {
    PART.with(UnsafeCell::get)
}
