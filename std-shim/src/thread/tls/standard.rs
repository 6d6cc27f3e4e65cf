//! The thread's part as the standard library keeps it.

use std::cell::UnsafeCell;

use larder_core::small::ThreadCache;

use crate::thread::local::Local;

thread_local! {
    static LOCAL: UnsafeCell<Local> = const { UnsafeCell::new(Local::new()) };
}

#[inline(always)]
pub(crate) fn cache() -> *mut ThreadCache {
    // SAFETY: the thread's own; whoever changes it does not call this meanwhile.
    LOCAL.with(|local| unsafe { &*local.get() }.cache)
}

#[inline(always)]
pub(crate) fn local() -> *mut Local {
    LOCAL.with(UnsafeCell::get)
}
