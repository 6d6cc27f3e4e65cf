//! A system that refuses everything, for the interpreter `miri`: the program's requests go to the
//! standard library's allocator there ([`crate::under_miri`]), and this heap stays empty.

use core::ptr::NonNull;

use super::{Forks, Os, ThreadEnds};

/// Refuses everything.
pub(crate) struct Native;

/// Never reserved.
pub(crate) const FIRST_ARENA_BYTES: usize = 1 << 20;

// SAFETY: no memory is ever granted.
unsafe impl Os for Native {
    fn page_bytes(&self) -> usize {
        4 << 10
    }

    fn processors(&self) -> usize {
        1
    }

    fn reserve(&self, _: usize, _: usize) -> Option<NonNull<u8>> {
        None
    }

    unsafe fn release(&self, _: *mut u8, _: usize) {}

    unsafe fn commit(&self, _: *mut u8, _: usize) -> bool {
        false
    }

    unsafe fn decommit(&self, _: *mut u8, _: usize) -> bool {
        false
    }

    unsafe fn discard(&self, _: *mut u8, _: usize) -> bool {
        false
    }
}

/// No key exists.
pub(crate) type Key = core::convert::Infallible;

/// Returns `None`: no thread has a heap.
pub(crate) fn make_key<E: ThreadEnds>() -> Option<Key> {
    None
}

/// Does nothing: the interpreter does not fork.
pub(crate) const fn watch_forks<F: Forks>() {}

/// Never called: there are no keys.
pub(crate) fn set_key(key: Key) -> bool {
    match key {}
}

pub(crate) use std::process::abort;

/// Does nothing: the interpreter reports errors itself.
pub(crate) fn say(_: &[u8]) {}
