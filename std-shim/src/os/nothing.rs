//! A system that gives nothing, for the interpreter `miri`: the program's requests go to the standard
//! library's allocator there ([`crate::interpreted`]), and this heap stays empty.

use core::ptr::NonNull;

use super::{Forks, Os, ThreadEnds};

/// Refuses everything.
pub(crate) struct Native;

/// Never reserved.
pub(crate) const FIRST_ARENA_BYTES: usize = 1 << 20;

// SAFETY: nothing is ever given.
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

/// There is none.
pub(crate) type Key = core::convert::Infallible;

/// Nothing to be told of: no thread has a heap.
pub(crate) fn make_key<E: ThreadEnds>() -> Option<Key> {
    None
}

/// The interpreter does not fork.
pub(crate) const fn watch_forks<F: Forks>() {}

/// Cannot be called.
pub(crate) fn set_key(key: Key) -> bool {
    match key {}
}

pub(crate) use std::process::abort;

/// The interpreter has words of its own.
pub(crate) fn say(_: &[u8]) {}
