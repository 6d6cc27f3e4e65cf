//! The thread's part as the standard library keeps it.

use std::cell::UnsafeCell;

use larder_core::small::ThreadCache;

use super::ThreadPart;

thread_local! {
    static PART: UnsafeCell<ThreadPart> = const { UnsafeCell::new(ThreadPart::new()) };
}

#[inline(always)]
pub(crate) fn cache() -> *mut ThreadCache {
    // SAFETY: the thread's own; whoever changes it does not call this meanwhile.
    PART.with(|part| unsafe { &*part.get() }.local.cache)
}

#[inline(always)]
pub(crate) fn cache_of_frees() -> *mut ThreadCache {
    // SAFETY: the thread's own; whoever changes it does not call this meanwhile.
    PART.with(|part| unsafe { &*part.get() }.local.cache_of_frees)
}

#[inline(always)]
pub(crate) fn part() -> *mut ThreadPart {
    PART.with(UnsafeCell::get)
}
